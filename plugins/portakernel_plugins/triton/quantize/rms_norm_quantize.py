"""``rms_norm_quantize`` in Triton: see ``norm_quantize``."""

from __future__ import annotations

from torch import Tensor

from portakernel_plugins.triton.quantize import norm_quantize


def rms_norm_quantize(
    x: Tensor,
    weight: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    granularity: str,
    dtype: str,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """``(q, scale)``: the norm of ``x: (*M, N)`` in ``dtype``, and the float32 scales that give it back.

    ``x``: float32, float16 or bfloat16, any strides. ``weight``: ``(N,)``, any stride, of the dtype of ``x`` or
    float32. ``scale``: ``(*M, 1)`` for ``row``, ``(*M, ceil(N/128))`` for ``block_1x128``. ``out``: any strides.
    """
    return norm_quantize.forward(
        "rms_norm_quantize",
        x,
        None,
        weight,
        eps=float(eps),
        weight_offset=float(weight_offset),
        granularity=granularity,
        dtype=dtype,
        out=out,
    )
