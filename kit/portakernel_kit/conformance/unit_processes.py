"""A kernel's units in processes of their own, side by side: one that ends its process costs that unit alone."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from portakernel_kit.conformance.emulator import Emulator, Instructions
from portakernel_kit.conformance.observing.isolation import MOST_DEATHS, Asked, Death, run_apart
from portakernel_kit.conformance.observing.observation import Finished
from portakernel_kit.conformance.observing.side_by_side import side_by_side
from portakernel_kit.conformance.op_faults import OpFault
from portakernel_kit.conformance.outcome import Outcome
from portakernel_kit.conformance.result import Aspect, Result
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.trial import is_lost
from portakernel_kit.conformance.unit import Ran, Unit
from portakernel_kit.conformance.venue import Where

# Between two results a kernel may be compiled, several times where threads take turns; what takes longer hangs.
_PATIENCE_S = 600.0
# What runs apart, and what it is counted as when it ends its process.
_APART: dict[str, Aspect] = {"case": "forward", "autograd": "autograd", "repetition": "threads"}
_LOST = Death("ended", "it lost the device's context", "")


@dataclass(frozen=True, slots=True)
class Begun:
    """A unit begins: what ends the process next, it ended."""

    place: int


@dataclass(frozen=True, slots=True)
class Done:
    """A unit is done: what ran of it, if it is a case, and why the kernel cannot be used, if it said so.

    ``instructions`` are those that an emulator has executed in this process so far.
    """

    place: int
    ran: Ran | None
    unusable: str
    instructions: Instructions = field(default_factory=Instructions)


Event = Begun | Result | Done | Finished


@dataclass(frozen=True, slots=True)
class UnitsJob:
    """The units of one kernel at these places among all of them, but for those that another process has taken.

    To take one is to make a file of its number in the folder ``taken``: so a free process takes the next, and one that
    stands in for another goes on behind what ended that.
    """

    asked: Asked
    seed: int
    places: tuple[int, ...]
    taken: Path

    def events(self) -> Iterator[Event]:
        """Runs it in this process."""
        suite = Suite(*self.asked.placed(), self.seed)
        units = suite.units()
        for place in filter(self._take, self.places):
            suite.unusable = ""
            yield Begun(place)
            with self._counting_endless(suite.venue.emulator, place):
                yield from suite.run(units[place])
            if is_lost(suite.venue.torch_device):
                yield Finished(lost=True)
                return
            done = Done(place, suite.ran.get(units[place].name), suite.unusable)
            emulator = suite.venue.emulator
            yield done if emulator is None else replace(done, instructions=emulator.instructions)
        yield Finished()

    @contextmanager
    def _counting_endless(self, emulator: Emulator | None, place: int) -> Iterator[None]:
        """Has an emulator count, beside its own, the calls without an end that those of the other processes had."""
        if emulator is None:
            yield
            return
        emulator.endless = known = len(list(self.taken.glob("endless *")))
        try:
            yield
        finally:
            for number in range(emulator.endless - known):
                (self.taken / f"endless {place} {number}").touch()

    def _take(self, place: int) -> bool:
        try:
            (self.taken / str(place)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class UnitProcesses:
    """The results of a kernel's suite, whose units run in up to ``workers`` processes.

    Here stays what launches no kernel: units that the kernel refuses, and what its claims say of themselves. Where all
    are refused, no process is started. ``device`` is the one that the suite's venue was found for. Once so many units
    (``MOST_DEATHS``) have ended their process, those that still run go on, and no other is started.
    """

    def __init__(self, suite: Suite, device: Where, workers: int) -> None:
        self.suite, self.workers = suite, workers
        self.asked = Asked.of(suite.dispatcher, suite.kernel, device)
        self.units = suite.units()
        self.deaths: list[Death] = []

    def results(self) -> Iterator[Result]:
        """Every result, as it comes; coverage, which asks what ran, last."""
        apart = self._places()
        left = dict.fromkeys(apart)
        if apart:
            with tempfile.TemporaryDirectory() as folder:
                job, stopped = UnitsJob(self.asked, self.suite.seed, apart, Path(folder)), threading.Event()
                several = [self._restarted(job, stopped) for _ in range(min(self.workers, len(apart)))]
                with closing(side_by_side(several, stopped)) as events:
                    for place, event in events:
                        if isinstance(event, Result):
                            yield event
                        elif isinstance(event, Done):
                            left.pop(place, None)
                            self._take_in(event)
                        elif isinstance(event, Death):
                            left.pop(place, None)
                            yield self._died(self.units[place], event)
            yield from self._left([self.units[place] for place in left])
        for place, unit in enumerate(self.units):
            if place not in apart:
                yield from self.suite.run(unit)

    def _places(self) -> tuple[int, ...]:
        """Where among the units those stand that run apart."""
        served = [place for place, unit in enumerate(self.units) if unit.kind == "case" and self._is_served(unit)]
        others = [place for place, unit in enumerate(self.units) if unit.kind != "case" and unit.kind in _APART]
        return (*served, *others) if served else ()

    def _is_served(self, unit: Unit) -> bool:
        try:
            return self.suite.would_run(unit)
        except OpFault:  # which its results say
            return False

    def _restarted(self, job: UnitsJob, stopped: threading.Event) -> Iterator[tuple[int, Result | Done | Death]]:
        """The events of one process after the other, each with the place of its unit, until nothing is left to take."""
        while len(self.deaths) < MOST_DEATHS and not stopped.is_set():
            place: int | None = None
            for event in run_apart(job, _PATIENCE_S, stopped):
                if isinstance(event, Begun):
                    place = event.place
                elif isinstance(event, Finished) and not event.lost:
                    return
                elif isinstance(event, Finished | Death):
                    death = _LOST if isinstance(event, Finished) else event
                    self.deaths.append(death)
                    if place is None:  # nothing that it was asked for is to blame, and another would fare alike
                        return
                    yield place, death
                elif place is not None:
                    yield place, event

    def _take_in(self, done: Done) -> None:
        """What coverage asks for."""
        if done.ran is not None:
            self.suite.ran[self.units[done.place].name] = done.ran
        self.suite.unusable = done.unusable or self.suite.unusable
        if self.suite.venue.emulator is not None:
            self.suite.venue.emulator.instructions.join(done.instructions)

    def _died(self, unit: Unit, death: Death) -> Result:
        """A unit that ended its process; coverage takes it for run, being told of it here."""
        outcome = Outcome(_APART[unit.kind], "failed", death.text, traceback=death.written)
        return self.suite.result(unit.name, outcome)

    def _left(self, units: Sequence[Unit]) -> Iterator[Result]:
        """Of units that no process came to: why. One fails, so that nobody takes the kernel for checked."""
        last = self.deaths[-1] if self.deaths else Death("ended", "no process took it", "")
        for place, unit in enumerate(units):
            text = f"left out after {len(self.deaths)} processes of this kernel's; of the last: {last.text}"
            outcome = Outcome("claim", "skipped" if place else "failed", text, traceback="" if place else last.written)
            yield self.suite.result(unit.name, outcome)
