"""``rms_norm_quantize`` as a formula: ``rms_norm`` in float32, and ``quantize_fp8`` of that."""

from __future__ import annotations

from torch import Tensor

from portakernel.references import quantize_fp8, rms_norm


def forward(
    x: Tensor,
    weight: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    granularity: str = "row",
    dtype: str = "float8_e4m3fn",
    out: tuple[Tensor, ...] | None = None,
) -> tuple[Tensor, ...]:
    """``(q, scale)`` of the norm as float32 has it. ``x: (*M, N)``, ``weight: (N,)``.

    ``q: (*M, N)`` in ``dtype``; ``scale``, float32: ``(*M, 1)`` for ``row``, ``(*M, ceil(N/128))`` for ``block_1x128``.
    """
    y, _ = rms_norm.forward(x.float(), weight, eps=eps, weight_offset=weight_offset, save=True)
    return quantize_fp8.forward(y, granularity=granularity, dtype=dtype, out=out)


def truth(
    x: Tensor,
    weight: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    granularity: str = "row",
    dtype: str = "float8_e4m3fn",
) -> tuple[Tensor, ...]:
    """``(q, scale)`` in float64: ``q`` clamped but not rounded, of the scale as float32 has it."""
    y, _ = rms_norm.forward(x.double(), weight.double(), eps=eps, weight_offset=weight_offset, save=True)
    return quantize_fp8.truth(y, granularity=granularity, dtype=dtype)
