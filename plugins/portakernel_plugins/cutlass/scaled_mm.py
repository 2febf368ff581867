"""``scaled_mm`` of float8 by CUTLASS: with one scale a tensor or a row, and with one for each block of 128."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from portakernel_plugins.cutlass.calls import Call
from portakernel_plugins.cutlass.launch import room, rows, vector
from portakernel_plugins.cutlass.libraries import ELEMENTS, FAST, PROMOTED, Macros, output_macros
from portakernel_plugins.cutlass.products import Product

_MACROS: Mapping[str, Macros] = MappingProxyType({dtype: output_macros(dtype) for dtype in ELEMENTS})

_SCALED = Product("scaled_mm")
_SCALED_FAST = Product("scaled_mm_fast")
_BLOCKS = Product("scaled_mm_blocks")


def scaled_mm(
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
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``(a * scale_a) @ (b * scale_b).T + bias``; a: (M, K), b: (N, K) float8, scales (M, 1) and (N, 1), or ().

    Scales and bias are applied in the epilogue. Sums are float32; ``use_fast_accum`` leaves them in the tensor cores.
    """
    product, sums = (_SCALED_FAST, FAST) if use_fast_accum else (_SCALED, PROMOTED)
    by_row = (format_a == "row") | (format_b == "row") << 1
    scales = vector(_times(scale_a, global_scale_a)), vector(_times(scale_b, global_scale_b))
    return _scaled_mm(product, _MACROS[out_dtype] + sums, a, b, scales, by_row, out_dtype, bias, out)


def scaled_mm_blocks(
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
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``(a * scale_a) @ (b * scale_b).T + bias`` with scales (M, K/128) and (N/128, K/128), rounded up.

    Sums are promoted to float32 at each block. a's scales are brought into columns unless they lie so.
    """
    del format_a, format_b, use_fast_accum  # one pair is claimed; what it permits, this does not make use of
    columns = vector(_times(scale_a, global_scale_a).t())
    squares = vector(_times(scale_b, global_scale_b))
    return _scaled_mm(_BLOCKS, _MACROS[out_dtype], a, b, (columns, squares), 0, out_dtype, bias, out)


def _scaled_mm(
    product: Product,
    macros: Macros,
    a: Tensor,
    b: Tensor,
    scales: tuple[Tensor, Tensor],
    by_row: int,
    out_dtype: str,
    bias: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    (M, K), N = a.shape, b.shape[0]
    y = room(a, N, getattr(torch, out_dtype), out)
    if M:
        (left, stride_a), (right, stride_b) = rows(a, K), rows(b, K)
        held = None if bias is None else vector(bias)
        added = None if held is None else held.data_ptr()
        scale_a, scale_b = scales[0].data_ptr(), scales[1].data_ptr()
        addresses = left.data_ptr(), right.data_ptr(), scale_a, scale_b, None, added, y.data_ptr()
        call = Call(*addresses, stride_a, stride_b, N, M, N, K, 0, by_row)
        product(call, y, macros)
    return y if out is None or out is y else out.copy_(y)


def _times(scale: Tensor, factor: Tensor | None) -> Tensor:
    return scale if factor is None else scale * factor
