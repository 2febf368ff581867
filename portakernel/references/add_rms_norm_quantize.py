"""``add_rms_norm_quantize`` as a formula: ``add``, and ``rms_norm_quantize`` of the rounded sum."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portakernel.references import add, rms_norm_quantize
from portakernel.references.scale_formats import write_all


def forward(
    x: Tensor, residual: Tensor, weight: Tensor, *, out: tuple[Tensor, ...] | None = None, **how: Any
) -> tuple[Tensor, ...]:
    """``(q, scale, summed)``: ``summed = x + residual``; ``q`` and ``scale`` as ``rms_norm_quantize`` has them of it.

    ``x``, ``residual``, ``summed``: ``(*M, N)`` of one dtype; ``weight: (N,)``; ``how``: what that op takes.
    """
    summed = add.forward(x, residual)
    return write_all((*rms_norm_quantize.forward(summed, weight, **how), summed), out)


def truth(x: Tensor, residual: Tensor, weight: Tensor, **how: Any) -> tuple[Tensor, ...]:
    """``(q, scale, summed)`` in float64; ``summed`` is what the contract says: rounded to ``x``'s dtype."""
    summed = add.forward(x, residual).double()
    return *rms_norm_quantize.truth(summed, weight, **how), summed
