"""The sampler: arms one placement at a time, copies the call that comes, and has what it gave judged.

It has no thread and no clock of its own: ``turn`` is called when it is time, ``check`` once something waits.
"""

from __future__ import annotations

import queue
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from portakernel.calling.arming import Armed, Run, arm
from portakernel.calling.caller import OpCaller
from portakernel.claims.capability import CannotRun
from portakernel.deciding.shadow_wishes import ShadowWishes
from portakernel.errors import ShadowWarning
from portakernel.shadow.budget import Budget
from portakernel.shadow.candidates import Candidate, Candidates
from portakernel.shadow.counts import Counts
from portakernel.shadow.recorded import recorded
from portakernel.shadow.sample import Sample
from portakernel.text.printable import exception_text, one_line
from portakernel.tuning.record import Verdict


class Judge(Protocol):
    """Holds results against the float64 reference by the op's own rule."""

    def __call__(
        self, caller: OpCaller, candidate: Any, tensors: Sequence[Any], values: Sequence[Any], results: Sequence[Any]
    ) -> tuple[Verdict, str]:
        """The verdict on a placement's ``results``, RIGHT, WRONG or UNJUDGED, and what there is to say of it."""
        ...


class Sampler:
    """Looks at the placements of ``callers`` as ``wishes`` has it, and counts in ``counts``."""

    def __init__(
        self,
        wishes: ShadowWishes,
        callers: Callable[[], Iterable[OpCaller]],
        judge: Judge,
        counts: Counts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wishes, self._callers, self._judge, self._counts, self._clock = wishes, callers, judge, counts, clock
        self._budget, self._candidates = Budget(wishes.share, clock), Candidates()
        self._armed: Armed | None = None
        self._warned: set[tuple[str, str, str]] = set()
        self.waiting: queue.SimpleQueue[Sample | None] = queue.SimpleQueue()

    # --- arming -----------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Arms the next placement, in the place of one that was not called since; none while the share is used up."""
        self.disarm()
        if not self.waiting.empty():
            return
        chosen = self._candidates.next(self._callers(), self._budget)
        if chosen is None:
            return
        if self._budget.fits(chosen.op, chosen.kernel, chosen.work):
            self._armed = arm(chosen.placement, lambda run, arguments: self._taken(chosen, run, arguments))
        else:
            self._counts.skip(chosen.op, chosen.kernel, "share")

    def disarm(self) -> None:
        """Has no call looked at until the next turn."""
        if self._armed is not None:
            self._armed.disarm()
            self._armed = None

    # --- the call ---------------------------------------------------------------------------------------------------

    def _taken(self, one: Candidate, run: Run, arguments: Sequence[Any]) -> Any:
        """The call's own result; whatever fails around it is counted, and nothing of it is raised."""
        began, sample = self._clock(), self._begun(one, arguments)
        before = self._clock() - began
        if sample is None:
            return run(*arguments)
        try:
            result = run(*arguments)
        except CannotRun:
            self._counts.skip(one.op, one.kernel, "declined")
            raise
        began = self._clock()
        try:
            sample.after(result)
        except Exception as error:  # noqa: BLE001 - the call has its result; that it is not looked at is counted
            self._failed(one, error)
        else:
            self._spend(one, before + self._clock() - began)
            self.waiting.put(sample)
        return result

    def _begun(self, one: Candidate, arguments: Sequence[Any]) -> Sample | None:
        try:
            sample = Sample(one, arguments)
            if (reason := sample.why_not(self.wishes.bytes)) is not None:
                self._counts.skip(one.op, one.kernel, reason)
                if reason != "captured":  # the same placement serves outside of captures, too
                    self._candidates.looked_at(one)
                return None
            sample.before()
        except Exception as error:  # noqa: BLE001 - no memory for copies, say: the call goes on without
            self._failed(one, error)
            return None
        return sample

    def _failed(self, one: Candidate, error: Exception) -> None:
        self._counts.skip(one.op, one.kernel, "error", exception_text(error))
        self._candidates.looked_at(one)

    def _spend(self, one: Candidate, seconds: float) -> None:
        self._budget.spend(one.op, one.kernel, one.work, seconds)
        self._counts.spend(seconds)

    # --- judging ----------------------------------------------------------------------------------------------------

    def check(self, sample: Sample) -> None:
        """Has a sample judged, and does what follows: warns, demotes, writes it down.

        Raises:
            ShadowWarning: it warns, and warnings are errors. Everything else is done then.
        """
        one, began = sample.candidate, self._clock()
        on_device = 0.0
        try:
            with sample.aside():
                on_device = sample.wait()
                verdict, detail = self._judge(sample.caller, one, sample.tensors, sample.values, sample.results)
        except Exception as error:  # noqa: BLE001 - the checker's own failure is told, and touches no call
            self._failed(one, error)
            self._warn(one, "error", f"shadow verification of {one.kernel} failed: {exception_text(error)}")
            return
        finally:
            self._spend(one, self._clock() - began + on_device)
        self._candidates.looked_at(one)
        if verdict is Verdict.UNJUDGED:
            self._counts.skip(one.op, one.kernel, "unjudged")
        elif verdict is Verdict.RIGHT:
            self._counts.check(one.op, one.kernel)
        else:
            self._counts.check(one.op, one.kernel, detail)
            self._wrong(sample, detail)

    def check_waiting(self) -> int:
        """Has all samples judged that wait; how many there were."""
        done = 0
        while not self.waiting.empty():
            sample = self.waiting.get()
            if sample is not None:
                self.check(sample)
                done += 1
        return done

    def _wrong(self, sample: Sample, detail: str) -> None:
        one, wishes = sample.candidate, self.wishes
        request = one.placement.decision.request
        text = f"{one.kernel} gave a wrong result for {request}: {detail}"
        if wishes.on_mismatch == "demote":
            sample.caller.demote(one.placement, detail)
            text += "; the next kernel serves such calls from now on, as `portakernel.explain` shows"
            text += recorded(sample, detail)
        else:
            text += f"; it goes on serving: deny it, or have it demoted with on_mismatch ({wishes.place})"
        self._warn(one, "wrong", text + self._kept(sample, detail))

    def _kept(self, sample: Sample, detail: str) -> str:
        """Where the call was written down, as the rest of a sentence; empty where no folder is named."""
        if not self.wishes.folder:
            return ""
        from portakernel.shadow.evidence import MOST_FILES, keep

        try:
            path = keep(sample, detail, Path(self.wishes.folder).expanduser())
        except OSError as error:
            return f"; its tensors could not be written to {self.wishes.folder} ({error.strerror or error})"
        if path is None:
            return f"; its tensors were not written: {self.wishes.folder} has {MOST_FILES} files"
        return f"; its tensors are in {path}"

    def _warn(self, one: Candidate, what: str, text: str) -> None:
        kind = one.caller.kind_of(one.placement)
        if (what, one.kernel, kind) in self._warned:
            return
        self._warned.add((what, one.kernel, kind))
        warnings.warn(one_line(text), ShadowWarning, stacklevel=2)
