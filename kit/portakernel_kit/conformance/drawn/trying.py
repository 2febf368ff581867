"""Drawn requests put to kernels, turn by turn, in this process; what fails is made smaller."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import torch

from portakernel.contract.case import Case
from portakernel_kit.conformance.drawn.requests import Requests
from portakernel_kit.conformance.drawn.shrinking import shrunk
from portakernel_kit.conformance.drawn.spelling import Request
from portakernel_kit.conformance.observing.isolation import Asked, bound_memory
from portakernel_kit.conformance.observing.observation import Finished
from portakernel_kit.conformance.op_faults import OpFault
from portakernel_kit.conformance.outcome import fault_of_op, result_of
from portakernel_kit.conformance.result import Result
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.trial import is_lost
from portakernel_kit.conformance.unit import Unit, drawn_name
from portakernel_kit.conformance.venue import Venue, find_venue

# How long the first failure of a kernel in an aspect is made smaller; later ones are likely the same.
_SHRINKING_S = 10.0


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
    """How many pairs of levels were asked for together, by requests put to a kernel, of those that can be."""

    kernel: str
    asked: int
    possible: int


Event = Begun | Drew | Covered | Finished


@dataclass(frozen=True, slots=True)
class Job:
    """Requests of several kernels: one of each in a turn, for so many seconds, or until ``all_pairs`` are asked for.

    Begins with the turn ``first``, in which the kernels ``done`` were asked. Of the turns before, processes that have
    ended asked those from ``left_out`` on.
    """

    asked: tuple[Asked, ...]
    seed: int
    seconds: float
    first: int = 0
    done: frozenset[str] = frozenset()
    all_pairs: bool = False
    left_out: int = 0

    def events(self) -> Iterator[Event]:
        """Runs it in this process."""
        deadline = time.monotonic() + self.seconds
        found = list(filter(None, (_tried(asked, self.seed, self.left_out) for asked in self.asked)))
        if all(kernel.suite.venue.torch_device == "cpu" for kernel in found):
            bound_memory()
        # tensors are small, and threads that wait for each other cost more (portakernel_kit.conformance.threads)
        torch.set_num_threads(1)
        left = list(found)
        for turn in itertools.count(self.first):
            for kernel in list(left):
                if turn == self.first and kernel.name in self.done:
                    continue
                if time.monotonic() > deadline:
                    break
                more = yield from kernel.ask(turn, deadline, all_pairs=self.all_pairs)
                if not more:
                    left.remove(kernel)
                if is_lost(kernel.suite.venue.torch_device):
                    yield Finished(lost=True)
                    return
            if not left or time.monotonic() > deadline:
                break
        for kernel in found:
            yield Covered(kernel.name, *kernel.covered())
        yield Finished()


def _tried(asked: Asked, seed: int, left_out: int) -> _Tried | None:
    now = asked.dispatcher()
    kernel = now.registry.kernels[asked.kernel]
    venue = find_venue(now, kernel, asked.device)
    return _Tried(Suite(now, kernel, venue, seed), left_out) if isinstance(venue, Venue) else None


class _Tried:
    """One kernel, and its requests, of which the first ``left_out`` are put to it by nobody."""

    def __init__(self, suite: Suite, left_out: int) -> None:
        self.suite, self.name = suite, suite.kernel.name
        self.requests = Requests(suite)
        self.shrunk: set[str] = set()
        self.left_out = left_out

    def ask(self, turn: int, deadline: float, *, all_pairs: bool) -> Generator[Event, None, bool]:
        """The events of the request of this turn; returns whether there may be more of them."""
        try:
            unit = self.requests.at(turn, all_pairs=all_pairs, deadline=deadline)
        except OpFault as fault:
            kernel = self.suite.kernel
            result = result_of(kernel, self.suite.venue, drawn_name(kernel.op, turn), fault_of_op(fault))
            yield Drew(Begun(self.name, turn, ""), (result,), "")
            return False
        if unit is None or unit.case is None:
            return False
        line = self._line(unit, unit.case)
        begun = Begun(self.name, turn, line)
        yield begun
        results = tuple(self.suite.run(unit))
        failed = {result.aspect for result in results if result.status == "failed"} - self.shrunk
        yield Drew(begun, results, line, is_last=not failed)
        if failed:
            self.shrunk |= failed
            yield self._smaller(begun, unit, unit.case, results, min(failed))
        return not self.suite.given_up

    def _smaller(self, begun: Begun, unit: Unit, case: Case, results: tuple[Result, ...], aspect: str) -> Drew:
        """The smallest request that fails in this aspect too."""
        last = results

        def fails(tried: Case) -> bool:
            nonlocal last
            other = replace(unit, case=tried)
            if self.requests.refusal(other):
                return False
            found = tuple(self.suite.run(other))
            failed = any(result.status == "failed" and result.aspect == aspect for result in found)
            last = found if failed else last
            return failed

        small = shrunk(self.suite.contract, case, fails, _SHRINKING_S)
        return Drew(begun, last, self._line(unit, small))

    def _line(self, unit: Unit, case: Case) -> str:
        return str(Request(self.name, case, dict(unit.dtypes), self.suite.seed))

    def covered(self) -> tuple[int, int]:
        """How many pairs were asked for, and could be."""
        return self.requests.pairs_from(self.left_out), self.requests.covering.possible
