"""``scaled_mm`` as a formula: ``dequantize(a) @ dequantize(b).T + bias``."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.references.scale_formats import BLOCKS, dequantised, unswizzled, write

# Of the numbers between one power of two and the next, evenly on a logarithmic scale.
_MULTIPLES = (1.0, 2**0.25, 2**0.5, 2**0.75)
_FEW_TERMS = 64


def forward(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    global_scale_a: Tensor | None = None,
    global_scale_b: Tensor | None = None,
    format_a: str = "row",
    format_b: str = "row",
    swizzle: str = "none",
    out_dtype: str = "bfloat16",
    use_fast_accum: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """``y: (M, N)`` in ``out_dtype``, summed in float32 and rounded once.

    ``a: (M, K)`` and ``b: (N, K)`` in float8, or half as wide in float4_e2m1fn_x2; ``bias: (N,)``; the scales as their
    formats say.
    """
    # what it permits, this does not make use of
    del use_fast_accum
    left = _operand(a, scale_a, global_scale_a, format_a, swizzle, torch.float32)
    right = _operand(b, scale_b, global_scale_b, format_b, swizzle, torch.float32)
    return write(_product(left, right, bias).to(getattr(torch, out_dtype)), out)


def plain(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    global_scale_a: Tensor | None = None,
    global_scale_b: Tensor | None = None,
    format_a: str = "row",
    format_b: str = "row",
    swizzle: str = "none",
    out_dtype: str = "bfloat16",
    use_fast_accum: bool = False,
) -> Tensor:
    """``y`` as far off as that of a model without this op: of operands in bfloat16, summed in float32.

    Of operands in 13 bits where that is no sum in fewer bits and the result is float32: kernels that promote sums of
    tensor cores to float32 are about as exact, and those that round operands to bfloat16 are not. What is rounded once
    may be exact by chance, for all of a row where its scale is one or its elements are equal; so it is rounded as
    several multiples of itself, and off by what they are on average, or most where terms are few, and by one of each.
    """
    left = _operand(a, scale_a, global_scale_a, format_a, swizzle, torch.float32)
    right = _operand(b, scale_b, global_scale_b, format_b, swizzle, torch.float32)
    fine = out_dtype == "float32" and not use_fast_accum
    rounded, unit = (_to_13_bits, 2.0**-13) if fine else (_to_bfloat16, 2.0**-9)
    y = _product(left, right, bias)
    tries = (_product(rounded(left * by) / by, rounded(right * by) / by, bias) for by in _MULTIPLES)
    errors = torch.stack([(tried - y).abs() for tried in tries])
    off = errors.square().mean(0).sqrt()
    if left.shape[1] < _FEW_TERMS:
        off = errors.amax(0).maximum(unit * (left.square() @ right.square().T).sqrt())
    return (y + off).to(getattr(torch, out_dtype))


def truth(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    global_scale_a: Tensor | None = None,
    global_scale_b: Tensor | None = None,
    format_a: str = "row",
    format_b: str = "row",
    swizzle: str = "none",
    out_dtype: str = "bfloat16",
    use_fast_accum: bool = False,
) -> tuple[Tensor]:
    """``y`` in float64."""
    del out_dtype, use_fast_accum
    left = _operand(a, scale_a, global_scale_a, format_a, swizzle, torch.float64)
    right = _operand(b, scale_b, global_scale_b, format_b, swizzle, torch.float64)
    return (_product(left, right, bias),)


def _operand(
    q: Tensor, scale: Tensor, global_scale: Tensor | None, format: str, swizzle: str, dtype: torch.dtype
) -> Tensor:
    """The matrix in ``dtype``; only scales narrower than float32 are ever swizzled."""
    if swizzle == "32_4_4" and scale.dtype is not torch.float32:
        columns = q.shape[1] * (2 if q.dtype is torch.float4_e2m1fn_x2 else 1)
        scale = unswizzled(scale, q.shape[0], -(-columns // BLOCKS[format][1]))
    return dequantised(q, scale, global_scale, format=format, dtype=dtype)


def _to_bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _to_13_bits(x: Tensor) -> Tensor:
    """Numbers of float32 without their last 11 bits, rounded to nearest, ties to even."""
    codes = x.view(torch.int32)
    return ((codes + 0x3FF + (codes >> 11 & 1)) & -0x800).view(torch.float32)


def _product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    y = left @ right.T
    return y if bias is None else y + bias.to(y.dtype)
