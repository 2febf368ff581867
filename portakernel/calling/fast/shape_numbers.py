"""Numbers for what an op's shapes decide: worked out once for each shape, and from then on looked up."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

# Shapes that are remembered: those of a process's layers many times over. Calls whose sizes never come again do not
# let it grow; what was remembered is worked out anew then.
MAX_SHAPES = 1024


class Verdicts:
    """Numbers for the outcomes of ``decide(*given)``, the same for the same outcome; 0 where that is None.

    However many kernels claim an op, a call asks their limits and checks once for its shapes.
    """

    def __init__(self, decide: Callable[..., tuple[Any, ...] | None]) -> None:
        self.known: dict[tuple[Any, ...], int] = {}
        self.decide = decide
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._next = itertools.count(1)

    def judge(self, *given: Any) -> int:
        """The number for ``given``, remembered under that tuple in ``known``."""
        outcome = self.decide(*given)
        if outcome is None:
            return 0
        # atomic: of two threads that come first together, both get the same
        number = self._numbers.setdefault(outcome, next(self._next))
        if len(self.known) >= MAX_SHAPES:
            self.known.clear()
        self.known[given] = number
        return number
