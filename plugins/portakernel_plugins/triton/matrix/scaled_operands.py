"""The operands of ``scaled_mm`` as its kernels see them: codes, scales, and what scales are applied to.

Scales of a tensor or a row are applied to sums. Scales of 128 terms are applied to the sums of these, in float32. Those
of fewer terms (mxfp8, mxfp4, nvfp4) are the hardware's where it has them, and else multiply the elements: numbers of
bfloat16 hold the products.
"""
# pyright: reportAssignmentType=false
# In a jit function, `name: tl.constexpr = 1` makes a constexpr of the number.

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.matrix.products import read_block
from portakernel_plugins.triton.quantize.float8 import widened, widened_power

# Terms that share a scale, where those are few.
GROUPS = {"mxfp8": 32, "mxfp4": 32, "nvfp4": 16}
BLOCKS = ("block_1x128", "block_128x128")


@triton.constexpr_function
def group_of(shared: str) -> int:
    """Terms that share a scale that elements are multiplied with; 0 where it is applied to sums."""
    return 16 if shared == "nvfp4" else 32 if shared in ("mxfp8", "mxfp4") else 0


@triton.constexpr_function
def scales_of_tile(shared: str, block: int) -> int:
    """How many scales the sums of 128 terms of ``block`` rows have: one each, one for 128 of them, or none."""
    if shared == "block_128x128":
        return 1 if block <= 128 else block
    return block if shared == "block_1x128" else 0


@triton.constexpr_function
def terms_at_once(block_k: int, shared_a: str, shared_b: str) -> int:
    """Of the terms of a step those of one product: no more than have one scale."""
    blocked = shared_a.startswith("block_") or shared_b.startswith("block_")
    return min(block_k, 128) if blocked else block_k


@triton.constexpr_function
def elements_of(dtype: str) -> int:
    """Elements in a byte."""
    return 2 if dtype == "float4_e2m1fn_x2" else 1


@triton.constexpr_function
def format_of(dtype: str) -> str:
    """What ``tl.dot_scaled`` calls a dtype."""
    return "e2m1" if dtype == "float4_e2m1fn_x2" else "e5m2" if "e5m2" in dtype else "e4m3"


@triton.jit
def _scale_places(scales, row, group, SWIZZLED: tl.constexpr):
    """Where the scales ``(rows, groups)`` lie: by strides, or in cuBLAS' layout of 128 rows by 4 groups."""
    _pointer, _rows, groups, outer, inner = scales
    wide = row.to(tl.int64)[:, None]
    lane = group[None, :]
    if SWIZZLED:
        across = tl.cdiv(groups, 4)
        place = (wide // 128 * across + lane // 4) * 512 + wide % 32 * 16 + wide % 128 // 32 * 4 + lane % 4
    else:
        place = wide * outer + lane.to(tl.int64) * inner
    return place


@triton.jit
def group_scales(
    scales, first, inner, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, SWIZZLED: tl.constexpr
):
    """The bytes of the scales of ``(BLOCK, BLOCK_K)`` elements, one for each ``GROUP``; zeros outside."""
    pointer, rows, groups, _outer, _inner = scales
    row = first + tl.arange(0, BLOCK)
    group = inner // GROUP + tl.arange(0, BLOCK_K // GROUP)
    inside = (row < rows)[:, None] & (group < groups)[None, :]
    return tl.load(pointer + _scale_places(scales, row, group, SWIZZLED), mask=inside, other=0)


@triton.jit
def decoded_block(
    matrix,
    scales,
    first,
    inner,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FORM: tl.constexpr,
    EVEN: tl.constexpr,
    SHARED: tl.constexpr,
    SWIZZLED: tl.constexpr,
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    NUMBERS: tl.constexpr,
):
    """``(BLOCK, BLOCK_K)`` elements as ``NUMBERS``, with the scales that few of them share."""
    PACKED: tl.constexpr = elements_of(FORMAT)
    GROUP: tl.constexpr = group_of(SHARED)
    code = read_block(matrix, first, inner // PACKED, BLOCK, BLOCK_K // PACKED, FORM, EVEN, False)
    if PACKED == 2:
        code = tl.reshape(tl.join(code & 0xF, code >> 4), (BLOCK, BLOCK_K))
    x = widened(code, FORMAT, CAST)
    if GROUP != 0:
        s = group_scales(scales, first, inner, BLOCK, BLOCK_K, GROUP, SWIZZLED)
        s = widened(s, "float8_e4m3fn", "bits") if SHARED == "nvfp4" else widened_power(s)
        x = tl.reshape(tl.reshape(x, (BLOCK, BLOCK_K // GROUP, GROUP)) * s[:, :, None], (BLOCK, BLOCK_K))
    return x.to(NUMBERS)


@triton.jit
def block_scales(scales, first, inner, BLOCK: tl.constexpr, SHARED: tl.constexpr):
    """The scales of rows for the 128 terms that ``inner`` belongs to: ``(BLOCK,)``, or one for all; zeros outside."""
    pointer, rows, groups, outer, inner_stride = scales
    COUNT: tl.constexpr = scales_of_tile(SHARED, BLOCK)
    found = 1.0
    if COUNT > 0:
        block = inner // 128
        at = pointer + tl.cast(block, tl.int64) * inner_stride
        if COUNT == 1:
            found = tl.load(at + tl.cast(first // 128, tl.int64) * outer, mask=block < groups, other=0.0)
        else:
            row = first + tl.arange(0, BLOCK)
            inside = (row < rows) & (block < groups)
            row = row // 128 if SHARED == "block_128x128" else row
            found = tl.load(at + row.to(tl.int64) * outer, mask=inside, other=0.0)
    return found


@triton.jit
def scaled_part(part, of_rows, of_columns, COUNT_A: tl.constexpr, COUNT_B: tl.constexpr):
    """The sums of 128 terms times the ``block_scales`` of their rows and columns, by one product where that is all."""
    if COUNT_A > 1 and COUNT_B > 1:
        part = part * of_rows[:, None] * of_columns[None, :]
    elif COUNT_A > 1:
        part = part * (of_rows * of_columns)[:, None]
    elif COUNT_B > 1:
        part = part * (of_rows * of_columns)[None, :]
    elif COUNT_A + COUNT_B > 0:
        part = part * (of_rows * of_columns)
    return part


@triton.jit
def sum_factors(scales, global_scale, first, BLOCK: tl.constexpr, SHARED: tl.constexpr):
    """What the sums of rows ``(BLOCK,)`` are multiplied with once all terms are in them."""
    pointer, rows, _groups, outer, _inner = scales
    factor = tl.full((BLOCK,), 1.0, tl.float32)
    if SHARED == "row":
        row = first + tl.arange(0, BLOCK)
        factor = tl.load(pointer + row.to(tl.int64) * outer, mask=row < rows, other=0.0)
    elif SHARED == "tensor":
        factor = factor * tl.load(pointer)
    if global_scale is not None:
        factor = factor * tl.load(global_scale)
    return factor
