"""Which placement is looked at next: of those that are called, the kernel whose checks took the least time so far."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from portakernel.calling.caller import OpCaller
from portakernel.calling.key_table import Placement
from portakernel.claims.float64 import is_test
from portakernel.claims.request import Phase
from portakernel.shadow.budget import Budget
from portakernel.words.dtypes import DTYPES

# Placements that are remembered as looked at.
_MOST_KEYS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A placement whose next call may be looked at, and its place in its op's table."""

    caller: OpCaller
    key: Any
    placement: Placement

    @property
    def op(self) -> str:
        """The op's name."""
        return self.caller.contract.op

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.placement.kernel.name

    @property
    def work(self) -> int:
        """The bytes and operations of a call, as the op's contract has them; of lengths in tensors, sizes."""
        contract, request = self.caller.contract, self.placement.decision.request
        itemsizes = {name: DTYPES[request.dtypes[name]].itemsize for name in contract.names if name in request.dtypes}
        try:
            cost = contract.cost(request.dims, itemsizes, request.values)
        except (KeyError, TypeError):  # lengths that lie in a tensor, which a request does not hold
            return math.prod(max(size, 1) for size in request.dims.values())
        return cost.bytes + cost.flops


class Candidates:
    """Whose turn it is."""

    def __init__(self) -> None:
        self._of_kernels = Counter[tuple[str, str]]()
        self._of_keys = Counter[tuple[str, Any]]()
        self._calls: dict[tuple[str, Any], int] = {}

    def next(self, callers: Iterable[OpCaller], budget: Budget) -> Candidate | None:
        """Of what was called since this was asked last the one whose kernel spent least; None of nothing.

        Where nothing was called it is one of all. Kernels have equal shares of the time, not of the turns, and what the
        budget has no room for yet comes after what it has: one whose checks take long keeps nobody waiting.
        """
        calls, ranked = dict[tuple[str, Any], int](), list[tuple[tuple[Any, ...], Candidate]]()
        for one in _candidates(callers):
            at = one.op, one.key
            calls[at] = one.placement.count()
            new = calls[at] - self._calls.get(at, 0)
            by_kernel = one.op, one.kernel
            unaffordable = not budget.fits(one.op, one.kernel, one.work)
            spent = budget.spent(one.op, one.kernel)
            ranked.append(((unaffordable, new == 0, spent, self._of_kernels[by_kernel], self._of_keys[at], -new), one))
        self._calls = calls
        return min(ranked, key=lambda pair: pair[0])[1] if ranked else None

    def looked_at(self, one: Candidate) -> None:
        """Counts a turn."""
        if len(self._of_keys) >= _MOST_KEYS:
            self._of_keys.clear()
        self._of_kernels[one.op, one.kernel] += 1
        self._of_keys[one.op, one.key] += 1


def _candidates(callers: Iterable[OpCaller]) -> Iterator[Candidate]:
    for caller in callers:
        for key, placement in list(caller.table.entries.items()):
            request = placement.decision.request
            # the reference is what others are held against; what is recorded or dissolved in a graph is not looked at
            forward = request.phase is Phase.INFERENCE and not request.compiled
            if forward and not placement.kernel.is_reference and request.device is not None and not is_test(request):
                yield Candidate(caller, key, placement)
