"""Sequences of many lengths, and which of them a test may look at in one call: those that stand apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

# Numbers of queries and keys of each sequence, and of rows behind the last one.
RAGGED = {
    "one": ([(130, 200)], 0),
    "several": ([(1, 64), (129, 129), (200, 70), (64, 300)], 0),
    "without queries or keys": ([(0, 50), (100, 0), (0, 0), (128, 128), (0, 7)], 9),
    "rows behind": ([(70, 90)], 150),
    "many": ([(n % 7, n % 5 + 1) for n in range(12)], 3),
    "none": ([], 5),
}


def spans(pairs: Sequence[tuple[int, int]]) -> list[tuple[slice, slice]]:
    """The rows of queries and of keys of each sequence."""
    ends = [list(itertools.accumulate((pair[side] for pair in pairs), initial=0)) for side in (0, 1)]
    return list(zip(*(itertools.starmap(slice, itertools.pairwise(of)) for of in ends), strict=True))


def apart(count: int) -> list[range]:
    """The numbers of so many sequences in groups of every third one; one group at least."""
    return [range(first, count, 3) for first in range(max(1, min(count, 3)))]
