"""What is known of unchanged kernels, and which requests are put to a fault of theirs: first those that find most."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from portakernel_kit.conformance.unit import Unit
from portakernel_kit.faults.fault import DIED, HUNG, LOAD, Fault, Judged
from portakernel_kit.faults.pool import Ran
from portakernel_kit.faults.trying import Absent, Loaded

# So many requests that found earlier faults of the file come first.
_MOST_KILLERS = 3
# What a process of a kernel that has to be compiled says when it cannot be.
_UNCOMPILED = ("does not compile", "CompilationError", "cannot be compiled")

Lines = Mapping[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Measured:
    """A unit that an unchanged kernel passes: how long it takes, and the lines of the package that it runs."""

    kernel: str
    unit: Unit
    seconds: float
    lines: Lines

    def runs(self, fault: Fault) -> bool:
        """Whether one of the lines of the fault's statement is among them."""
        place = fault.place
        return any(place.first <= line <= place.last for line in self.lines.get(fault.file, ()))


@dataclass
class Evidence:
    """The units of all kernels, and which of them found faults."""

    seed: int
    measured: dict[str, list[Measured]] = field(default_factory=dict[str, list[Measured]])
    loading: dict[str, Lines] = field(default_factory=dict[str, Lines])
    absent: dict[str, str] = field(default_factory=dict[str, str])
    places: dict[str, tuple[str, str | None]] = field(default_factory=dict[str, tuple[str, str | None]])
    kills: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])

    def add(self, kernel: str, ran: Ran) -> str:
        """Takes a kernel's measurement; why it fails as it is, where it does."""
        for event in ran.events:
            if isinstance(event, Absent):
                self.absent[kernel] = event.why
            elif isinstance(event, Loaded):
                self.loading[kernel], self.places[kernel] = event.lines, (event.place, event.mode)
        failed = [ended.failed for ended in ran.ended if ended.failed is not None]
        if failed:
            return f"{failed[0].case} {failed[0].aspect}: {failed[0].detail}"
        if ran.ending != "done":
            return f"{ran.begun.unit if ran.begun else 'loading'}: {ran.text}"
        units = [Measured(kernel, one.unit, one.seconds, one.lines) for one in ran.ended if one.ran]
        if not units and kernel not in self.absent:
            self.absent[kernel] = "none of its requests runs here"
        if kernel not in self.absent:
            self.measured[kernel] = units
        return ""

    def slowest_s(self, fault: Fault) -> float:
        """How long the slowest unit takes that may be put to it."""
        return max((one.seconds for one in self._all(fault)), default=0.0)

    def why_not_run(self, fault: Fault) -> str:
        """Why no request comes to the fault here; empty where one does, or where that cannot be seen."""
        here = [name for name in fault.kernels if name in self.measured]
        if not here:
            reasons = dict.fromkeys(self.absent.get(name, "not measured") for name in fault.kernels)
            return f"its kernels do not run here: {'; '.join(reasons)}"
        if self._is_untold(fault) or self._loads(fault, here) or any(self._running(fault)):
            return ""
        return "its line does not run here"

    def steps(self, fault: Fault) -> tuple[tuple[str, Unit], ...]:
        """What is put to it, in order: what found faults of its file, what runs its line, all else."""
        every = list(self._all(fault))
        told = list(self._running(fault)) or every
        source = random.Random(f"{self.seed} {fault.id}")
        found = {id(one): self.kills[fault.file, one.kernel, one.unit.name] for one in told}
        killers = sorted((one for one in told if found[id(one)]), key=lambda one: -found[id(one)])[:_MOST_KILLERS]
        ordered = dict.fromkeys(
            (one.kernel, one.unit.name) for one in chain(killers, _mixed(told, source), _mixed(every, source))
        )
        units = {(one.kernel, one.unit.name): one.unit for one in every}
        return tuple((kernel, units[kernel, name]) for kernel, name in ordered)

    def drawn_for(self, fault: Fault) -> tuple[str, ...]:
        """The kernels for which more is drawn: those of which some request runs its line, or all."""
        running = tuple(dict.fromkeys(one.kernel for one in self._running(fault)))
        return running or tuple(name for name in fault.kernels if name in self.measured)

    def judge(self, fault: Fault, ran: Ran) -> Judged:
        """What came of the requests that were put to it; one that was not measured proves nothing by itself."""
        asked, is_new = len(ran.ended), bool(ran.new_request)
        for event in ran.events:
            if isinstance(event, Absent):
                return Judged(fault, "killed", LOAD, event.kernel, "", event.why, asked, ran.seconds)
        for ended in ran.ended:
            if (failed := ended.failed) is not None:
                self.kills[fault.file, ended.kernel, ended.unit.name] += not is_new
                by = LOAD if any(text in failed.detail for text in _UNCOMPILED) else failed.aspect
                return Judged(
                    fault, "killed", by, ended.kernel, failed.case, failed.detail, asked, ran.seconds, ended.again
                )
        if ran.ending != "done":
            by = DIED if ran.ending == "died" else HUNG
            begun = ran.begun
            if begun is None:
                return Judged(fault, "killed", LOAD, "", "", ran.text, asked, ran.seconds)
            self.kills[fault.file, begun.kernel, begun.unit] += not is_new
            return Judged(fault, "killed", by, begun.kernel, begun.unit, ran.text, asked, ran.seconds, begun.request)
        requests = [ended for ended in ran.ended if ended.unit.case is not None and not ended.is_new]
        refused = [ended for ended in requests if not ended.ran]
        if refused and len(refused) == len(requests):
            detail = f"refuses all {len(refused)} requests, which it served: {refused[0].why}"
            return Judged(fault, "killed", "coverage", refused[0].kernel, "", detail, asked, ran.seconds)
        detail = (
            f"refuses {len(refused)} of {len(requests)} requests, which it served: {refused[0].why}" if refused else ""
        )
        return Judged(fault, "alive", detail=detail, asked=asked, seconds=ran.seconds)

    def _is_untold(self, fault: Fault) -> bool:
        """Whether its line cannot be seen: in C++, and in what is compiled for a device; an interpreter's can."""
        python = fault.file.endswith(".py")
        return fault.untold and not (python and all(self.places[n][1] for n in fault.kernels if n in self.measured))

    def _loads(self, fault: Fault, kernels: Iterable[str]) -> bool:
        lines = (self.loading.get(name, {}).get(fault.file, frozenset()) for name in kernels)
        return any(fault.place.first <= line <= fault.place.last for seen in lines for line in seen)

    def _all(self, fault: Fault) -> Iterator[Measured]:
        return (one for name in fault.kernels for one in self.measured.get(name, ()))

    def _running(self, fault: Fault) -> Iterator[Measured]:
        return (one for one in self._all(fault) if one.runs(fault))


def _mixed(measured: Iterable[Measured], source: random.Random) -> Iterator[Measured]:
    """Cases and drawn requests in turn, each in an order of its own."""
    cases, drawn = list[Measured](), list[Measured]()
    for one in measured:
        (drawn if one.unit.kind == "drawn" else cases).append(one)
    source.shuffle(cases)
    source.shuffle(drawn)
    return (one for pair in zip_longest(cases, drawn) for one in pair if one is not None)
