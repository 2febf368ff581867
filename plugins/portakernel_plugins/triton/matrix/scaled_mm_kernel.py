"""The kernel of ``scaled_mm``: sums of a tile, with the scales of what few terms share, and what follows them."""
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false, reportPossiblyUnboundVariable=false
# Python's types do not see that Triton iterates over its ranges, and which branches of compile-time values it takes.

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.matrix.ahead import wait_for_turn
from portakernel_plugins.triton.matrix.products import (
    halves,
    operand,
    part_of_tile,
    read_block,
    result,
    tile_corner,
    write_block,
)
from portakernel_plugins.triton.matrix.scaled_operands import (
    block_scales,
    decoded_block,
    elements_of,
    format_of,
    group_of,
    group_scales,
    scaled_part,
    scales_of_tile,
    sum_factors,
    terms_at_once,
)

# Terms after which sums that are cut are added up in float32.
_MOST_CUT = tl.constexpr(128)


@triton.jit
def _sums(
    z,
    a,
    b,
    scales_a,
    scales_b,
    row,
    column,
    first,  # the step of the first terms
    steps,
    BLOCK_K: tl.constexpr,
    FORM_A: tl.constexpr,
    FORM_B: tl.constexpr,
    EVEN_A: tl.constexpr,
    EVEN_B: tl.constexpr,
    SHARED_A: tl.constexpr,
    SHARED_B: tl.constexpr,
    FORMAT_A: tl.constexpr,
    FORMAT_B: tl.constexpr,
    CAST_A: tl.constexpr,
    CAST_B: tl.constexpr,
    SWIZZLED: tl.constexpr,
    HOW: tl.constexpr,
    NUMBERS: tl.constexpr,
    PROMOTED: tl.constexpr,
):
    """``z`` and the tile's sums; without the scales that are applied at the end."""
    BLOCK_M: tl.constexpr = z.shape[0]
    BLOCK_N: tl.constexpr = z.shape[1]
    PACKED_A: tl.constexpr = elements_of(FORMAT_A)
    PACKED_B: tl.constexpr = elements_of(FORMAT_B)
    GROUP_A: tl.constexpr = group_of(SHARED_A)
    GROUP_B: tl.constexpr = group_of(SHARED_B)
    COUNT_A: tl.constexpr = scales_of_tile(SHARED_A, BLOCK_M)
    COUNT_B: tl.constexpr = scales_of_tile(SHARED_B, BLOCK_N)
    TERMS: tl.constexpr = terms_at_once(BLOCK_K, SHARED_A, SHARED_B)
    ahead_a = block_scales(scales_a, row, first * BLOCK_K, BLOCK_M, SHARED_A)
    ahead_b = block_scales(scales_b, column, first * BLOCK_K, BLOCK_N, SHARED_B)
    tl.assume(steps > 0)  # or else a loop for none were compiled too
    for step in range(steps):
        for i in tl.static_range(BLOCK_K // TERMS):
            inner = (first + step) * BLOCK_K + i * TERMS
            # read where they are needed, the next sums would wait for them
            of_rows, of_columns = ahead_a, ahead_b
            ahead_a = block_scales(scales_a, row, inner + TERMS, BLOCK_M, SHARED_A)
            ahead_b = block_scales(scales_b, column, inner + TERMS, BLOCK_N, SHARED_B)
            if HOW == "decoded":
                left = decoded_block(
                    a, scales_a, row, inner, BLOCK_M, TERMS, FORM_A, EVEN_A, SHARED_A, SWIZZLED, FORMAT_A, CAST_A,
                    NUMBERS,
                )  # fmt: skip
                right = decoded_block(
                    b, scales_b, column, inner, BLOCK_N, TERMS, FORM_B, EVEN_B, SHARED_B, SWIZZLED, FORMAT_B, CAST_B,
                    NUMBERS,
                ).T  # fmt: skip
            else:
                left = read_block(a, row, inner // PACKED_A, BLOCK_M, TERMS // PACKED_A, FORM_A, EVEN_A, False)
                right = read_block(b, column, inner // PACKED_B, BLOCK_N, TERMS // PACKED_B, FORM_B, EVEN_B, True)
            if HOW == "scaled":
                left_scales = group_scales(scales_a, row, inner, BLOCK_M, TERMS, GROUP_A, SWIZZLED)
                right_scales = group_scales(scales_b, column, inner, BLOCK_N, TERMS, GROUP_B, SWIZZLED)
                if SHARED_A == "nvfp4":
                    left_scales = left_scales.to(tl.float8e4nv, bitcast=True)
                    right_scales = right_scales.to(tl.float8e4nv, bitcast=True)
                z = tl.dot_scaled(
                    left, left_scales, format_of(FORMAT_A), right, right_scales, format_of(FORMAT_B), acc=z
                )  # fmt: skip
            elif PROMOTED or COUNT_A + COUNT_B > 0:
                # said to be cut, the sum is not taken for the beginning of the next
                part = tl.dot(left, right, input_precision="ieee", max_num_imprecise_acc=min(TERMS, _MOST_CUT))
                z += scaled_part(part, of_rows, of_columns, COUNT_A, COUNT_B)
            else:
                z = tl.dot(left, right, z, input_precision="ieee")
    return z


@triton.jit(do_not_specialize=["rows", "steps", "splits", "share"])
def scaled_product(
    a: tl.tensor,
    b: tl.tensor,
    scale_a: tl.tensor,
    scale_b: tl.tensor,
    global_scale_a: tl.tensor,  # None: 1
    global_scale_b: tl.tensor,  # None: 1
    bias: tl.tensor,  # None: 0
    y: tl.tensor,  # (rows, columns), contiguous
    parts: tl.tensor,  # (splits, tiles, BLOCK_M * BLOCK_N) float32. None: one split
    counters: tl.tensor,
    bias_stride: tl.tensor,
    splits: tl.tensor,
    share: tl.tensor,  # steps of a split
    rows: tl.tensor,
    columns: tl.tensor,
    inners_a: tl.tensor,  # bytes
    inners_b: tl.tensor,
    groups_a: tl.tensor,  # scales of a row
    groups_b: tl.tensor,
    steps: tl.tensor,
    a_stride: tl.tensor,
    b_stride: tl.tensor,
    scale_a_outer: tl.tensor,
    scale_a_inner: tl.tensor,
    scale_b_outer: tl.tensor,
    scale_b_inner: tl.tensor,
    SHARED_A: tl.constexpr,  # the format: which elements share a scale
    SHARED_B: tl.constexpr,
    FORMAT_A: tl.constexpr,
    FORMAT_B: tl.constexpr,
    CAST_A: tl.constexpr,
    CAST_B: tl.constexpr,
    SWIZZLED: tl.constexpr,
    HOW: tl.constexpr,  # float8 and scaled: as they are; decoded: as NUMBERS
    NUMBERS: tl.constexpr,
    PROMOTED: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    FLATTEN: tl.constexpr,
    FORM_A: tl.constexpr,
    FORM_B: tl.constexpr,
    FORM_Y: tl.constexpr,
    EVEN_A: tl.constexpr,
    EVEN_B: tl.constexpr,
    OVERLAP: tl.constexpr = False,  # pyright: ignore[reportArgumentType] - programs begin before the kernel before ends
) -> None:
    """Tiles of ``y``, or parts of their terms."""
    wait_for_turn(OVERLAP)
    TERMS: tl.constexpr = terms_at_once(BLOCK_K, SHARED_A, SHARED_B)
    left = operand(a, rows, inners_a, a_stride, 1, BLOCK_M, TERMS // elements_of(FORMAT_A), FORM_A)
    right = operand(b, columns, inners_b, b_stride, 1, BLOCK_N, TERMS // elements_of(FORMAT_B), FORM_B)
    scales_a = scale_a, rows, groups_a, scale_a_outer, scale_a_inner
    scales_b = scale_b, columns, groups_b, scale_b_outer, scale_b_inner
    into = result(y, rows, columns, BLOCK_M, BLOCK_N // 2, FORM_Y)
    tiles = tl.cdiv(rows, BLOCK_M) * tl.cdiv(columns, BLOCK_N)
    for item in tl.range(tl.program_id(0), tiles * splits, tl.num_programs(0), flatten=FLATTEN):
        tile, split = item % tiles, item // tiles
        first_row, first_column = tile_corner(tile, rows, columns, BLOCK_M, BLOCK_N, GROUP)
        z = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
        begin = split * share if SPLIT else 0
        here = tl.minimum(share, steps - begin) if SPLIT else steps
        z = _sums(
            z, left, right, scales_a, scales_b, first_row, first_column, begin, here, BLOCK_K, FORM_A, FORM_B, EVEN_A,
            EVEN_B, SHARED_A, SHARED_B, FORMAT_A, FORMAT_B, CAST_A, CAST_B, SWIZZLED, HOW, NUMBERS, PROMOTED,
        )  # fmt: skip
        if SPLIT:
            z, last = part_of_tile(z, parts, counters, tile, tiles, split, splits, first_row, rows)
            if last:
                _write(
                    z, into, scales_a, scales_b, global_scale_a, global_scale_b, bias, bias_stride, first_row,
                    first_column, rows, columns, SHARED_A, SHARED_B, FORM_Y,
                )  # fmt: skip
        else:
            _write(
                z, into, scales_a, scales_b, global_scale_a, global_scale_b, bias, bias_stride, first_row,
                first_column, rows, columns, SHARED_A, SHARED_B, FORM_Y,
            )  # fmt: skip


@triton.jit
def _write(
    z,
    into,
    scales_a,
    scales_b,
    global_scale_a,
    global_scale_b,
    bias,
    bias_stride,
    first_row,
    first_column,
    rows,
    columns,
    SHARED_A: tl.constexpr,
    SHARED_B: tl.constexpr,
    FORM_Y: tl.constexpr,
):
    """What follows a tile's sums: scales of rows and of whole operands, and the bias; a half after the other."""
    WIDTH: tl.constexpr = z.shape[1] // 2
    of_rows = sum_factors(scales_a, global_scale_a, first_row, z.shape[0], SHARED_A)
    sides = halves(z)
    for side in tl.static_range(2):
        first = first_column + side * WIDTH
        of_columns = sum_factors(scales_b, global_scale_b, first, WIDTH, SHARED_B)
        value = sides[side] * of_rows[:, None] * of_columns[None, :]
        if bias is not None:
            column = (first + tl.arange(0, WIDTH)).to(tl.int64)
            added = tl.load(bias + column * bias_stride, mask=column < columns, other=0.0)
            value += added.to(tl.float32)[None, :]
        write_block(into, first_row, first, rows, columns, value, FORM_Y)
