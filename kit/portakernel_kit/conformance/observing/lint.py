"""Declared versus observed: each kernel asked for what it claims and for what its claims refuse."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.kernel import Kernel
from portakernel.words.target import Device
from portakernel_kit.conformance.observing.isolation import MOST_DEATHS, Asked, Death, Job, run_apart
from portakernel_kit.conformance.observing.observation import Begun, Event, Findings, Finished, Observation, Planned
from portakernel_kit.conformance.observing.observer import Known
from portakernel_kit.conformance.result import Result
from portakernel_kit.conformance.venue import Unavailable, find_venue, venue_beside


def lint(
    dispatcher: Dispatcher,
    kernels: Sequence[Kernel],
    *,
    seed: int,
    device: Device | None = None,
    seconds: float = 20.0,
    claims: bool = True,
    patience_s: float = 300.0,
    targets: bool = False,
) -> Iterator[tuple[Findings, Event]]:
    """Each kernel's findings, filled as events come; its last event is ``Finished``.

    A kernel runs where ``check`` runs it, in processes of its own. First every claim is checked, unless ``claims`` is
    False, then refused cases are tried, for so many seconds. What takes longer than ``patience_s`` seconds hangs.
    ``targets``: a kernel whose targets leave out all devices here is asked for one of them.
    """
    for kernel in kernels:
        venue = find_venue(dispatcher, kernel, device)
        beside = venue_beside(dispatcher, kernel, device) if targets and isinstance(venue, Unavailable) else None
        place = beside or venue
        if isinstance(place, Unavailable):
            yield Findings(kernel.name, kernel.op, reason=place.reason, done=True), Finished()
            continue
        where = beside.device if beside is not None else device
        asked = Asked.of(dispatcher, kernel, where)
        job = Job(asked, seed, seconds, claims and beside is None, Known(), beside is not None)
        findings = Findings(kernel.name, kernel.op, str(place), place.mode)
        for event in _Linter(job, findings, patience_s).events():
            findings.take(event)
            yield findings, event


class _Linter:
    """One kernel's job, taken up by another process where one died.

    What a process was running when it died is to blame if it was all that the process ran; else it runs once more,
    alone: a kernel outside its claims may have ruined memory of which only a later one died.
    """

    def __init__(self, job: Job, findings: Findings, patience_s: float) -> None:
        self.job, self.findings, self.patience_s = job, findings, patience_s
        self.done: set[Begun] = set()
        self.suspect: Begun | None = None
        self.deaths = 0
        self.deadline: float | None = None
        self.finished = False

    def events(self) -> Iterator[Event]:
        """The events of all processes, without those of what was run twice."""
        while not self.finished:
            yield from self._process()
        yield Finished()

    def _process(self) -> Iterator[Event]:
        """Those of one process; a unit's results are held back until it is known to have survived them."""
        running: list[Begun] = []
        held: list[Result | Observation] = []
        for event in run_apart(self._job(), self.patience_s):
            match event:
                case Planned():
                    if self.findings.planned is None:
                        yield event
                case Result() | Observation():
                    held.append(event)
                case Begun() | Finished():
                    yield from held
                    held.clear()
                    self.done |= set(running[-1:])
                    if isinstance(event, Begun):
                        running.append(event)
                        if event.claim and self.deadline is None:
                            self.deadline = time.perf_counter() + self.job.seconds
                        yield event
                    else:
                        self.finished = not event.lost and self.suspect is None
                        self.suspect = None
                case Death():
                    yield from self._died(event, running, held)

    def _job(self) -> Job:
        left = self.job.seconds if self.deadline is None else max(0.0, self.deadline - time.perf_counter())
        known = Known(frozenset(self.done), tuple(self.findings.observations), self.suspect)
        return replace(self.job, seconds=left, known=known)

    def _died(self, death: Death, running: Sequence[Begun], held: Sequence[Result | Observation]) -> Iterator[Event]:
        """What a death says of what was running."""
        kernel, op = self.findings.kernel, self.findings.op
        if not running:
            self.finished = True
            yield self._failed(f"{op}[*]", death)
            return
        last = running[-1]
        if death.outcome == "ended" and len(running) > 1:
            self.suspect = last
            return
        self.suspect = None
        self.done.add(last)
        if last.claim:
            yield Observation(last.claim, last.case, death.outcome, death.text, death.written)
            return
        yield from held
        yield self._failed(last.case, death)
        self.deaths += 1
        if self.deaths == MOST_DEATHS:
            self.job = replace(self.job, claims=False)
            text = f"left out, since {self.deaths} cases ended their process or hung"
            yield Result(kernel, op, f"{op}[other cases]", "claim", "skipped", text)

    def _failed(self, case: str, death: Death) -> Result:
        found = self.findings
        detail = f"{death.text} (seed {self.job.seed})"
        return Result(
            found.kernel, found.op, case, "claim", "failed", detail, found.device, found.mode, traceback=death.written
        )
