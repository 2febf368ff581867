"""What a process does with one copy of a plugin: measure the unchanged kernels, or put requests to a faulty one."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from portakernel.registry.kernel import Kernel
from portakernel_kit.conformance.drawn.requests import Requests
from portakernel_kit.conformance.drawn.spelling import Request, parse_request
from portakernel_kit.conformance.observing.isolation import Asked, bound_memory, write_to
from portakernel_kit.conformance.op_faults import OpFault
from portakernel_kit.conformance.result import Result
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.unit import Unit
from portakernel_kit.conformance.venue import Unavailable, Venue, find_venue
from portakernel_kit.faults.copies import PackageCopy, own_caches
from portakernel_kit.faults.lines import LineTracer

# What calls from several threads at once are traced by themselves; autograd's threads are torch's.
_UNTRACED = frozenset(("repetition",))
# What a kernel that refuses a request passes all the same.
_OF_REFUSED = frozenset(("purity", "view"))
# What is asked of manifests and of the kit, whatever the source says.
_UNASKED = frozenset(("coverage", "unbuilt"))


@dataclass(frozen=True, slots=True)
class Loaded:
    """The kernel's modules are there; ``lines`` have run meanwhile."""

    kernel: str
    place: str
    mode: str | None
    lines: Mapping[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])


@dataclass(frozen=True, slots=True)
class Absent:
    """The kernel cannot run here, and why."""

    kernel: str
    why: str


