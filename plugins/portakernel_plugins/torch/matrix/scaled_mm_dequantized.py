"""``scaled_mm`` as an ordinary matrix product of operands that are decoded before: for what lacks the instructions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from portakernel_plugins.torch.matrix.long_sums import product, wide_product
from portakernel_plugins.torch.matrix.scale_layout import unswizzled

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
    """``(a * scale_a) @ (b * scale_b).T + bias``; both decoded operands take memory: (M + N) * K numbers.

    Elements are numbers of bfloat16, and multiplied as such on GPUs, with the scales of tensors and rows applied to the
    sums. Elements times scales of blocks are rounded to bfloat16 where the result has 16 bits, held in two terms where
    it is float32.
    """
    del use_fast_accum
    found: torch.dtype = getattr(torch, out_dtype)
    asked = _Numbers.asked(a.device.type, found)
    left, left_factor = _operand(a, scale_a, global_scale_a, format_a, swizzle, asked)
    right, right_factor = _operand(b, scale_b, global_scale_b, format_b, swizzle, asked)
    # a sum in the dtype of the operands is rounded to it; where more is left to do that would be once too often
    if bias is None and left_factor is None and right_factor is None and found is left.dtype is right.dtype:
        y = product(left, right)
    else:
        y = _wide_product(left, right)
        y = y if left_factor is None else y * left_factor
        y = y if right_factor is None else y * right_factor.t()
        y = (y if bias is None else y + bias).to(found)
    return y if out is None else out.copy_(y)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What operands are decoded to: elements to ``exact``, those times a scale of their block to ``scaled``.

    Without ``late`` the scales of tensors and rows go into the operands too.
    """

    exact: torch.dtype
    scaled: torch.dtype
    late: bool

    @classmethod
    def asked(cls, device: str, found: torch.dtype) -> _Numbers:
        if device == "cpu" or (device != "cuda" and found is torch.float32):
            return cls(torch.float32, torch.float32, late=True)
        # elsewhere than on CUDA and HIP a product of bfloat16 is rounded before a scale could be applied to it
        scaled = torch.float32 if found is torch.float32 else torch.bfloat16
        return cls(torch.bfloat16, scaled, late=device == "cuda")


def _wide_product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right.T`` in float32, of numbers of any float dtype."""
    if left.device.type != "cuda" or not left.numel() or not right.numel():
        return left.float() @ right.float().t()
    left, right = _in_bfloat16(left, right)
    return wide_product(left, right)


def _in_bfloat16(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices of bfloat16 with the product that these have, but for what two terms of each number leave.

    A product of float32 has a tenth of the speed, or ten bits where the process allows that.
    """
    lefts, rights = _terms(left), _terms(right)
    pairs = [(x, y) for i, x in enumerate(lefts) for j, y in enumerate(rights) if i + j < 2]
    if len(pairs) == 1:
        return pairs[0]
    return torch.cat([x for x, _ in pairs], 1), torch.cat([y for _, y in pairs], 1)


def _terms(x: Tensor) -> tuple[Tensor, ...]:
    """Numbers of bfloat16 whose sum is ``x``, to 16 bits."""
    if x.dtype is torch.bfloat16:
        return (x,)
    first = x.bfloat16()
    return first, (x - first).bfloat16()


def _operand(
    q: Tensor, scale: Tensor, global_scale: Tensor | None, scale_format: str, swizzle: str, asked: _Numbers
) -> tuple[Tensor, Tensor | None]:
    """The numbers ``(M, K)`` that ``q`` and its scales stand for, but for a factor ``(M, 1)``, or ``()``."""
    if scale_format not in _BLOCKS:
        factor = scale.float() if global_scale is None else scale * global_scale
        return (q.to(asked.exact), factor) if asked.late else ((q.float() * factor).to(asked.scaled), None)
    rows, columns = _BLOCKS[scale_format]
    numbers = q.float() if q.dtype is not torch.float4_e2m1fn_x2 else _unpacked(q)
    if swizzle != "none" and scale.dtype is not torch.float32:
        scale = unswizzled(scale, numbers.shape[0], -(-numbers.shape[1] // columns))
    spread = _powers(scale) if scale.dtype is torch.float8_e8m0fnu else scale.float()
    spread = spread.repeat_interleave(columns, 1)[:, : numbers.shape[1]]
    spread = spread if rows == 1 else spread.repeat_interleave(rows, 0)[: numbers.shape[0]]
    numbers = numbers * spread
    if global_scale is not None and not asked.late:
        numbers, global_scale = numbers * global_scale, None
    # powers of two, and e4m3 scales of 4-bit elements, leave numbers of bfloat16
    return numbers.to(asked.scaled if scale.dtype is torch.float32 else asked.exact), global_scale


def _unpacked(q: Tensor) -> Tensor:
    """The numbers in bytes of two, the even one in the low four bits."""
    codes = q.view(torch.uint8)
    return _e2m1(torch.stack((codes & 0xF, codes >> 4), -1).flatten(-2))


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
