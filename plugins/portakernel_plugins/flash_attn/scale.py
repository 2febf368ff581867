"""Scales of zero and below: FlashAttention-4 multiplies by the scale after masking, which makes +inf of what is hidden.

``scale * q`` with a greater scale says the same, exactly: a sign goes to the queries, and of a scale of zero they keep
nothing.
"""

from __future__ import annotations

import math

from torch import Tensor

# Smaller ones are zero to kernels that flush subnormal numbers.
_SMALLEST = 2.0**-126


def above_zero(q: Tensor, scale: float | None) -> tuple[Tensor, float]:
    """Queries ``(..., D)`` and a scale above zero with the scores of ``q`` and ``scale``; None is 1/sqrt(D)."""
    if scale is None:
        return q, 1.0 / math.sqrt(q.shape[-1])
    if not scale < _SMALLEST:  # NaN too stays what it is
        return q, scale
    return (-q, -scale) if scale <= -_SMALLEST else (q.new_zeros(q.shape), 1.0)


def query_gradient(grad: Tensor, scale: float | None) -> Tensor:
    """The gradient of ``q`` from that of the queries that ``above_zero`` made of it; those of keys are the same."""
    if scale is None or not scale < _SMALLEST:
        return grad
    return grad.neg_() if scale <= -_SMALLEST else grad.zero_()
