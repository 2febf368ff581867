"""``merge_attention`` as a formula.

With ``m = maximum(lse_a, lse_b)`` and ``w = exp(lse - m)`` of each part:

    out = (w_a * a + w_b * b) / (w_a + w_b)
    lse = m + log(w_a + w_b)

Where a part's lse is -inf, its weight is 0, and what it holds is replaced by zeros, because ``0 * NaN`` is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOAT32_MAGNITUDES = True

# A share that is subnormal in float32, less than 2**-126, may count as nothing; in units of a few roundings, 2**-22.
_NO_SHARE = 2.0**-104


def wide(tensor: Tensor) -> Tensor:
    """``tensor`` in the precision that merges are computed in."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def lowered_by(top: Tensor) -> Tensor:
    """What the lse of parts are lowered by, their largest being ``top``: 0 where none is more than -inf."""
    return top.masked_fill(top.isneginf(), 0.0)


def unless_zero(total: Tensor) -> Tensor:
    """The sum of weights to divide by; 1 where it is 0, so that the quotient is 0."""
    return total.masked_fill(total == 0.0, 1.0)


def by_row(of_heads: Tensor) -> Tensor:
    """``(..., H, S)`` as a factor of ``(..., S, H, E)``."""
    return of_heads.transpose(-1, -2).unsqueeze(-1)


def delivered(y: Tensor, lse: Tensor | None, out: Tensor | tuple[Tensor, ...] | None) -> Tensor | tuple[Tensor, ...]:
    """The results, new or in the caller's memory; only written now, because ``out`` may be an argument."""
    if out is None:
        return y.contiguous() if lse is None else (y.contiguous(), lse.contiguous())
    if isinstance(out, Tensor):
        return out.copy_(y)
    return tuple(to.copy_(found) for to, found in zip(out, (y, lse), strict=False) if found is not None)


def forward(
    a: Tensor,
    lse_a: Tensor,
    b: Tensor,
    lse_b: Tensor,
    *,
    return_lse: bool = True,
    out: Tensor | tuple[Tensor, ...] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """``out (S, H, E)``, rounded once, and ``lse (H, S)``, from ``a, b: (S, H, E)`` and ``lse_a, lse_b: (H, S)``."""
    log_a, log_b = wide(lse_a), wide(lse_b)
    top = lowered_by(torch.maximum(log_a, log_b))
    weight_a, weight_b = torch.exp(log_a - top), torch.exp(log_b - top)
    total = weight_a + weight_b
    divisor = unless_zero(total)
    # shares, which add up to 1, before the products: the sum of two large numbers could be beyond float32
    part_a = torch.where(by_row(log_a.isneginf()), 0.0, wide(a) * by_row(weight_a / divisor))
    part_b = torch.where(by_row(log_b.isneginf()), 0.0, wide(b) * by_row(weight_b / divisor))
    return delivered((part_a + part_b).to(a.dtype), top + total.log() if return_lse else None, out)


def output_magnitudes(
    a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor, *, return_lse: bool = True
) -> tuple[Tensor, ...]:
    """For ``out`` and, where it is returned, ``lse`` what float32's rounding errors are in proportion to.

    The exponent of a weight is rounded in proportion to itself, and the weight moves by as much as its exponent does.
    The sum of weights is at least 1: its rounding moves the logarithm by as much as 1 is rounded.
    """
    log_a, log_b = lse_a.double(), lse_b.double()
    top = lowered_by(torch.maximum(log_a, log_b))
    total = torch.exp(log_a - top) + torch.exp(log_b - top)
    of_a, of_b = (terms(part, log, top, total) for part, log in ((a, log_a), (b, log_b)))
    return (of_a + of_b, 1.0 + top.abs() + total.log().abs())[: 1 + return_lse]


def terms(part: Tensor, log: Tensor, top: Tensor, total: Tensor, sums: float = 0.0) -> Tensor:
    """What the rounding errors of a part's term are in proportion to, in float64; ``sums`` are those of many parts."""
    share = torch.exp(log - top) / unless_zero(total)
    moved = share * (1.0 + sums + (top - log).abs()) + _NO_SHARE
    return torch.where(by_row(log.isneginf()), 0.0, part.double().abs() * by_row(moved))
