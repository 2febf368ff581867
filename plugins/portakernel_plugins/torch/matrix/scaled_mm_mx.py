"""``scaled_mm`` of mxfp8, mxfp4 and nvfp4, by PyTorch's ``scaled_mm``, for matrix units that apply the scales."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import ScalingType, SwizzleType

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel_plugins.torch.attention.layout import HIP
from portakernel_plugins.torch.matrix.scale_layout import fused_bias, on_16_bytes, row_major, swizzled, written


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
    swizzle: str = "none",
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``(a * scale_a) @ (b * scale_b).T + bias``; a: (M, K) or (M, K/2), b alike, scales for each 32 (nvfp4: 16).

    cuBLAS wants scales in tiles, and those that are not are brought into them; hipBLASLt wants rows. Global scales,
    those of nvfp4, are one factor of the product. A bias has the product's dtype.
    """
    del format_b, use_fast_accum
    found: torch.dtype = getattr(torch, out_dtype)
    fused = bias if found is not torch.float32 else None
    scales = [[_laid_out(scale, swizzle)] for scale in (scale_a, scale_b)]
    recipe = [ScalingType.BlockWise1x16 if format_a == "nvfp4" else ScalingType.BlockWise1x32]
    tiles = [SwizzleType.NO_SWIZZLE if HIP else SwizzleType.SWIZZLE_32_4_4]
    if global_scale_a is not None or global_scale_b is not None:
        if format_a != "nvfp4":
            text = f"takes global scales beside nvfp4 alone; this is {format_a}"
            name = "global_scale_b" if global_scale_a is None else "global_scale_a"
            raise CannotRun(Rejection(ReasonCode.SCALE_FORMAT, text, name))
        for level, factor in zip(scales, (global_scale_a, global_scale_b), strict=True):
            level.append(torch.ones((), device=a.device) if factor is None else factor)
        recipe.append(ScalingType.TensorWise)
        tiles.append(SwizzleType.NO_SWIZZLE)
    y = torch.nn.functional.scaled_mm(
        _row_major(a),
        _row_major(b).t(),
        scales[0],
        recipe,
        scales[1],
        recipe,
        swizzle_a=tiles,
        swizzle_b=tiles,
        bias=fused_bias(fused),
        output_dtype=found,
    )
    return written(y, bias if fused is None else None, out)


def _row_major(x: Tensor) -> Tensor:
    """``x`` in rows that vector loads can read; torch copies float4 as bytes alone."""
    return row_major(x.view(torch.uint8)).view(x.dtype)


def _laid_out(scale: Tensor, swizzle: str) -> Tensor:
    codes = scale.view(torch.uint8)
    if HIP or swizzle == "32_4_4":
        return on_16_bytes(codes.contiguous()).view(scale.dtype)
    return swizzled(codes).view(scale.dtype)
