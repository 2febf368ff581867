"""``add_rms_norm_quantize`` in Triton: see ``norm_quantize``."""

from __future__ import annotations

from torch import Tensor

from portakernel_plugins.triton.quantize import norm_quantize


def add_rms_norm_quantize(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    granularity: str,
    dtype: str,
    out: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """``(q, scale, summed)``: ``summed = x + residual``; its norm in ``dtype``, and the float32 scales of that.

    ``x``, ``residual``, ``summed``: ``(*M, N)`` of one dtype; ``weight`` and ``scale`` as in ``rms_norm_quantize``. Any
    strides.
    """
    return norm_quantize.forward(
        "add_rms_norm_quantize",
        x,
        residual,
        weight,
        eps=float(eps),
        weight_offset=float(weight_offset),
        granularity=granularity,
        dtype=dtype,
        out=out,
    )
