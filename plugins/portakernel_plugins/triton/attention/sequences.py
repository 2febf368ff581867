"""Sequences of different lengths in one row of tokens: which of them a tile is of, where that begins, how long it is.

``ends`` are ``cu_seqlens``: sequence ``n`` has the rows from ``ends[n]`` to before ``ends[n + 1]``. Its tiles are
numbered from ``ends[n] * PACKED // BLOCK + min(n, ends[n])`` on: each sequence before it that is not empty may have a
tile that is not full, and there are no more of these than rows. So many programs are launched as the numbers of rows
and of sequences need at most; each finds its own tile, and one that finds none returns. Nothing is read on the host,
and a captured graph takes other lengths.

Rows behind the last sequence are one more that sees nothing: their results are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import cdiv


@triton.jit
def first_tile(row, sequence, PACKED: tl.constexpr, BLOCK: tl.constexpr):
    """The number of the first tile of a ``sequence`` that begins with ``row``."""
    return row * PACKED // BLOCK + tl.minimum(sequence, row)


@triton.jit
def tile_of_sequence(tile, ends, other_ends, sequences, rows, PACKED: tl.constexpr, BLOCK: tl.constexpr):
    """Which tile of its sequence ``tile`` is; of that the first row and how many there are, on both sides; its number.

    Tiles are of the side of ``ends``, which has ``rows`` in all; ``PACKED`` heads make as many rows of a tile.
    """
    # By halves, though many beginnings could be looked at together: a sum over lanes would not be known to be the same
    # in all of them, and then every address had registers of its own (on gfx1201 with gradients more than there are).
    sequence = tl.cast(0, tl.int32)
    stop = sequences + 1
    while stop - sequence > 1:
        middle = (sequence + stop) // 2
        row = tl.load(ends + middle).to(tl.int64)
        begun = first_tile(row, middle, PACKED, BLOCK) <= tile
        sequence = tl.where(begun, middle, sequence)
        stop = tl.where(begun, stop, middle)
    behind = tl.minimum(sequence + 1, sequences)
    first = tl.load(ends + sequence).to(tl.int64)
    end = tl.load(ends + behind).to(tl.int64)
    end = tl.where(sequence == sequences, rows, end)
    other_first = tl.load(other_ends + sequence).to(tl.int64)
    other_end = tl.load(other_ends + behind).to(tl.int64)
    tile -= first_tile(first, sequence, PACKED, BLOCK)
    rows = (end - first).to(tl.int32)
    return tile.to(tl.int32), first, rows, other_first, (other_end - other_first).to(tl.int32), sequence


@triton.jit
def length_around(row, ends, sequences):
    """How many rows the sequence has that ``row`` is of; 0 where it is of none."""
    sequence = tl.cast(0, tl.int32)
    stop = sequences + 1
    while stop - sequence > 1:
        middle = (sequence + stop) // 2
        begun = tl.load(ends + middle) <= row
        sequence = tl.where(begun, middle, sequence)
        stop = tl.where(begun, stop, middle)
    behind = tl.minimum(sequence + 1, sequences)
    return tl.load(ends + behind) - tl.load(ends + sequence)


@dataclass(frozen=True, slots=True)
class Sequences:
    """A call's ``cu_seqlens``, contiguous, and how many queries and keys one sequence has at most."""

    of_queries: Tensor
    of_keys: Tensor
    longest: tuple[int, int]

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, of_queries: Tensor, of_keys: Tensor, longest: tuple[int | None, int | None]
    ) -> Sequences:
        """``q``: (S, H, D), ``k``: (T, G, D); where no bound of lengths is given, one sequence may have all tokens."""
        queries, keys = (len(x) if most is None else min(len(x), most) for x, most in zip((q, k), longest, strict=True))
        return cls(of_queries.contiguous(), of_keys.contiguous(), (queries, keys))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.of_queries) - 1


def ends_of(sequences: Sequences | None) -> tuple[Tensor | None, Tensor | None, int | None]:
    """As kernels take them."""
    return (None, None, None) if sequences is None else (sequences.of_queries, sequences.of_keys, sequences.count)


def tile_count(rows: int, packed: int, block: int, sequences: Sequences | None) -> int:
    """How many tiles ``rows`` of so many heads are; with sequences how many they are at most."""
    if sequences is None:
        return cdiv(rows * packed, block)
    return rows * packed // block + min(rows, sequences.count) + 1
