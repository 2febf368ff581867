"""The kernel of ``int4_mm``: weights are decoded as the tensor cores' first operand, ``y.T = w @ x.T``.

A program has a tile of ``BLOCK_N`` rows of the weight and ``BLOCK_M`` rows of x, and some blocks of 128 columns, those
of one split. Sums of a group are scaled in float32. Of several splits each leaves its part, and the last one to finish
adds all up in their order, so that equal calls give equal bits.
"""
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.matrix.int4_words import pairs_in_order, raised_weights, raised_zeros

_BLOCK = tl.constexpr(128)


@triton.jit
def _of_rows(x, m, M, row_stride, column, lane_stride, inside, WIDEN: tl.constexpr):
    """``(columns, BLOCK_M)`` of x, zeros outside."""
    at = x + m.to(tl.int64)[None, :] * row_stride + column.to(tl.int64)[:, None] * lane_stride
    found = tl.load(at, mask=(m < M)[None, :] & inside[:, None], other=0.0)
    return found.to(tl.float32) if WIDEN else found


@triton.jit(do_not_specialize=["M", "splits", "per_split"])
def product(
    x,  # (M, K)
    weight,  # (ceil(K/128), N, 16) int32
    scales,  # (groups, N)
    zeros,  # (groups, N) uint8. None: 8
    order,  # (K,) or (2, K) int32, dense. None: columns stand in the order of x's
    bias,  # (N,)
    y,  # (M, N)
    parts,  # (splits, tiles, BLOCK_M, BLOCK_N) float32. None: one split
    counters,  # (tiles,) zeros
    M,
    N,
    K,
    groups,
    size,  # columns of a group, where these are of any size
    splits,
    per_split,
    x_row,
    x_lane,
    y_row,
    y_lane,
    bias_lane,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    SPLIT: tl.constexpr,
    WHOLE_TILES: tl.constexpr,  # N is a multiple of BLOCK_N
    WHOLE_BLOCKS: tl.constexpr,  # K is one of 128
    MFMA: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """A tile of ``y.T``, or one part of its sums; the last part to be done adds all of them up."""
    DTYPE: tl.constexpr = x.dtype.element_ty
    PARTS: tl.constexpr = 128 // GROUP if GROUP > 0 else 1
    WIDTH: tl.constexpr = 128 // PARTS
    UNROLL: tl.constexpr = 8 if BLOCK_M <= 16 else 1  # parts that are read at once, as far as registers go
    tile = tl.program_id(0)
    split = tl.program_id(1)
    across = tl.cdiv(N, BLOCK_N)
    n = tile % across * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tile // across * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, WIDTH)
    first = split * per_split
    last = tl.minimum(first + per_split, tl.cdiv(K, _BLOCK))
    at = n[:, None] * 16 + tl.arange(0, 16)[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for block in tl.range(first, last, num_stages=STAGES):
        from_words = weight + tl.cast(block, tl.int64) * N * 16 + at
        words = tl.load(from_words, mask=(n < N)[:, None] | WHOLE_TILES, other=0)
        words = pairs_in_order(words, BLOCK_N, MFMA)
        if GROUP == 0:
            k = block * _BLOCK + column
            inside = (k < K) | WHOLE_BLOCKS
            group = k // size
            place = k
            if order is not None:
                place = tl.load(order + k, mask=inside, other=0)
                group = tl.load(order + K + k, mask=inside, other=0)
            rows = _of_rows(x, m, M, x_row, place, x_lane, inside, WIDEN)
            w = raised_weights(words, 0, 1, BLOCK_N, DTYPE, ASSEMBLY, WIDEN)
            lowest = tl.min(tl.where(inside, group, 2147483647), axis=0)
            highest = tl.max(tl.where(inside, group, -1), axis=0)
            for one in range(lowest, highest + 1):
                z = raised_zeros(zeros, one, groups, n, N, ZERO, DTYPE, WIDEN)
                scale = tl.load(scales + tl.cast(one, tl.int64) * N + n, mask=n < N, other=0.0).to(tl.float32)
                of_one = tl.where((group == one)[:, None], rows, 0.0).to(rows.dtype)
                acc += tl.dot(w - z[:, None], of_one, input_precision="ieee") * scale[:, None]
        else:
            for part in tl.static_range(PARTS):
                k = block * _BLOCK + part * WIDTH + column
                inside = (k < K) | WHOLE_BLOCKS
                place = k
                if order is not None:
                    place = tl.load(order + k, mask=inside, other=0)
                rows = _of_rows(x, m, M, x_row, place, x_lane, inside, WIDEN)
                group = block * PARTS + part if GROUP > 0 else 0
                w = raised_weights(words, part, PARTS, BLOCK_N, DTYPE, ASSEMBLY, WIDEN)
                z = raised_zeros(zeros, group, groups, n, N, ZERO, DTYPE, WIDEN)
                known = (n < N) & (group < groups)
                scale = tl.load(scales + tl.cast(group, tl.int64) * N + n, mask=known, other=0.0).to(tl.float32)
                acc += tl.dot(w - z[:, None], rows, input_precision="ieee") * scale[:, None]
    to_part = tl.arange(0, BLOCK_M)[None, :] * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    if SPLIT:
        tiles = tl.num_programs(0)
        mine = parts + (tl.cast(split, tl.int64) * tiles + tile) * BLOCK_M * BLOCK_N
        live = (m < M)[None, :]
        tl.store(mine + to_part, acc, mask=live)
        tl.debug_barrier()  # all of the part is there before it is counted
        done = tl.atomic_add(counters + tile, 1, sem="acq_rel")
        if done == splits - 1:
            tl.store(counters + tile, 0)
            total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            for other in tl.range(0, splits, loop_unroll_factor=UNROLL):
                theirs = parts + (tl.cast(other, tl.int64) * tiles + tile) * BLOCK_M * BLOCK_N
                total += tl.load(theirs + to_part, mask=live, other=0.0, cache_modifier=".cg")
            _write(y, total, bias, m, M, n, N, y_row, y_lane, bias_lane)
    else:
        _write(y, acc, bias, m, M, n, N, y_row, y_lane, bias_lane)


@triton.jit
def _write(y, acc, bias, m, M, n, N, y_row, y_lane, bias_lane):
    """A tile of the result, transposed, with its bias."""
    if bias is not None:
        acc += tl.load(bias + n.to(tl.int64) * bias_lane, mask=n < N, other=0.0).to(tl.float32)[:, None]
    at = y + m.to(tl.int64)[None, :] * y_row + n.to(tl.int64)[:, None] * y_lane
    tl.store(at, acc.to(y.dtype.element_ty), mask=(m < M)[None, :] & (n < N)[:, None])
