"""``log_softmax`` and its gradient as formulas: what serves where no kernel can, and judges those that do.

With ``z = x / temperature`` and ``lse = log(sum(exp(z)))``, ``y = z - lse`` and
``dx = (g - exp(z - lse) * sum(g)) / temperature``.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Rounding in the exponent z - lse moves a probability p by up to 3 * 2**-24 * p * (|z| + |lse|): this much of the
# 192 ulp that the contract allows a float32 gradient.
_EXPONENT_SHARE = 1 / 64


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _parts(x: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """The row's maximum, how far each element is below it, and the logarithm of the sum; over ``temperature``."""
    # a row of no elements has no maximum
    top = x.amax(-1, keepdim=True) if x.shape[-1] else x.sum(-1, keepdim=True)
    # inf - inf: a row that holds +inf, or nothing but -inf, comes out as NaN
    below = (x - top) / temperature
    return top / temperature, below, below.exp().sum(-1, keepdim=True).log()


def forward(
    x: Tensor, *, temperature: float = 1.0, out: Tensor | None = None, save: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """``x / temperature - lse`` with ``x: (*M, N)``, rounded once; ``lse (M,)`` too with ``save``."""
    top, below, rest = _parts(_wide(x), temperature)
    y = (below - rest).to(x.dtype)
    y = y.contiguous() if out is None else out.copy_(y)
    return (y, (top + rest).reshape(-1)) if save else y


def output_magnitudes(x: Tensor, *, temperature: float = 1.0) -> tuple[Tensor]:
    """The sums of absolute terms behind ``y``, where 1 stands for the rounding of the sum under the logarithm."""
    _, below, rest = _parts(x.double(), temperature)
    return (below.abs() + rest + 1,)


def saved_magnitudes(x: Tensor, *, temperature: float = 1.0) -> tuple[Tensor]:
    """Those behind ``lse``."""
    top, _, rest = _parts(x.double(), temperature)
    return ((top.abs() + rest + 1).reshape(-1),)


def backward(
    grad_y: Tensor, x: Tensor, lse: Tensor, *, temperature: float = 1.0, needs: tuple[bool] = (True,)
) -> tuple[Tensor | None]:
    """The gradient for ``x`` from that of ``y``."""
    if not needs[0]:
        return (None,)
    g = _wide(grad_y)
    p = (_wide(x) / temperature - lse.reshape(*x.shape[:-1], 1)).exp()
    return (((g - p * g.sum(-1, keepdim=True)) / temperature).to(x.dtype).contiguous(),)


def magnitudes(grad_y: Tensor, x: Tensor, lse: Tensor, *, temperature: float = 1.0) -> tuple[Tensor]:
    """The sums of absolute terms behind the gradient, and what rounding the exponent does to a probability."""
    g, z, row = grad_y.double().abs(), x.double() / temperature, lse.double().reshape(*x.shape[:-1], 1)
    p = (z - row).exp()
    moved = torch.where(p == 0, 0, p * (z.abs() + row.abs()) * _EXPONENT_SHARE)
    return ((g + (p + moved) * g.sum(-1, keepdim=True)) / temperature,)
