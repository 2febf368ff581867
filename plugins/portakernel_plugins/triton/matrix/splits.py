"""Sums that several programs share: each has some of the terms, and the last one to finish adds up all parts.

It does so in their order, so that equal calls give equal bits whoever it is. So few tiles have enough programs to read
their operands at once.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import cdiv
from portakernel_plugins.triton.attention.counters import counters
from portakernel_plugins.triton.launching.configurations import Configuration

# More parts take longer to add up than they save, and so do those of fewer steps.
_MOST_PARTS, _FEWEST_STEPS = 32, 2


@triton.jit
def sum_of_parts(
    part,
    live,  # which elements are any, as wide as the part or one wide
    parts,  # (splits, tiles, elements) float32
    counters,  # (tiles,) zeros, which are left as zeros
    tile,
    tiles,
    split,
    splits,
    offset,  # where each element of a part is
    ELEMENTS: tl.constexpr,
    UNROLL: tl.constexpr,  # parts that are read at once, as far as registers go
):
    """The sum of a tile's parts, and whether it is: for all programs but the last it is their own part."""
    mine = parts + (tl.cast(split, tl.int64) * tiles + tile) * ELEMENTS
    tl.store(mine + offset, part, mask=live)
    tl.debug_barrier()  # all of the part is there before it is counted
    last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == splits - 1
    total = part
    if last:
        tl.store(counters + tile, 0)
        total = tl.zeros(part.shape, tl.float32)
        for other in tl.range(0, splits, loop_unroll_factor=UNROLL):
            theirs = parts + (tl.cast(other, tl.int64) * tiles + tile) * ELEMENTS
            total += tl.load(theirs + offset, mask=live, other=0.0, cache_modifier=".cg")
    return total, last


def split_count(tiles: int, steps: int, how: Configuration) -> tuple[int, int]:
    """How many programs share the ``steps`` of each of ``tiles`` tiles, and how many steps each has at most."""
    wanted = min(max(1, how.programs // tiles), max(1, steps // _FEWEST_STEPS), _MOST_PARTS)
    share = max(1, cdiv(steps, wanted))
    return max(1, cdiv(steps, share)), share


def room_for_parts(splits: int, tiles: int, elements: int, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """``parts`` and ``counters`` for so many splits of so many tiles; none for one."""
    if splits == 1:
        return None, None
    parts = torch.empty((splits, tiles, elements), dtype=torch.float32, device=device)
    return parts, counters(device, tiles)
