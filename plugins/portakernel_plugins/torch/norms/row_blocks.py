"""Rows in blocks, for chains of operators on CPUs: what they leave between them stays in a cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

# 1 MiB of float32: in a cache of today's cores, and long enough for what a dozen operators cost to begin with.
BLOCK_ELEMENTS = 1 << 18


def row_blocks(leading: Sequence[int], width: int) -> Iterator[tuple[slice, ...]]:
    """Indices into leading dimensions that together cover them, of about ``BLOCK_ELEMENTS`` each.

    ``width`` is how many elements follow the leading dimensions. Of those, each block holds one index of the first
    ones, a run of the next, and all of the rest: a view whatever the strides are.
    """
    if not leading:
        return iter([()])
    steps = [math.prod(leading[place + 1 :]) * width for place in range(len(leading))]
    cut = next((place for place, step in enumerate(steps) if step <= BLOCK_ELEMENTS), len(leading) - 1)
    run = max(1, BLOCK_ELEMENTS // max(1, steps[cut]))
    runs = [slice(start, start + run) for start in range(0, leading[cut], run)]
    ones = [[slice(place, place + 1) for place in range(size)] for size in leading[:cut]]
    return itertools.product(*ones, runs)
