"""``softmax`` and its gradient as formulas.

``y = exp(x - max(x)) / sum(exp(x - max(x)))`` along the last dimension; every output depends on every input of its row:
``dx = y * (g - sum(g * y))``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.words.symbols import left_to_the_run


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def forward(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``softmax(x, -1)``, rounded once. ``x: (*M, N)``; the row's maximum is subtracted first, so nothing overflows."""
    # an empty row has no maximum
    some = left_to_the_run(x.shape[-1]) or x.shape[-1] > 0
    shifted = _wide(x) - _wide(x).amax(-1, keepdim=True) if some else _wide(x)
    terms = torch.exp(shifted)
    y = (terms / terms.sum(-1, keepdim=True)).to(x.dtype)
    return y.contiguous() if out is None else out.copy_(y)


def backward(grad_y: Tensor, y: Tensor, *, needs: tuple[bool, ...] = (True,)) -> tuple[Tensor | None]:
    """The gradient for ``x`` from that of ``y``, and from ``y`` itself as forward returned it."""
    if not needs[0]:
        return (None,)
    g, p = _wide(grad_y), _wide(y)
    return ((p * (g - (g * p).sum(-1, keepdim=True))).to(y.dtype).contiguous(),)


def magnitudes(grad_y: Tensor, y: Tensor) -> tuple[Tensor]:
    """The sums of absolute terms behind the gradient, which bound what rounding can do to it."""
    g, p = grad_y.double().abs(), y.double()
    return (p * (g + (g * p).sum(-1, keepdim=True)),)
