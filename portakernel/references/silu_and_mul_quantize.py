"""``silu_and_mul_quantize`` as a formula: ``silu_and_mul`` in float32, and ``quantize_fp8`` of that."""

from __future__ import annotations

from torch import Tensor

from portakernel.references import quantize_fp8, silu_and_mul


def forward(
    x: Tensor, *, granularity: str = "row", dtype: str = "float8_e4m3fn", out: tuple[Tensor, ...] | None = None
) -> tuple[Tensor, ...]:
    """``(q, scale)`` of ``silu(x[..., :N]) * x[..., N:]`` as float32 has it. ``x: (*M, 2N)``.

    ``q: (*M, N)`` in ``dtype``; ``scale``, float32: ``(*M, 1)`` for ``row``, ``(*M, ceil(N/128))`` for ``block_1x128``.
    """
    return quantize_fp8.forward(silu_and_mul.forward(x.float()), granularity=granularity, dtype=dtype, out=out)


def truth(x: Tensor, *, granularity: str = "row", dtype: str = "float8_e4m3fn") -> tuple[Tensor, ...]:
    """``(q, scale)`` in float64: ``q`` clamped but not rounded, of the scale as float32 has it."""
    return quantize_fp8.truth(silu_and_mul.forward(x.double()), granularity=granularity, dtype=dtype)
