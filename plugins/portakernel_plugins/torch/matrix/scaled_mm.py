"""``scaled_mm`` of float8 with one scale a tensor or one a row, by PyTorch's ``aten._scaled_mm``."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel_plugins.torch.matrix.long_sums import is_cut_short, with_whole_steps
from portakernel_plugins.torch.matrix.scale_layout import (
    asked_of_cublas,
    fused_bias,
    on_16_bytes,
    row_major,
    row_scales,
    written,
)
from portakernel_plugins.torch.operators import operator

_product = operator("_scaled_mm")


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

    Sums are float32, of cuBLAS in its fast mode where ``use_fast_accum`` allows it; a bias has the product's dtype.
    """
    scale_a = scale_a if global_scale_a is None else scale_a * global_scale_a
    scale_b = scale_b if global_scale_b is None else scale_b * global_scale_b
    if format_a == "row" or format_b == "row":  # the operator takes one kind of scales for both
        scale_a, scale_b = row_scales(scale_a, a.shape[0]), row_scales(scale_b, b.shape[0])
    found: torch.dtype = getattr(torch, out_dtype)
    # the operator adds no float32 bias on GPUs
    fused = bias if found is not torch.float32 or bias is None or bias.device.type == "cpu" else None
    if is_cut_short(a, b):
        a, b = with_whole_steps(a), with_whole_steps(b)
    y = asked_of_cublas(
        _product,
        row_major(a),
        row_major(b).t(),
        on_16_bytes(scale_a),
        on_16_bytes(scale_b).t(),
        bias=fused_bias(fused),
        out_dtype=found,
        use_fast_accum=use_fast_accum,
    )
    return written(y, bias if fused is None else None, out)
