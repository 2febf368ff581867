"""``quantize_mxfp8`` as a formula: ``q = x / scale``, with the power of two that OCP's conversion names as scale."""

from __future__ import annotations

from torch import Tensor

from portakernel.references.scale_formats import (
    LARGEST,
    block_maxima,
    float8,
    numbers,
    power_of_two_scale,
    reciprocal,
    spread,
    write_all,
)


def forward(x: Tensor, *, dtype: str = "float8_e4m3fn", out: tuple[Tensor, ...] | None = None) -> tuple[Tensor, ...]:
    """``(q, scale)``: ``x: (*M, K)`` in ``dtype``, and ``(*M, ceil(K/32))`` scales in float8_e8m0fnu."""
    wide = x.float()
    scale = power_of_two_scale(block_maxima(wide, "mxfp8"), dtype)
    q = float8(wide * spread(reciprocal(scale), "mxfp8", x.shape), dtype)
    return write_all((q, scale), out)


def truth(x: Tensor, *, dtype: str = "float8_e4m3fn") -> tuple[Tensor, ...]:
    """``(q, scale)`` in float64: ``q`` clamped but not rounded."""
    scale = numbers(power_of_two_scale(block_maxima(x.float(), "mxfp8"), dtype))
    largest = LARGEST[dtype]
    return (x.double() / spread(scale, "mxfp8", x.shape)).clamp(-largest, largest), scale
