"""Scales that FlashAttention-4 does not take as they are.

It multiplies by the scale after masking, which makes +inf of what is hidden where that is zero or below: a sign goes to
the queries, exactly, and of a scale of zero they keep nothing. And it compiles the scale as Python writes it, of which
its compiler does not read "1e-05", only "1.0e-05": the next number has a point.
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
        return q, _readable(scale)
    return (-q, _readable(-scale)) if scale <= -_SMALLEST else (q.new_zeros(q.shape), 1.0)


def _readable(scale: float) -> float:
    return scale if "e" not in repr(scale) or "." in repr(scale) else math.nextafter(scale, math.inf)


def query_gradient(grad: Tensor, scale: float | None) -> Tensor:
    """The gradient of ``q`` from that of the queries that ``above_zero`` made of it; those of keys are the same."""
    if scale is None or not scale < _SMALLEST:
        return grad
    return grad.neg_() if scale <= -_SMALLEST else grad.zero_()
