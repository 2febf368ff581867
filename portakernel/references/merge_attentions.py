"""``merge_attentions`` as a formula.

With ``m = max(lses, 0)`` and ``w = exp(lses - m)``:

    out = sum(w * outs, 0) / sum(w, 0)
    lse = m + log(sum(w, 0))

Where a part's lse is -inf, its weight is 0, and what it holds is replaced by zeros, because ``0 * NaN`` is NaN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from portakernel.references.merge_attention import by_row, delivered, lowered_by, terms, unless_zero, wide
from portakernel.words.symbols import left_to_the_run

FLOAT32_MAGNITUDES = True

# Parts whose weights, summed one after the other, lose as much as all else does: half a unit in the last place each,
# all to one side where weights are alike. Of 33 parts, a third of one weight behind one of weight 1, it was 8 units.
_AS_MANY = 8


def _largest(logs: Tensor) -> Tensor:
    """The largest of each row's ``logs (R, H, S)``, or 0 where none is more than -inf."""
    # amax refuses an empty dimension
    some = left_to_the_run(logs.shape[0]) or logs.shape[0] > 0
    return lowered_by(logs.amax(0) if some else logs.new_full(logs.shape[1:], -math.inf))


def forward(
    outs: Tensor,
    lses: Tensor,
    *,
    return_lse: bool = True,
    out: Tensor | tuple[Tensor, ...] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """``out (S, H, E)``, rounded once, and ``lse (H, S)``, from ``outs: (R, S, H, E)`` and ``lses: (R, H, S)``."""
    logs = wide(lses)
    top = _largest(logs)
    weights = torch.exp(logs - top)
    total = weights.sum(0)
    # shares, which add up to 1, before the products: the sum of large numbers could be beyond float32
    parts = torch.where(by_row(logs.isneginf()), 0.0, wide(outs) * by_row(weights / unless_zero(total)))
    return delivered(parts.sum(0).to(outs.dtype), top + total.log() if return_lse else None, out)


def output_magnitudes(outs: Tensor, lses: Tensor, *, return_lse: bool = True) -> tuple[Tensor, ...]:
    """For ``out`` and, where it is returned, ``lse`` what float32's rounding errors are in proportion to.

    As for ``merge_attention``: a weight moves by as much as the rounding of its exponent. And a sum of many terms moves
    by as much as it is rounded on its way.
    """
    sums = outs.shape[0] / _AS_MANY
    logs = lses.double()
    top = _largest(logs)
    total = torch.exp(logs - top).sum(0)
    return (terms(outs, logs, top, total, sums).sum(0), 1.0 + sums + top.abs() + total.log().abs())[: 1 + return_lse]