@dataclass(frozen=True, slots=True)
class Beginning:
    """A unit begins: what ends the process next, it ended. ``request``: the line of one that was not measured."""

    kernel: str
    unit: str
    request: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """A unit has run: the result that failed first, if any did, and the lines that ran.

    ``ran`` unless all of it was skipped, for ``why``: the kernel refuses it. ``is_new``: it was not measured.
    """

    kernel: str
    unit: Unit
    failed: Result | None
    ran: bool
    seconds: float
    why: str = ""
    again: str = ""
    lines: Mapping[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing else comes."""


Event = Loaded | Absent | Beginning | Ended | Done


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What all processes of a run share."""

    packages: Asked
    seed: int
    module: str
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Room:
    """What one process at a time has for itself: a copy of the package, and caches that begin as ``filled`` are."""

    copy: PackageCopy
    caches: Path
    filled: Path | None = None


@dataclass(frozen=True, slots=True)
class Measuring:
    """A kernel as it is: its cases for ``cases_s`` seconds, then drawn requests for ``drawing_s``, until one fails."""

    kernel: str
    drawing_s: float
    cases_s: float

    def events(self, of: Circumstances, room: Room) -> Iterator[Event]:
        """Runs it in this process."""
        tracer = LineTracer(room.copy.folder)
        with tracer.running():
            tried = _Tried.of(of, self.kernel, of.seed)
        if isinstance(tried, Absent):
            yield tried
            return
        yield tried.loaded(tracer.taken())
        start = time.monotonic()
        units = [unit for unit in tried.suite.units() if unit.kind not in _UNASKED]
        random.Random(of.seed).shuffle(units)  # so that of many some of each kind are measured
        for unit in units:
            if time.monotonic() > start + self.cases_s:
                break
            yield from tried.run(unit, tracer)
        requests, start = iter(Requests(tried.suite)), time.monotonic()
        while time.monotonic() < start + self.drawing_s:
            try:
                drawn = next(requests, None)
            except OpFault:  # the contract's, and no kernel's
                return
            if drawn is None:
                return
            yield from tried.run(drawn, tracer)


@dataclass(frozen=True, slots=True)
class Putting:
    """Units put to kernels in this order for ``seconds``, one at least, until one fails.

    While there is time after these, requests are drawn for the kernels ``more``, which nobody has put to them before.
    With a ``witness``, a kernel and the line of a request, that request alone is put to it.
    """

    steps: tuple[tuple[str, Unit], ...]
    seconds: float
    witness: tuple[str, str] | None = None
    more: tuple[str, ...] = ()

    def events(self, of: Circumstances, room: Room) -> Iterator[Event]:
        """Runs it in this process."""
        del room
        start, last = None, None
        made = cache(lambda name, seed: _Tried.of(of, name, seed))
        for count, (tried, unit) in enumerate(chain(self._steps(made, of), self._more(made, of.seed + 1))):
            if isinstance(tried, Absent):
                yield tried
                return
            if tried is not last:
                yield tried.loaded({})
            start, last = time.monotonic() if start is None else start, tried
            if count and time.monotonic() > start + self.seconds:
                return
            yield from tried.run(unit, None, is_new=self.witness is None and tried.suite.seed != of.seed)

    def _steps(self, made: Maker, of: Circumstances) -> Iterator[tuple[_Tried | Absent, Unit]]:
        """What was measured, or the witness."""
        if self.witness is None:
            yield from ((made(kernel, of.seed), unit) for kernel, unit in self.steps)
            return
        kernel, line = self.witness
        kernels = of.packages.dispatcher().registry.kernels
        request = parse_request(line, kernels)
        yield made(kernel, request.seed), request.unit(kernels[kernel].op)

    def _more(self, made: Maker, seed: int) -> Iterator[tuple[_Tried, Unit]]:
        """Requests of another seed than those that were measured, one of each kernel in turn."""
        kernels = [tried for tried in (made(name, seed) for name in self.more) if isinstance(tried, _Tried)]
        left = [(tried, iter(Requests(tried.suite))) for tried in kernels]
        while left:
            for one in list(left):
                tried, requests = one
                try:
                    unit = next(requests, None)
                except OpFault:  # the contract's, and no kernel's
                    unit = None
                if unit is None:
                    left.remove(one)
                else:
                    yield tried, unit


class _Tried:
    """One kernel at its venue, with its modules loaded."""

    def __init__(self, suite: Suite, venue: Venue) -> None:
        self.suite, self.venue, self.kernel = suite, venue, suite.kernel

    @classmethod
    def of(cls, of: Circumstances, name: str, seed: int) -> _Tried | Absent:
        """The kernel; ``Absent`` where its modules do not load, or find nothing here to run on."""
        asked = of.packages
        now = asked.dispatcher()
        kernel = now.registry.kernels.get(name)
        if kernel is None:
            return Absent(name, "its plugin lists it no more")
        venue = find_venue(now, kernel, asked.device)
        if isinstance(venue, Unavailable):
            return Absent(name, venue.reason)
        try:
            with venue.enter():
                for entry in filter(None, (kernel.entry, kernel.backward)):
                    now.entry(entry)
        except Exception as error:  # noqa: BLE001 - the plugin border: a fault may make its import raise anything
            return Absent(name, f"{type(error).__name__}: {error}")
        return cls(Suite(now, kernel, venue, seed), venue)

    def loaded(self, lines: Mapping[str, frozenset[int]]) -> Loaded:
        """That it is."""
        return Loaded(self.kernel.name, str(self.venue), self.venue.mode, lines)

    def run(self, unit: Unit, tracer: LineTracer | None, *, is_new: bool = False) -> Iterator[Event]:
        """One unit, up to the first result that fails."""
        yield Beginning(self.kernel.name, unit.name, _spelled(self.kernel, unit, self.suite.seed) if is_new else "")
        start = time.monotonic()
        results, failed = list[Result](), None
        with tracer.running() if tracer is not None and unit.kind not in _UNTRACED else nullcontext():
            for result in self.suite.run(unit):
                results.append(result)
                if result.status == "failed":
                    failed = result
                    break
        ran = any(result.status != "skipped" and result.aspect not in _OF_REFUSED for result in results)
        why = "" if ran else "; ".join(dict.fromkeys(result.detail for result in results if result.detail))
        again = _spelled(self.kernel, unit, self.suite.seed) if failed is not None else ""
        lines = tracer.taken() if tracer is not None else {}
        yield Ended(self.kernel.name, unit, failed, ran, time.monotonic() - start, why, again, lines, is_new)


# Of a kernel's name and a seed.
Maker = Callable[[str, int], _Tried | Absent]


def _spelled(kernel: Kernel, unit: Unit, seed: int) -> str:
    """The line that repeats a drawn request."""
    if unit.kind != "drawn" or unit.case is None:
        return ""
    return str(Request(kernel.name, unit.case, dict(unit.dtypes), seed))


def work(pipe: Connection, job: Measuring | Putting, of: Circumstances, room: Room, log: Path) -> None:
    """What the process does: the job's events go into ``pipe``, what is written, below Python too, to ``log``."""
    log.unlink(missing_ok=True)  # another fault's
    write_to(log)
    own_caches(room.caches, room.filled)
    room.copy.use()
    if of.packages.device is None or of.packages.device.torch_device == "cpu":
        bound_memory(of.share)
    torch.set_num_threads(1)  # as the kit does (portakernel_kit.conformance.threads)
    for event in job.events(of, room):
        pipe.send(event)
        if isinstance(event, Absent) or (isinstance(event, Ended) and event.failed is not None):
            break
    pipe.send(Done())
    sys.stdout.flush()
    os._exit(0)  # a faulty kernel may have left anything behind: nothing is taken apart
