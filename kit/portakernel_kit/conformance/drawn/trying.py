"""Drawn requests put to kernels, turn by turn, in this process; what fails is made smaller."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from portakernel.contract.case import Case
from portakernel_kit.conformance.drawn.requests import Requests
from portakernel_kit.conformance.drawn.shrinking import shrunk
from portakernel_kit.conformance.drawn.spelling import Request
from portakernel_kit.conformance.observing.isolation import Asked
from portakernel_kit.conformance.observing.observation import Finished
from portakernel_kit.conformance.op_faults import OpFault
from portakernel_kit.conformance.result import Result
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.trial import synchronise
from portakernel_kit.conformance.unit import Unit
from portakernel_kit.conformance.venue import Venue, find_venue

# How long the first failure of a kernel in an aspect is made smaller; later ones are likely the same.
_SHRINKING_S = 10.0
# What is left to the rest of the machine by kernels that run on the CPU.
_MOST_MEMORY = 0.75


@dataclass(frozen=True, slots=True)
class Begun:
    """A kernel is put to a request: what ends the process next, it ended."""

    kernel: str
    turn: int
    request: str


@dataclass(frozen=True, slots=True)
class Drew:
    """A request's results, with the line that repeats it; ``is_last`` unless a smaller one that fails may follow."""

    begun: Begun
    results: tuple[Result, ...]
    request: str
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class Covered:
    """How many pairs of levels the requests of a kernel have asked for together, of those that can be."""

    kernel: str
    asked: int
    possible: int


Event = Begun | Drew | Covered | Finished


@dataclass(frozen=True, slots=True)
class Job:
    """Requests of several kernels: one of each in a turn, for so many seconds, or until every pair is asked for.

    Begins with the turn ``first``, in which the kernels ``done`` were asked.
    """

    asked: tuple[Asked, ...]
    seed: int
    seconds: float
    first: int = 0
    done: frozenset[str] = frozenset()

    def events(self) -> Iterator[Event]:
        """Runs it in this process."""
        deadline = time.monotonic() + self.seconds
        found = [tried for asked in self.asked if (tried := _tried(asked, self.seed, self.first)) is not None]
        _bound_memory(found)
        # tensors are small, and threads that wait for each other cost more (portakernel_kit.conformance.threads)
        torch.set_num_threads(1)
        turn, left = self.first, [kernel for kernel in found if kernel.name not in self.done]
        others = [kernel for kernel in found if kernel.name in self.done]
        while left or others:
            for kernel in list(left):
                if time.monotonic() > deadline:
                    break
                more = yield from kernel.next(turn, all_pairs=math.isinf(self.seconds))
                if not more:
                    left.remove(kernel)
                if kernel.is_lost():
                    yield Finished(lost=True)
                    return
            if time.monotonic() > deadline:
                break
            left, others, turn = [*left, *others], [], turn + 1
        for kernel in found:
            yield Covered(kernel.name, *kernel.covered())
        yield Finished()


def _tried(asked: Asked, seed: int, first: int) -> _Tried | None:
    now = asked.dispatcher()
    kernel = now.registry.kernels[asked.kernel]
    venue = find_venue(now, kernel, asked.device)
    if not isinstance(venue, Venue) or kernel.build is not None:
        return None
    return _Tried(Suite(now, kernel, venue, seed), first)


def _bound_memory(found: Sequence[_Tried]) -> None:
    """What a kernel asks for beyond the machine's memory is refused, which fails its case, and kills nobody."""
    if all(kernel.suite.venue.torch_device == "cpu" for kernel in found) and hasattr(resource, "RLIMIT_DATA"):
        most = int(_MOST_MEMORY * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))


class _Tried:
    """One kernel, and its requests."""

    def __init__(self, suite: Suite, first: int) -> None:
        self.suite, self.name = suite, suite.kernel.name
        self.requests = Requests(suite)
        self.units = iter(self.requests)
        self.shrunk: set[str] = set()
        for _ in range(first):
            next(self.units, None)

    def next(self, turn: int, *, all_pairs: bool) -> Generator[Event, None, bool]:
        """The events of the next request; returns whether there may be more of them."""
        if all_pairs and not self.requests.covering.left:
            return False
        try:
            unit = next(self.units, None)
        except OpFault as fault:
            kernel = self.suite.kernel
            result = Result(self.name, kernel.op, f"{kernel.op}[drawn {turn}]", "claim", "failed", str(fault))
            yield Drew(Begun(self.name, turn, ""), (result,), "")
            return False
        if unit is None or unit.case is None:
            return False
        line = str(self._request(unit, unit.case))
        begun = Begun(self.name, turn, line)
        yield begun
        results = tuple(self.suite.run(unit))
        failed = {result.aspect for result in results if result.status == "failed"} - self.shrunk
        yield Drew(begun, results, line, is_last=not failed)
        if failed:
            self.shrunk |= failed
            yield self._smaller(begun, unit, results, sorted(failed)[0])
        return True

    def _smaller(self, begun: Begun, unit: Unit, results: tuple[Result, ...], aspect: str) -> Drew:
        """The smallest request that fails in this aspect too."""
        last, case = results, unit.case
        assert case is not None

        def fails(tried: Case) -> bool:
            nonlocal last
            other = replace(unit, case=tried)
            try:
                if self.suite.why_refused(other):
                    return False
                found = tuple(self.suite.run(other))
            except Exception:  # noqa: BLE001 - a simpler case may be none of the op's, which is told in many ways
                return False
            failed = any(result.status == "failed" and result.aspect == aspect for result in found)
            last = found if failed else last
            return failed

        case = shrunk(self.suite.contract, case, fails, _SHRINKING_S)
        return Drew(begun, last, str(self._request(unit, case)))

    def _request(self, unit: Unit, case: Case) -> Request:
        return Request(self.name, case, dict(unit.dtypes), self.suite.seed)

    def covered(self) -> tuple[int, int]:
        """How many pairs were asked for, and could be."""
        return len(self.requests.covering.asked), self.requests.covering.possible

    def is_lost(self) -> bool:
        """Whether the device answers no more."""
        try:
            synchronise(torch.device(self.suite.venue.torch_device))
        except Exception:  # noqa: BLE001 - the plugin border: whatever a kernel left behind
            return True
        return False
