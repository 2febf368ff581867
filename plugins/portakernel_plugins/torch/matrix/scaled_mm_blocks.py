"""``scaled_mm`` of float8 with a float32 scale for each block of 128, by PyTorch's ``scaled_mm`` (cuBLAS on Hopper)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import ScalingType

from portakernel.authoring import ReasonCode, Rejection
from portakernel_plugins.torch.matrix.scale_layout import (
    asked_of_cublas,
    fused_bias,
    on_16_bytes,
    outer_major,
    row_major,
    square_blocks,
    written,
)


def check(use_fast_accum: bool) -> Rejection | None:
    """Whether PyTorch was built with a cuBLAS that has these formats."""
    del use_fast_accum  # a check reads something
    version = torch.version.cuda
    if version is not None and tuple(map(int, version.split(".")[:2])) >= (12, 9):
        return None
    text = f"needs PyTorch for CUDA 12.9 or later, whose cuBLAS scales blocks of 128; this one is for {version}"
    return Rejection(ReasonCode.MISSING_LIBRARY, text, "torch")


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
    """``(a * scale_a) @ (b * scale_b).T + bias``; a: (M, K), b: (N, K) float8, of whose scales one may be square.

    Sums are float32, promoted at each block of 128; a bias has the product's dtype.
    """
    del use_fast_accum  # what it permits, these formats do not make use of
    scale_a = scale_a if global_scale_a is None else scale_a * global_scale_a
    scale_b = scale_b if global_scale_b is None else scale_b * global_scale_b
    found: torch.dtype = getattr(torch, out_dtype)
    fused = bias if found is not torch.float32 else None
    y = asked_of_cublas(
        torch.nn.functional.scaled_mm,
        row_major(a),
        row_major(b).t(),
        _laid_out(scale_a, format_a),
        _recipe(format_a),
        _laid_out(scale_b, format_b),
        _recipe(format_b),
        bias=fused_bias(fused),
        output_dtype=found,
    )
    return written(y, bias if fused is None else None, out)


def _laid_out(scale: Tensor, scale_format: str) -> Tensor:
    return on_16_bytes(square_blocks(scale) if scale_format == "block_128x128" else outer_major(scale))


def _recipe(scale_format: str) -> ScalingType:
    return ScalingType.BlockWise128x128 if scale_format == "block_128x128" else ScalingType.BlockWise1x128
