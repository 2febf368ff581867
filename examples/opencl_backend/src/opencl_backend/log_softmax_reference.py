"""``log_softmax`` and its gradient as formulas: what serves where no kernel can, and judges those that do.

With ``below = (x - top) / temperature``, ``top = max(x)`` and ``rest = log(sum(exp(below)))``, ``y = below - rest`` and
``dx = (g - exp(y) * sum(g)) / temperature``.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Rounding in the exponent y moves a probability p by up to 3 * 2**-24 * p * (|below| + rest): this much of the 192
# ulp that the contract allows a float32 gradient.
_EXPONENT_SHARE = 1 / 64


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _parts(x: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """The row's maximum, how far each element is below it over ``temperature``, and the logarithm of the sum."""
    # a row of no elements has no maximum
    top = x.amax(-1, keepdim=True) if x.shape[-1] else x.sum(-1, keepdim=True)
    # inf - inf: a row that holds +inf, or nothing but -inf, comes out as NaN
    below = (x - top) / temperature
    rest = below.exp().sum(-1, keepdim=True).log()
    return torch.where(rest.isnan(), rest, top), below, rest


def forward(
    x: Tensor, *, temperature: float = 1.0, out: Tensor | None = None, save: bool = False
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """``y: (*M, N)``, rounded once; ``top`` and ``rest``, ``(M,)``, too with ``save``."""
    top, below, rest = _parts(_wide(x), temperature)
    y = (below - rest).to(x.dtype)
    y = y.contiguous() if out is None else out.copy_(y)
    return (y, top.reshape(-1), rest.reshape(-1)) if save else y


def output_magnitudes(x: Tensor, *, temperature: float = 1.0) -> tuple[Tensor]:
    """The sums of absolute terms behind ``y``, where 1 stands for the rounding of the sum under the logarithm."""
    _, below, rest = _parts(x.double(), temperature)
    return (below.abs() + rest + 1,)


def saved_magnitudes(x: Tensor, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Those behind ``top``, which is exact, and ``rest``."""
    top, _, rest = _parts(x.double(), temperature)
    return top.abs().reshape(-1), (rest + 1).reshape(-1)


def backward(
    grad_y: Tensor, x: Tensor, top: Tensor, rest: Tensor, *, temperature: float = 1.0, needs: tuple[bool] = (True,)
) -> tuple[Tensor | None]:
    """The gradient for ``x`` from that of ``y``."""
    if not needs[0]:
        return (None,)
    g = _wide(grad_y)
    p = _exponent(_wide(x), top, rest, temperature).exp()
    return (((g - p * g.sum(-1, keepdim=True)) / temperature).to(x.dtype).contiguous(),)


def magnitudes(grad_y: Tensor, x: Tensor, top: Tensor, rest: Tensor, *, temperature: float = 1.0) -> tuple[Tensor]:
    """The sums of absolute terms behind the gradient, and what rounding the exponent does to a probability."""
    g, y = grad_y.double().abs(), _exponent(x.double(), top.double(), rest.double(), temperature)
    moved = torch.where(y.exp() == 0, 0, y.exp() * (y.abs() + 2 * rest.double().reshape(*x.shape[:-1], 1)))
    p, moved = y.exp(), moved * _EXPONENT_SHARE
    return ((g + (p + moved) * g.sum(-1, keepdim=True)) / temperature,)


def _exponent(x: Tensor, top: Tensor, rest: Tensor, temperature: float) -> Tensor:
    """``y`` from what forward saved."""
    row = (*x.shape[:-1], 1)
    return (x - top.reshape(row)) / temperature - rest.reshape(row)
