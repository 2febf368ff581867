"""Parts of lists (``shares.py``) in memory, and what they come to.

A program keeps two parts at most, each at a place of its own: one of a list that goes on behind its share, and one of a
list that began before it. Parts are added up in their order, so that equal calls give equal bits.
"""
# pyright: reportGeneralTypeIssues=false
# Tuples grow by concatenation, the one way that Triton knows.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel_plugins.triton.attention.head_parts import no_sums, plus, store_rows, times
from portakernel_plugins.triton.exponentials import finite_or_zero


def places(like: Tensor, programs: int, rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Memory for the parts of so many programs, tiles of ``rows``: values, and ``log2(sum(2 ** s))`` of each row."""
    parts = 2 * programs
    values = like.new_empty((parts, rows, width), dtype=torch.float32)
    return values, like.new_empty((parts, rows), dtype=torch.float32)


def noted_lists(like: Tensor, programs: int) -> Tensor:
    """Memory for what ``note_list`` leaves."""
    return like.new_empty((programs, 4), dtype=torch.int32)


@triton.jit
def keep_part(values, shares, program, goes_on, live, acc, found, E: tl.constexpr, REST_E: tl.constexpr):
    """Leaves a program's part of a list, which ``goes_on`` behind its share or does not, in its place."""
    place = 2 * program + goes_on.to(tl.int32)
    rows = (place * found.shape[0] + tl.arange(0, found.shape[0])).to(tl.int64)
    store_rows(values, rows * E, 1, live, acc, REST_E, E)
    tl.store(shares + rows, found, mask=live)


@triton.jit
def note_list(lists, program, first_row, count, tile, last_part):
    """Leaves, for a launch that adds up parts, which tile of a sequence goes on behind a program's share, and how far.

    The list begins in that share: every list that has parts is noted once. ``count`` is 0 where there is none.
    """
    at = lists + 4 * program
    tl.store(at, first_row)
    tl.store(at + 1, count)
    tl.store(at + 2, tile)
    tl.store(at + 3, last_part)


@triton.jit
def nth_noted(lists, n, programs, SHARES: tl.constexpr):
    """In whose share the list number ``n`` of those begins that ``programs`` have noted; the last one's, without it.

    ``SHARES`` is a power of two, of as many at least. What the last program's share begins it also ends.
    """
    number = tl.arange(0, SHARES)
    noted = tl.load(lists + 4 * number + 1, mask=number < programs, other=0) > 0
    before = tl.cumsum(noted.to(tl.int32), 0)
    return tl.minimum(tl.sum((before <= n).to(tl.int32), 0), programs - 1)


@triton.jit
def _sums_of_parts(values, rows, there, weights, first_lane, BLOCK: tl.constexpr, E: tl.constexpr):
    """The parts' rows ``(PARTS * ROWS)`` times their weights ``(PARTS, ROWS)``, added up."""
    lane = first_lane + tl.arange(0, BLOCK)
    mask = there[:, None] & (lane < E)[None, :]
    # from where all programs see it
    block = tl.load(values + rows[:, None] * E + lane[None, :], mask=mask, other=0.0, cache_modifier=".cg")
    return tl.sum(block.reshape(weights.shape[0], weights.shape[1], BLOCK) * weights[:, :, None], axis=0)


@triton.jit
def merged(
    values,
    shares,
    first_part,
    last_part,
    first_row,
    live_rows,
    first_lane,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    E: tl.constexpr,
    BLOCK_E: tl.constexpr,
    REST_E: tl.constexpr,
):
    """What the parts of a list come to, ``PARTS`` of them at a time, and ``log2(sum(2 ** s))``.

    Of the tile's ``BLOCK_M`` rows, ``live_rows`` of which there are, ``ROWS`` from the first on, and of them the lanes
    from ``first_lane`` on.
    """
    item = tl.arange(0, PARTS * ROWS)
    row = first_row + item % ROWS
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros_like(top)
    acc = no_sums(ROWS, BLOCK_E, REST_E)
    for first in range(first_part, last_part + 1, PARTS):
        part = first + item // ROWS
        there = (part <= last_part) & (row < live_rows)
        place = 2 * part + (part < last_part).to(tl.int32)
        at = (place * BLOCK_M + row).to(tl.int64)
        logs = tl.load(shares + at, mask=there, other=float("-inf"), cache_modifier=".cg").reshape(PARTS, ROWS)
        higher = tl.maximum(top, tl.max(logs, axis=0))
        base = finite_or_zero(higher)
        weights = tl.exp2(logs - base[None, :])
        kept = tl.exp2(top - base)
        more = (_sums_of_parts(values, at, there, weights, first_lane, BLOCK_E, E),)
        if REST_E > 0:
            more = more + (_sums_of_parts(values, at, there, weights, first_lane + BLOCK_E, REST_E, E),)
        acc = plus(times(acc, kept, REST_E), more, REST_E)
        total = total * kept + tl.sum(weights, axis=0)
        top = higher
    acc = times(acc, 1.0 / tl.where(total == 0.0, 1.0, total), REST_E)
    return acc, top + tl.log2(total)
