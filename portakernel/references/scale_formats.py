"""Narrow numbers and the layouts of their scales, as the references of the quantised ops share them.

Elements are float8 (e4m3fn, e4m3fnuz, e5m2, e5m2fnuz) or e2m1, two to a byte, the even one in the low four bits. A
scale multiplies the elements of its block when they are dequantised; it is a float32, an e8m0 (a power of two) or an
e4m3fn. A dimension that is no multiple of the block ends in a shorter one.

Sources: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats 1.0; arXiv 2206.02915 for FNUZ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# How many rows and columns of a matrix share one scale, in the formats where that does not depend on the matrix.
BLOCKS: Mapping[str, tuple[int, int]] = {
    "block_1x128": (1, 128),
    "block_128x128": (128, 128),
    "mxfp8": (1, 32),
    "mxfp4": (1, 32),
    "nvfp4": (1, 16),
}
# The largest number of each dtype, and its exponent where the dtype is an element of an MX format.
LARGEST: Mapping[str, float] = {
    "float8_e4m3fn": 448.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2": 57344.0,
    "float8_e5m2fnuz": 57344.0,
    "float4_e2m1fn_x2": 6.0,
}
LARGEST_EXPONENT: Mapping[str, int] = {"float8_e4m3fn": 8, "float8_e5m2": 15, "float4_e2m1fn_x2": 2}
# No float32 scale is smaller. What is subnormal in float32 is zero when divided by such a scale and rounded to any of
# the dtypes, so that kernels which flush subnormal numbers agree with those which do not.
SMALLEST_SCALE = 2.0**-100


def numbers(tensor: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """What ``tensor`` holds, in ``dtype`` (exact in float64; in float32 for all narrow dtypes).

    The last dimension of float4_e2m1fn_x2 becomes twice as long: ``(..., K/2)`` gives ``(..., K)``.
    """
    if tensor.dtype is torch.float4_e2m1fn_x2:
        return _e2m1_numbers(_nibbles(tensor)).to(dtype)
    if tensor.dtype is torch.float8_e8m0fnu:
        return _e8m0_numbers(tensor).to(dtype)
    return tensor.to(dtype)


def dequantised(
    q: Tensor, scale: Tensor, global_scale: Tensor | None, *, format: str, dtype: torch.dtype = torch.float32
) -> Tensor:
    """``q * scale * global_scale``, each scale over its block, computed in ``dtype``: ``(*M, K)``."""
    elements = numbers(q, dtype)
    found = elements * spread(numbers(scale, dtype), format, elements.shape)
    return found if global_scale is None else found * global_scale.to(dtype)


# --- scales ----------------------------------------------------------------------------------------------------------


def block_maxima(x: Tensor, format: str) -> Tensor:
    """The largest magnitude in each block of ``x: (*M, K)``, in the shape that ``format`` gives scales.

    0 where a block is empty; NaN where it holds a NaN or an infinity.
    """
    if format in ("tensor", "row"):
        # one more zero: the largest of nothing is 0
        padded = torch.nn.functional.pad(x.flatten() if format == "tensor" else x, (0, 1))
        maxima = padded.abs().amax(-1, keepdim=format == "row")
    else:
        (rows, columns), matrix = BLOCKS[format], x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        padded = torch.nn.functional.pad(matrix, (0, -matrix.shape[1] % columns, 0, -matrix.shape[0] % rows))
        down, across = padded.shape[0] // rows, padded.shape[1] // columns
        maxima = padded.abs().reshape(down, rows, across, columns).amax((1, 3))
        maxima = maxima.reshape(*x.shape[:-1], across) if rows == 1 else maxima
    return torch.where(maxima.isfinite(), maxima, torch.nan)


def spread(scale: Tensor, format: str, shape: Sequence[int]) -> Tensor:
    """``scale`` over the elements of ``(*M, K)``: in that shape, or in one that broadcasts to it."""
    if format in ("tensor", "row"):
        return scale
    rows, columns = BLOCKS[format]
    wide = scale.repeat_interleave(columns, -1)[..., : shape[-1]]
    if rows == 1:
        return wide
    return wide.repeat_interleave(rows, 0)[: math.prod(shape[:-1])].reshape(*shape)


def largest_scale(maxima: Tensor, largest: float) -> Tensor:
    """``maxima / largest``, at which the largest magnitude becomes ``largest``; 1 below ``SMALLEST_SCALE``."""
    scale = divided(maxima, largest)
    return torch.where(scale < SMALLEST_SCALE, 1.0, scale)


def power_of_two_scale(maxima: Tensor, dtype: str) -> Tensor:
    """``2 ** (floor(log2(maxima)) - e)`` as float8_e8m0fnu, with ``e`` the exponent of ``dtype``'s largest number.

    At least 2**-127, also for 0; NaN (0xFF) for NaN. OCP Microscaling Formats 1.0, 6.3.
    """
    # float32's exponent field is floor(log2) + 127 and e8m0 that of the scale + 127; the field of NaN is 255
    exponent = maxima.view(torch.int32) >> 23 & 0xFF
    code = (exponent - LARGEST_EXPONENT[dtype]).clamp(min=0)
    return torch.where(exponent == 255, 255, code).to(torch.uint8).view(torch.float8_e8m0fnu)


def reciprocal(scale: Tensor) -> Tensor:
    """``1 / scale`` of a float8_e8m0fnu in float32, exact: a quotient by a subnormal number may not be."""
    # 254 - 255 is 255 in eight bits: NaN stays NaN
    return numbers((254 - scale.view(torch.uint8)).view(torch.float8_e8m0fnu), torch.float32)


def divided(x: Tensor, divisor: float) -> Tensor:
    """``x / divisor``, rounded once: on CUDA, torch turns a division by a Python number into a product."""
    return x / torch.full_like(x, divisor)


# --- layout of scales ------------------------------------------------------------------------------------------------


def swizzled(scale: Tensor) -> Tensor:
    """Block scales ``(R, C)`` in the layout ``32_4_4``: ``(128 * ceil(R / 128), 4 * ceil(C / 4))``, padded with zeros.

    The scale of row ``r`` and column ``c`` is element ``(r // 128 * ceil(C / 4) + c // 4) * 512 + r % 32 * 16 +
    r % 128 // 32 * 4 + c % 4`` of the result's memory. cuBLAS, 1D block scaling factors layout.
    """
    codes = scale.view(torch.uint8)
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % 4, 0, -codes.shape[0] % 128))
    down, across = codes.shape[0] // 128, codes.shape[1] // 4
    tiles = codes.reshape(down, 4, 32, across, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(codes.shape).view(scale.dtype)


def unswizzled(scale: Tensor, rows: int, columns: int) -> Tensor:
    """The block scales ``(rows, columns)`` that lie in ``scale`` as ``32_4_4`` says."""
    codes = scale.view(torch.uint8)
    down, across = codes.shape[0] // 128, codes.shape[1] // 4
    tiles = codes.reshape(down, across, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(codes.shape)[:rows, :columns].view(scale.dtype)


# --- elements --------------------------------------------------------------------------------------------------------


def float8(x: Tensor, dtype: str) -> Tensor:
    """``x`` rounded to nearest, ties to even, and clamped: what is beyond the largest number becomes that one."""
    largest = LARGEST[dtype]
    found: torch.dtype = getattr(torch, dtype)
    return x.clamp(-largest, largest).to(found)


def float4(x: Tensor) -> Tensor:
    """``x: (..., K)`` rounded to nearest e2m1, ties to even, and clamped: ``(..., K/2)``; NaN gives 0."""
    x = torch.where(x.isnan(), 0.0, x)
    size = x.abs().clamp(max=6.0)
    # the codes count up through steps of 1/2 to 2, of 1 to 4, of 2 to 6; round() goes to even, and so do the codes
    upper = torch.where(size < 4.0, size.round() + 2.0, (size / 2.0).round() + 4.0)
    code = torch.where(size < 2.0, (size * 2.0).round(), upper).to(torch.uint8) | torch.signbit(x).to(torch.uint8) << 3
    return (code[..., 0::2] | code[..., 1::2] << 4).view(torch.float4_e2m1fn_x2)


def write(result: Tensor, out: Tensor | None) -> Tensor:
    """``result``, contiguous; or ``out`` with the same elements."""
    # torch does not copy every narrow dtype in every way and on every device; bytes it does
    elements = result.view(torch.uint8) if result.element_size() == 1 else result
    if out is None:
        return elements.contiguous().view(result.dtype)
    (out.view(torch.uint8) if out.element_size() == 1 else out).copy_(elements)
    return out


def write_all(results: tuple[Tensor, ...], out: tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
    """``write`` for an op of several outputs."""
    given = (None,) * len(results) if out is None else out
    return tuple(write(result, tensor) for result, tensor in zip(results, given, strict=True))


def _nibbles(tensor: Tensor) -> Tensor:
    codes = tensor.view(torch.uint8)
    return torch.stack((codes & 0xF, codes >> 4), -1).flatten(-2)


def _e2m1_numbers(code: Tensor) -> Tensor:
    exponent, mantissa = (code >> 1 & 3).int(), (code & 1).int()
    doubled = torch.where(exponent == 0, mantissa, mantissa + 2 << (exponent - 1).clamp(min=0))
    size = doubled.to(torch.float64) / 2
    return torch.where(code >= 8, -size, size)


def _e8m0_numbers(tensor: Tensor) -> Tensor:
    code = tensor.view(torch.uint8).long()
    # from e8m0's bias of 127 to float64's of 1023: normal numbers there, all of them
    powers = (code + (1023 - 127) << 52).view(torch.float64)
    return torch.where(code == 255, torch.nan, powers)
