"""The kernel of ``int4_mm`` for more than a few rows, and for groups of any size: ``y.T = w @ x.T``.

Weights are decoded as the tensor cores' first operand. A program has a tile of ``BLOCK_N`` rows of the weight and
``BLOCK_M`` rows of x, and some blocks of 128 columns, those of one split. A weight of a group is rounded once to
x's dtype, which takes fewer operations than scaling so many sums; those of groups of any size are not, and sums are.
"""
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false
# mypy: disable-error-code="misc"
# Python's types do not see that Triton iterates over its ranges, and joins tuples.

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.matrix.in_flight import end_products
from portakernel_plugins.triton.matrix.int4_sums import finish
from portakernel_plugins.triton.matrix.int4_words import (
    factors_of,
    fragment_slots,
    in_fragments,
    in_place,
    pairs_in_order,
    raised_weights,
    weights,
)

_BLOCK = tl.constexpr(128)


@triton.jit
def _of_rows(x, m, M, row_stride, column, lane_stride, inside, WIDEN: tl.constexpr):
    """``(columns, BLOCK_M)`` of x, zeros outside."""
    at = x + m.to(tl.int64)[None, :] * row_stride + column.to(tl.int64)[:, None] * lane_stride
    found = tl.load(at, mask=(m < M)[None, :] & inside[:, None], other=0.0)
    return found.to(tl.float32) if WIDEN else found


@triton.jit(do_not_specialize=["M", "splits", "per_split"])
def product(
    x,  # (M, K), its columns in the order of the weight's
    weight,  # (ceil(K/128), N, 16) int32
    scales,  # (groups, N)
    zeros,  # (groups, N) uint8. None: 8
    group_of,  # (K,) int32, dense: the group of each column, where these are of any size. None: in equal parts
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
    WARPS: tl.constexpr,  # those of a program where its tile is laid out for wgmma. 0: elsewhere
    ASYNCHRONOUS: tl.constexpr,  # tensor cores are Hopper's
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    DESCRIBED: tl.constexpr,  # rows of x are copied by a descriptor
) -> None:
    """A tile of ``y.T``, or one part of its sums; the last part to be done adds all of them up."""
    DTYPE: tl.constexpr = x.dtype.element_ty
    PARTS: tl.constexpr = 128 // GROUP if GROUP > 0 else 1
    tile, split = tl.program_id(0), tl.program_id(1)
    across = tl.cdiv(N, BLOCK_N)
    first_n, first_m = tile % across * BLOCK_N, tile // across * BLOCK_M
    row = tl.arange(0, BLOCK_N)
    n, m = first_n + row, first_m + tl.arange(0, BLOCK_M)
    column = tl.arange(0, _BLOCK)
    first = split * per_split
    last = tl.minimum(first + per_split, tl.cdiv(K, _BLOCK))
    slot_n = first_n + fragment_slots(row, WARPS)
    at = slot_n[:, None] * 16 + tl.arange(0, 16)[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    described = x
    if DESCRIBED:
        described = tl.make_tensor_descriptor(x, [M, K], [x_row, 1], [BLOCK_M, _BLOCK])
    ahead = ()
    for part in tl.static_range(PARTS if GROUP != 0 else 0):
        group = first * PARTS + part if GROUP > 0 else 0
        ahead = ahead + factors_of(scales, zeros, group, row * 0, n, N, groups, False, ZERO, DTYPE, WIDEN)
    for block in tl.range(first, last, num_stages=STAGES):
        from_words = weight + tl.cast(block, tl.int64) * N * 16 + at
        words = tl.load(from_words, mask=(slot_n < N)[:, None] | WHOLE_TILES, other=0)
        words = pairs_in_order(in_fragments(words, BLOCK_N, WARPS), BLOCK_N, MFMA)
        k = block * _BLOCK + column
        inside = (k < K) | WHOLE_BLOCKS
        if DESCRIBED:
            rows = described.load([first_m, block * _BLOCK]).T
            rows = rows.to(tl.float32) if WIDEN else rows
        else:
            rows = _of_rows(x, m, M, x_row, k, x_lane, inside, WIDEN)
        if GROUP == 0:
            group = k // size if group_of is None else tl.load(group_of + k, mask=inside, other=0)
            w = raised_weights(words, BLOCK_N, DTYPE, ASSEMBLY, WIDEN)
            lowest = tl.min(tl.where(inside, group, 2147483647), axis=0)
            highest = tl.max(tl.where(inside, group, -1), axis=0)
            for one in range(lowest, highest + 1):
                scale, zero = factors_of(scales, zeros, one, row * 0, n, N, groups, False, ZERO, DTYPE, WIDEN)
                of_one = tl.where((group == one)[:, None], rows, 0.0).to(rows.dtype)
                found = tl.dot(w - zero[:, None], of_one, input_precision="ieee")
                acc += found * scale.to(tl.float32)[:, None]
        else:
            factors = ahead
            if GROUP > 0:
                wanted = tl.minimum(block + 1, last - 1) if WARPS > 0 else block
                ahead = ()
                for part in tl.static_range(PARTS):
                    ahead = ahead + factors_of(
                        scales, zeros, wanted * PARTS + part, row * 0, n, N, groups, False, ZERO, DTYPE, WIDEN
                    )
            factors = factors if WARPS > 0 else ahead
            w = weights(words, factors, BLOCK_N, PARTS, GROUP > 0, DTYPE, ASSEMBLY, WIDEN)
            acc = tl.dot(in_place(w, ASSEMBLY and WARPS > 0), rows, acc, input_precision="ieee")
            end_products(ASYNCHRONOUS)
    if GROUP < 0:
        acc *= ahead[0].to(tl.float32)[:, None]
    finish(
        acc, bias, y, parts, counters, tile, split, splits, first_m, first_n, M, N, y_row, y_lane, bias_lane, SPLIT,
        BLOCK_M, BLOCK_N,
    )  # fmt: skip
