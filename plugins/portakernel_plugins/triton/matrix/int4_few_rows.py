"""The kernel of ``int4_mm`` for few rows: ``y.T = w @ x.T``, where reading the weight is what takes the time.

A program has ``BLOCK_N`` rows of the weight, and of its blocks of 128 columns those of one split. Tensor cores multiply
eight columns of ``x.T`` at least: where x has fewer rows, these hold several slices of K side by side, each for as many
rows of the first operand, so that a program needs no other one's sums to have all of K. What scales and zeros the next
blocks have is read one step ahead: nobody waits for them.
"""
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false
# mypy: disable-error-code="assignment, misc"
# ruff: noqa: RUF005
# Python's types do not see that Triton iterates over its ranges, or joins tuples; it has no unpacking in them.

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.matrix.ahead import wait_for_turn
from portakernel_plugins.triton.matrix.in_flight import end_products
from portakernel_plugins.triton.matrix.int4_sums import finish
from portakernel_plugins.triton.matrix.int4_words import (
    factors_of,
    fragment_slots,
    in_fragments,
    in_place,
    pairs_in_order,
    weights,
)

_BLOCK = tl.constexpr(128)


@triton.jit(do_not_specialize=["M", "splits", "share"])
def few_rows(
    x,  # (M, K), its columns in the order of the weight's
    weight,  # (ceil(K/128), N, 16) int32
    scales,  # (groups, N)
    zeros,  # (groups, N) uint8. None: 8
    bias,  # (N,)
    y,  # (M, N)
    parts,  # (splits, tiles, BLOCK_M, BLOCK_N) float32. None: one split
    counters,  # (tiles,) zeros
    M,
    N,
    K,
    groups,
    splits,
    share,  # blocks of a slice, a multiple of BLOCKS
    x_row,
    x_lane,
    y_row,
    y_lane,
    bias_lane,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    SPLIT: tl.constexpr,
    WHOLE_TILES: tl.constexpr,  # N is a multiple of BLOCK_N
    WHOLE_BLOCKS: tl.constexpr,  # K is one of 128, and all slices have as many blocks
    MFMA: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    WIDEN: tl.constexpr,
    WARPS: tl.constexpr,  # those of a program where its tile is laid out for mma. 0: elsewhere
    ASYNCHRONOUS: tl.constexpr,  # tensor cores are Hopper's
    SLICES: tl.constexpr,
    PIECES: tl.constexpr,  # the products that a tile's rows of x are in
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,  # of columns, in a step
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,  # programs begin before the kernel before has ended
) -> None:
    """A tile of ``y.T``, or one part of its sums; the last part to be done adds all of them up."""
    DTYPE: tl.constexpr = x.dtype.element_ty
    PARTS: tl.constexpr = 128 // GROUP if GROUP > 0 else 1
    SCALED: tl.constexpr = PARTS > 1  # weights, and not the sums of so few columns
    ROWS: tl.constexpr = SLICES * BLOCK_N
    HEIGHT: tl.constexpr = BLOCK_M // PIECES
    COLUMNS: tl.constexpr = SLICES * HEIGHT
    WHOLE: tl.constexpr = WHOLE_TILES and (WHOLE_BLOCKS or GROUP < 0)
    tile, split = tl.program_id(0), tl.program_id(1)
    across, blocks = tl.cdiv(N, BLOCK_N), tl.cdiv(K, _BLOCK)
    first_n, first_m = tile % across * BLOCK_N, tile // across * BLOCK_M
    first = split * SLICES * share
    row, column, lane = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, _BLOCK)
    n, slice_of_row = first_n + row % BLOCK_N, row // BLOCK_N * share
    m, slice_of_column = first_m + column % HEIGHT * PIECES, column // HEIGHT * share
    slot = fragment_slots(row, WARPS)
    slot_n, slice_of_slot = first_n + slot % BLOCK_N, slot // BLOCK_N * share
    to_words = ((slice_of_slot.to(tl.int64) * N + slot_n) * 16)[:, None] + tl.arange(0, 16)[None, :]
    place = slice_of_column.to(tl.int64)[None, :] * _BLOCK + lane[:, None]
    to_rows = m.to(tl.int64)[None, :] * x_row + place * x_lane
    sums = ()
    for _ in tl.static_range(PIECES):
        sums = sums + (tl.zeros((ROWS, COLUMNS), tl.float32),)
    group_of_row = slice_of_row * PARTS if GROUP > 0 else row * 0
    wait_for_turn(OVERLAP)
    ahead = ()
    for part in tl.static_range(BLOCKS * PARTS if GROUP > 0 else 1):
        group = first * PARTS + part if GROUP > 0 else 0
        ahead = ahead + factors_of(scales, zeros, group, group_of_row, n, N, groups, WHOLE, ZERO, DTYPE, WIDEN)
    for step in tl.range(0, share, BLOCKS, num_stages=STAGES):
        factors = ahead
        if GROUP > 0:
            ahead = ()
            wanted = (first + (tl.minimum(step + BLOCKS, share - BLOCKS) if WARPS > 0 else step)) * PARTS
            for part in tl.static_range(BLOCKS * PARTS):
                ahead = ahead + factors_of(
                    scales, zeros, wanted + part, group_of_row, n, N, groups, WHOLE, ZERO, DTYPE, WIDEN
                )
        factors = factors if WARPS > 0 else ahead
        for i in tl.static_range(BLOCKS):
            block = first + step + i
            known = (slot_n < N) & (block + slice_of_slot < blocks) | (WHOLE_TILES and WHOLE_BLOCKS)
            from_words = weight + tl.cast(block, tl.int64) * N * 16
            words = tl.load(from_words + to_words, mask=known[:, None], other=0)
            words = pairs_in_order(in_fragments(words, ROWS, WARPS), ROWS, MFMA)
            own = factors
            if GROUP > 0:
                own = factors[2 * PARTS * i : 2 * PARTS * (i + 1)]
            w = weights(words, own, ROWS, PARTS, SCALED, DTYPE, ASSEMBLY, WIDEN)
            w = in_place(w, ASSEMBLY and WARPS > 0)
            done, sums = sums, ()
            inside = block * _BLOCK + place < K
            for piece in tl.static_range(PIECES):
                live = (m + piece < M)[None, :]
                from_rows = x + tl.cast(block, tl.int64) * _BLOCK * x_lane + piece * tl.cast(x_row, tl.int64)
                rows = tl.load(from_rows + to_rows, mask=live & (inside | WHOLE_BLOCKS), other=0.0)
                rows = rows.to(tl.float32) if WIDEN else rows
                if GROUP == 128:
                    found = tl.dot(w, rows, input_precision="ieee")
                    sums = sums + (done[piece] + found * own[0].to(tl.float32)[:, None],)
                else:
                    sums = sums + (tl.dot(w, rows, done[piece], input_precision="ieee"),)
                    end_products(ASYNCHRONOUS)
    if GROUP < 0:
        done, sums = sums, ()
        for piece in tl.static_range(PIECES):
            sums = sums + (done[piece] * ahead[0].to(tl.float32)[:, None],)
    acc = sums[0]
    if PIECES == 2:
        acc = tl.join(sums[0], sums[1]).reshape(ROWS, 2 * COLUMNS)
    elif PIECES == 4:
        acc = tl.join(tl.join(sums[0], sums[2]), tl.join(sums[1], sums[3])).reshape(ROWS, 4 * COLUMNS)
    if SLICES > 1:
        own = (row // BLOCK_N)[:, None] == (column // HEIGHT)[None, :]
        acc = tl.where(own, acc, 0.0).reshape(SLICES, BLOCK_N, SLICES, HEIGHT)
        acc = tl.sum(tl.sum(acc, 0), 1)
    finish(
        acc, bias, y, parts, counters, tile, split, splits, first_m, first_n, M, N, y_row, y_lane, bias_lane, SPLIT,
        BLOCK_M, BLOCK_N,
    )  # fmt: skip
