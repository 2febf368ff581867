"""The share of the time that copies and checks may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# What a check is expected to take of which nothing is known, by the bytes and operations of its call: so many a second
# (a product of 128 rows with 4096 x 28672 weights took 0.78 s beside an H200's 16 cores, 2026-11-27), and never less.
_UNKNOWN_PER_S, _UNKNOWN_S = 1e10, 0.02


@dataclass(frozen=True, slots=True)
class _Check:
    seconds: float
    work: int


class Budget:
    """Time spent against time passed. What a kernel's last check took is what its next one of its size is expected to.

    ``work`` is the bytes and operations of a call: a check may not come before the share allows what it will take.
    """

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self._share, self._clock = share, clock
        self._began = clock()
        self._spent = 0.0
        self._last: dict[tuple[str, str], _Check] = {}
        self._of: dict[tuple[str, str], float] = {}

    def fits(self, op: str, kernel: str, work: int) -> bool:
        """Whether a check of that kernel would leave what was spent within the share."""
        last = self._last.get((op, kernel))
        if last is None:
            expected = max(_UNKNOWN_S, work / _UNKNOWN_PER_S)
        else:
            expected = last.seconds * max(1.0, work / max(last.work, 1))
        return self._spent + expected <= self._share * (self._clock() - self._began)

    def spend(self, op: str, kernel: str, work: int, seconds: float) -> None:
        """Takes note of what a check with its copies took."""
        self._spent += seconds
        self._last[op, kernel] = _Check(seconds, work)
        self._of[op, kernel] = self.spent(op, kernel) + seconds

    def spent(self, op: str, kernel: str) -> float:
        """What that kernel's checks took so far."""
        return self._of.get((op, kernel), 0.0)
