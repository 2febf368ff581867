"""``scaled_mm`` as an ordinary matrix product of operands that are decoded before: for what lacks the instructions."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel_plugins.torch.scale_layout import unswizzled

# Rows and columns that share a scale.
_BLOCKS = {
    "block_1x128": (1, 128),
    "block_128x128": (128, 128),
    "mxfp8": (1, 32),
    "mxfp4": (1, 32),
    "nvfp4": (1, 16),
}


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
    """``(a * scale_a) @ (b * scale_b).T + bias``, each operand rounded to bfloat16 once; float32 on CPUs.

    Both decoded operands take memory: (M + N) * K numbers.
    """
    del use_fast_accum
    found: torch.dtype = getattr(torch, out_dtype)
    narrow = torch.float32 if a.device.type == "cpu" else torch.bfloat16
    left = _decoded(a, scale_a, global_scale_a, format_a, swizzle).to(narrow)
    right = _decoded(b, scale_b, global_scale_b, format_b, swizzle).to(narrow)
    # a sum in the dtype of the operands is rounded to it; where more is left to do that would be once too often
    if bias is None and found is narrow:
        y = left @ right.t()
    else:
        y = _wide_product(left, right)
        y = (y if bias is None else y + bias).to(found)
    return y if out is None else out.copy_(y)


def _wide_product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right.T`` in float32."""
    if left.device.type == "cuda" and left.dtype is not torch.float32 and left.numel() and right.numel():
        return torch.mm(left, right.t(), out_dtype=torch.float32)
    return left.float() @ right.float().t()


def _decoded(q: Tensor, scale: Tensor, global_scale: Tensor | None, scale_format: str, swizzle: str) -> Tensor:
    """The numbers ``(M, K)`` that ``q`` and its scales stand for, in float32."""
    if q.dtype is torch.float4_e2m1fn_x2:
        codes = q.view(torch.uint8)
        both = torch.stack((codes & 0xF, codes >> 4), -1).flatten(-2)
        numbers = _e2m1(both)
    else:
        numbers = q.float()
    if scale_format in _BLOCKS:
        rows, columns = _BLOCKS[scale_format]
        if swizzle != "none" and scale.dtype is not torch.float32:
            scale = unswizzled(scale, numbers.shape[0], -(-numbers.shape[1] // columns))
        factor = _powers(scale) if scale.dtype is torch.float8_e8m0fnu else scale.float()
        factor = factor.repeat_interleave(columns, 1)[:, : numbers.shape[1]]
        factor = factor if rows == 1 else factor.repeat_interleave(rows, 0)[: numbers.shape[0]]
    else:
        factor = scale
    numbers = numbers * factor
    return numbers if global_scale is None else numbers * global_scale


def _e2m1(code: Tensor) -> Tensor:
    """The numbers that four bits stand for: a sign, two bits of exponent, one of mantissa.

    Computed, because a table would have to be copied to the device, which no CUDA graph can capture.
    """
    exponent, mantissa = (code >> 1 & 3).int(), (code & 1).int()
    # below exponent 1 the leading bit is missing, and the exponent is that of 1
    magnitude = (mantissa + 2 * (exponent > 0)).float() * torch.exp2((exponent.clamp(min=1) - 2).float())
    return torch.where(code >= 8, -magnitude, magnitude)


def _powers(scale: Tensor) -> Tensor:
    """The powers of two that e8m0 codes stand for; not by a cast, which not every device has."""
    code = scale.view(torch.uint8).int()
    # float32's exponent is biased alike; its smallest power is subnormal, and 255 is NaN
    powers = (code << 23).view(torch.float32)
    smallest = torch.full_like(powers, 2.0**-127)
    return torch.where(code == 0, smallest, torch.where(code == 255, torch.nan, powers))
