"""``rms_norm`` and its gradient as formulas.

With ``u = x * rstd`` and ``w = weight + weight_offset``, the output is ``y = u * w``. ``rstd`` depends on ``x``, which
gives the gradient its second term: ``dx = rstd * (g * w - u * mean(g * w * u))``.
"""

from __future__ import annotations

import torch
from torch import Tensor

# What cancels is computed in float32: 16-bit results are measured where they are.
FLOAT32_MAGNITUDES = True


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def forward(
    x: Tensor, weight: Tensor, *, eps: float, weight_offset: float = 0.0, out: Tensor | None = None, save: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """``x * rsqrt(mean(x**2, -1) + eps) * (weight + weight_offset)``, rounded once; ``rstd (M,)`` too when ``save``."""
    wide = _wide(x)
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    y = (wide * rstd * (_wide(weight) + weight_offset)).to(x.dtype)
    y = y.contiguous() if out is None else out.copy_(y)
    return (y, rstd.reshape(-1)) if save else y


def backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    needs: tuple[bool, bool] = (True, True),
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients for ``x`` and ``weight`` from that of ``y``; ``eps`` is already in ``rstd``."""
    del eps
    g, u = _wide(grad_y), _wide(x) * rstd.reshape(*x.shape[:-1], 1)
    grad_x = grad_weight = None
    if needs[0]:
        gw = g * (_wide(weight) + weight_offset)
        mean = (gw * u).mean(-1, keepdim=True)
        grad_x = (rstd.reshape(*x.shape[:-1], 1) * (gw - u * mean)).to(x.dtype).contiguous()
    if needs[1]:
        grad_weight = (g * u).reshape(rstd.numel(), x.shape[-1]).sum(0).to(weight.dtype)
    return grad_x, grad_weight


def magnitudes(
    grad_y: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, *, eps: float, weight_offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The sums of absolute terms behind each gradient, which bound what rounding can do to it."""
    del eps
    rstd = rstd.reshape(*x.shape[:-1], 1)
    g, u = _wide(grad_y).abs(), (_wide(x) * rstd).abs()
    gw = g * (_wide(weight).abs() + abs(weight_offset))
    return rstd * (gw + u * (gw * u).mean(-1, keepdim=True)), (g * u).reshape(rstd.numel(), x.shape[-1]).sum(0)


def output_magnitudes(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float = 0.0) -> tuple[Tensor]:
    """``y`` with the absolute terms of ``weight + weight_offset``, which may cancel."""
    size, offset = weight.double().abs(), abs(weight_offset)
    found = forward(x.double().abs(), size, eps=eps, weight_offset=offset)
    assert isinstance(found, Tensor)
    return (found,)
