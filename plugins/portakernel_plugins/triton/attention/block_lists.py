"""Lists of blocks that loops go through: of each row how many there are, and where each begins.

A loop's place counts the rows of the blocks on its list one after the other, as if they were all there is: what it has
of a block at a time may be a part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import program_index

# What kernels take where there is no list.
_NONE = (None, None, 0, 0, 0)


@triton.jit
def tile_of_program(tiles, key_heads, HEADS: tl.constexpr):
    """The tile of queries that a program has, its head and key head, int32, and its batch.

    Heads of one key head stand side by side, so that they read its keys together; then tiles, the last ones first,
    which see most under a causal mask.
    """
    program = program_index()
    head = (program % HEADS).to(tl.int32)
    program = program // HEADS
    tile = tiles - 1 - (program % tiles).to(tl.int32)
    program = program // tiles
    key_head = (program % key_heads).to(tl.int32)
    return tile, head + key_head * HEADS, key_head, program // key_heads


@triton.jit
def first_entry(listed, stop, LISTED: tl.constexpr):
    """What a list begins with; 0 where it has nothing, or there is none."""
    entry = tl.cast(0, tl.int32)
    if LISTED > 0:
        entry = tl.load(listed, mask=stop > 0, other=0)
    return entry


@triton.jit
def begin_of(place, entry, listed, stop, BLOCK: tl.constexpr, LISTED: tl.constexpr):
    """Where a loop's ``BLOCK`` rows begin: at its place, or in the block of ``LISTED`` that is on the list there.

    Also what is on the list at the next place: it is read while this one is computed, else each would wait for it.
    """
    if LISTED > 0:
        ahead = tl.load(listed + tl.minimum(place + BLOCK, stop - 1) // LISTED)
        place = entry * LISTED + place % LISTED
        entry = ahead
    return place, entry


@triton.jit
def list_of(counts, indices, batch, head, row, batch_rows, head_rows, room, LISTED: tl.constexpr):
    """A row's list, and how many rows its blocks have, all of them being whole."""
    at = tl.cast(batch, tl.int64) * batch_rows + tl.cast(head, tl.int64) * head_rows + row
    return indices + at * room, tl.load(counts + at) * LISTED


@dataclass(frozen=True, slots=True)
class Lists:
    """Counts and indices, contiguous but for what is one for all batches or heads; how far apart these are, in rows."""

    counts: Tensor
    indices: Tensor
    batch_rows: int
    head_rows: int

    @classmethod
    def of(cls, pair: tuple[Tensor, Tensor] | None) -> Lists | None:
        """Of counts ``(B, H, R)`` and indices ``(B, H, R, C)``; None where there is no such list."""
        if pair is None:
            return None
        counts, indices = pair
        for dim in (0, 1):
            if counts.stride(dim) == indices.stride(dim) == 0:
                counts, indices = counts.narrow(dim, 0, 1), indices.narrow(dim, 0, 1)
        batches, heads, rows = counts.shape
        return cls(
            counts.contiguous(),
            indices.contiguous(),
            heads * rows if batches > 1 else 0,
            rows if heads > 1 else 0,
        )

    @property
    def arguments(self) -> tuple[Tensor, Tensor, int, int, int]:
        """As kernels take them, with how much room a list has."""
        return self.counts, self.indices, self.batch_rows, self.head_rows, self.indices.shape[3]


def arguments_of(lists: Lists | None) -> tuple[Tensor | None, Tensor | None, int, int, int]:
    """As kernels take them."""
    return _NONE if lists is None else lists.arguments
