"""The share of the time that copies and checks may take."""

from __future__ import annotations

from collections.abc import Callable

# What a check is expected to take of which nothing is known; it may not come before the share allows as much.
_UNKNOWN_S = 0.02


class Budget:
    """Time spent against time passed. What a kernel's last check took is what its next one is expected to take."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self._share, self._clock = share, clock
        self._began = clock()
        self._spent = 0.0
        self._took: dict[tuple[str, str], float] = {}
        self._of: dict[tuple[str, str], float] = {}

    def fits(self, op: str, kernel: str) -> bool:
        """Whether a check of that kernel would leave what was spent within the share."""
        expected = self._spent + self._took.get((op, kernel), _UNKNOWN_S)
        return expected <= self._share * (self._clock() - self._began)

    def spend(self, op: str, kernel: str, seconds: float) -> None:
        """Takes note of what a check with its copies took."""
        self._spent += seconds
        self._took[op, kernel] = seconds
        self._of[op, kernel] = self.spent(op, kernel) + seconds

    def spent(self, op: str, kernel: str) -> float:
        """What that kernel's checks took so far."""
        return self._of.get((op, kernel), 0.0)
