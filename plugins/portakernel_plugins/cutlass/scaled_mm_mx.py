"""``scaled_mm`` of mxfp8 and nvfp4 by CUTLASS, on tensor cores that apply the scales themselves."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from portakernel_plugins.cutlass.calls import Call
from portakernel_plugins.cutlass.launch import room, rows, vector
from portakernel_plugins.cutlass.libraries import ELEMENTS, OPERANDS, Macros, operand_macros, output_macros
from portakernel_plugins.cutlass.products import Product

_MACROS: Mapping[tuple[str, str], Macros] = MappingProxyType(
    {(layout, dtype): operand_macros(layout) + output_macros(dtype) for layout in OPERANDS for dtype in ELEMENTS}
)
_PRODUCTS: Mapping[str, Product] = MappingProxyType({layout: Product(f"scaled_mm_{layout}") for layout in OPERANDS})


def scaled_mm_mx(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    global_scale_a: Tensor | None,
    global_scale_b: Tensor | None,
    format_a: str,
    format_b: str,
    out_dtype: str,
    use_fast_accum: bool,
    swizzle: str = "none",
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``(a * scale_a) @ (b * scale_b).T + bias``; a: (M, K) or (M, K/2), b alike, scales for each 32 (nvfp4: 16).

    The tensor cores read scales in tiles, and those that are not are brought into them. Global scales are one factor of
    the product, applied with the bias before it is rounded.
    """
    del format_b, use_fast_accum  # formats are claimed in pairs; what is permitted, this does not make use of
    (M, held), N = a.shape, b.shape[0]
    y = room(a, N, getattr(torch, out_dtype), out)
    if M:
        # bytes: of float4, two elements each, torch copies nothing else
        (left, stride_a), (right, stride_b) = rows(a.view(torch.uint8), held), rows(b.view(torch.uint8), held)
        scales = [vector(scale if swizzle == "32_4_4" else in_tiles(scale)) for scale in (scale_a, scale_b)]
        factor = _product(global_scale_a, global_scale_b)
        added = None if bias is None else vector(bias)
        given = left, right, *scales, factor, added, y
        addresses = [None if tensor is None else tensor.data_ptr() for tensor in given]
        per_byte = 2 if format_a == "nvfp4" else 1
        call = Call(*addresses, stride_a * per_byte, stride_b * per_byte, N, M, N, held * per_byte)
        _PRODUCTS[format_a](call, y, _MACROS[format_a, out_dtype])
    return y if out is None or out is y else out.copy_(y)


def in_tiles(scale: Tensor) -> Tensor:
    """Block scales (R, C) in tiles of 128 rows and 4 columns, 32_4_4, as bytes; padded with zeros.

    The scale of row r and column c of a tile is byte r % 32 * 16 + r // 32 * 4 + c of its 512; tiles follow one another
    along the columns first.
    """
    codes = scale.view(torch.uint8)
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % 4, 0, -codes.shape[0] % 128))
    down, across = codes.shape[0] // 128, codes.shape[1] // 4
    return codes.reshape(down, 4, 32, across, 4).permute(0, 3, 2, 1, 4).reshape(codes.shape)


def _product(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first * second
