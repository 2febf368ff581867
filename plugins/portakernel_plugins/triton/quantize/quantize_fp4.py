"""``quantize_fp4`` in Triton: mxfp4 and nvfp4.

    mxfp4: scale        = 2 ** (floor(log2(amax(abs(x)))) - 2)                     of each 32 of a row
           q            = x / scale
    nvfp4: global_scale = amax(abs(all of x)) / 2688                               1 below 2**-100
           scale        = e4m3fn(max(amax(abs(x)) / 6 / global_scale, 2**-9))      of each 16 of a row
           q            = x / (scale * global_scale)

Each operation is rounded to float32 as IEEE 754 has it, q to e2m1, to nearest, ties to even, clamped. Two codes share a
byte, the even one in its low four bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import as_bytes, delivered, with_row_stride
from portakernel.authoring.triton import cdiv, grid_of, launch, program_index
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.quantize.float8 import (
    conversion,
    divided,
    flattened,
    group_places,
    largest_of,
    largest_scale,
    magnitude,
    maxima,
    memory,
    narrowed,
    power_scale,
    widened,
)

_BLOCKS = {"mxfp4": 32, "nvfp4": 16}
_SCALES = {"mxfp4": torch.float8_e8m0fnu, "nvfp4": torch.float8_e4m3fn}


@triton.jit
def _packed(x: tl.tensor, limit: tl.tensor, GROUP: tl.constexpr, GROUPS: tl.constexpr):
    """``(GROUPS, GROUP)`` numbers as ``(GROUPS, GROUP / 2)`` bytes of two e2m1 codes.

    ``limit`` is 6, or 0 where numbers are NaN: the smaller of NaN and 0 is 0.
    """
    size = tl.minimum(tl.abs(x), limit)
    # From 1 on, codes count halves of the number's power of two, below it halves of 1. The last bit of 2**22 times that
    # power is worth as much: the addition rounds, and the sum ends in the count.
    power = (tl.maximum(size, 1.0).to(tl.int32, bitcast=True) & 0x7F800000) + (22 << 23)
    count = (size + power.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True)
    # and two counts more for each doubling; what is above the low byte falls away
    code = count + (power >> 22) - 2 * (127 + 22) + ((x.to(tl.int32, bitcast=True) >> 28) & 8)
    even, odd = tl.split(tl.reshape(code, (GROUPS, GROUP // 2, 2)))
    return (even + (odd << 4)).to(tl.uint8)


@triton.jit(do_not_specialize=["rows"])
def _mxfp4(
    x: tl.tensor,
    q: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    per_row: tl.tensor,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    FLAT: tl.constexpr,
) -> None:
    number, row, first, left = group_places(rows, columns, per_row, GROUP, GROUPS, FLAT)
    inner = tl.arange(0, GROUP)
    inside = inner[None, :] < left[:, None]
    block = tl.load(x + (row * stride + first)[:, None] + inner[None, :], mask=inside, other=0.0).to(tl.float32)

    s, reciprocal = power_scale(tl.max(magnitude(block), axis=1), "float4_e2m1fn_x2")
    limit = tl.where(s == 255, 0.0, 6.0)[:, None]
    pairs = _packed(block * reciprocal[:, None], limit, GROUP, GROUPS)

    pair = tl.arange(0, GROUP // 2)
    place = (row * (columns >> 1) + (first >> 1))[:, None] + pair[None, :]
    tl.store(q + place, pairs, mask=pair[None, :] < (left >> 1)[:, None])
    tl.store(scale + number, s, mask=left > 0)


@triton.jit(do_not_specialize=["rows", "count"])
def _nvfp4(
    x: tl.tensor,
    q: tl.tensor,
    scale: tl.tensor,
    global_scale: tl.tensor,
    partial: tl.tensor,
    count: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    per_row: tl.tensor,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    FLAT: tl.constexpr,
    PARTIALS: tl.constexpr,
    FORMAT: tl.constexpr,  # of the scales
    CAST: tl.constexpr,
    FUSED: tl.constexpr,
) -> None:
    number, row, first, left = group_places(rows, columns, per_row, GROUP, GROUPS, FLAT)
    inner = tl.arange(0, GROUP)
    inside = inner[None, :] < left[:, None]
    block = tl.load(x + (row * stride + first)[:, None] + inner[None, :], mask=inside, other=0.0).to(tl.float32)

    all_scale = largest_scale(largest_of(partial, count, PARTIALS), 2688.0)
    # what is not finite here has made the global scale NaN
    amax = tl.max(magnitude(block), axis=1).to(tl.float32, bitcast=True)
    wanted = divided(divided(amax, 6.0, 1.0 / 6.0, FUSED), all_scale, tl.div_rn(1.0, all_scale), FUSED)
    s = narrowed(tl.where(wanted < 2.0**-9, 2.0**-9, wanted), FORMAT, CAST)
    both = widened(s, FORMAT, CAST) * all_scale
    quotient = divided(block, both[:, None], tl.div_rn(1.0, both)[:, None], FUSED)
    limit = tl.where(all_scale > 0.0, 6.0, 0.0)
    pairs = _packed(quotient, limit, GROUP, GROUPS)

    pair = tl.arange(0, GROUP // 2)
    place = (row * (columns >> 1) + (first >> 1))[:, None] + pair[None, :]
    tl.store(q + place, pairs, mask=pair[None, :] < (left >> 1)[:, None])
    tl.store(scale + number, s, mask=left > 0)
    tl.store(global_scale, all_scale, mask=program_index() == 0)


def quantize_fp4(x: Tensor, *, format: str, out: tuple[Tensor, ...] | None = None) -> tuple[Tensor, ...]:
    """``(q, scale)`` for ``mxfp4``, ``(q, scale, global_scale)`` for ``nvfp4``.

    ``x: (*M, K)``, float32, float16 or bfloat16, any strides (rows without a single one are copied). ``q: (*M, K/2)``
    in float4_e2m1fn_x2; ``scale``: ``(*M, ceil(K/32))`` in float8_e8m0fnu, or ``(*M, ceil(K/16))`` in float8_e4m3fn;
    ``global_scale: ()`` in float32. ``out``: any strides.
    """
    rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
    block = _BLOCKS[format]
    per_row = cdiv(columns, block)
    outs = (None, None, None) if out is None else out
    q = memory(outs[0], x, (*x.shape[:-1], columns // 2), torch.float4_e2m1fn_x2)
    scale = memory(outs[1], x, (*x.shape[:-1], per_row), _SCALES[format])
    x, stride = with_row_stride(x)
    how = configuration(f"quantize_fp4.{format}", x.device, block)
    grid = grid_of(max(1, cdiv(rows * per_row, how.rows)))
    flat_rows, flat_columns, flat = flattened(rows, columns, stride, block)
    where = (flat_rows, flat_columns, stride, max(1, per_row))
    shape: Mapping[str, Any] = {"GROUP": block, "GROUPS": how.rows, "FLAT": flat, **how.options}
    if format == "mxfp4":
        if scale.numel():
            launch(_mxfp4, grid, x, as_bytes(q), as_bytes(scale), *where, **shape)
        return delivered(q, outs[0]), delivered(scale, outs[1])
    global_scale = memory(outs[2], x, (), torch.float32)
    partial, partials = maxima(x, rows, columns, stride)
    args = (x, as_bytes(q), as_bytes(scale), global_scale, partial, len(partial), *where)
    launch(_nvfp4, grid, *args, PARTIALS=partials, **conversion("float8_e4m3fn", x.device), **shape)
    return delivered(q, outs[0]), delivered(scale, outs[1]), delivered(global_scale, outs[2])
