"""``layer_norm`` and its gradient as formulas (Ba, Kiros & Hinton 2016).

With ``u = (x - mean) * rstd``, the output is ``y = u * weight + bias``. ``mean`` and ``rstd`` depend on ``x``, which
gives the gradient its other terms: ``dx = rstd * (g * weight - mean(g * weight) - u * mean(g * weight * u))``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _per_row(saved: Tensor, x: Tensor) -> Tensor:
    return saved.reshape(*x.shape[:-1], 1)


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float,
    out: Tensor | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """``(x - mean) * rsqrt(var + eps) * weight + bias``, rounded once; ``mean (M,)``, ``rstd (M,)`` too when ``save``.

    ``x: (*M, N)``, ``weight: (N,)``, ``bias: (N,)``; ``var`` is the mean of the squared deviations (divided by N).
    """
    wide = _wide(x)
    mean = wide.mean(-1, keepdim=True)
    deviation = wide - mean
    rstd = torch.rsqrt(deviation.square().mean(-1, keepdim=True) + eps)
    y = deviation * rstd * _wide(weight)
    if bias is not None:
        y = y + _wide(bias)
    y = y.to(x.dtype).contiguous() if out is None else out.copy_(y.to(x.dtype))
    return (y, mean.reshape(-1), rstd.reshape(-1)) if save else y


def backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    needs: tuple[bool, ...] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients for ``x``, ``weight`` and ``bias`` from that of ``y``; ``eps`` is already in ``rstd``."""
    del eps
    rows, columns = rstd.numel(), x.shape[-1]
    g, rstd = _wide(grad_y), _per_row(rstd, x)
    u = (_wide(x) - _per_row(mean, x)) * rstd
    grad_x = grad_weight = grad_bias = None
    if needs[0]:
        gw = g * _wide(weight)
        inner = gw - gw.mean(-1, keepdim=True) - u * (gw * u).mean(-1, keepdim=True)
        grad_x = (rstd * inner).to(x.dtype).contiguous()
    if needs[1]:
        grad_weight = (g * u).reshape(rows, columns).sum(0).to(weight.dtype)
    if needs[2]:
        grad_bias = g.reshape(rows, columns).sum(0).to(weight.dtype)
    return grad_x, grad_weight, grad_bias


def saved(x: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, ...]:
    """``mean (M,)`` and ``rstd (M,)``, of which the bias is no part."""
    return tuple(forward(x, weight, eps=eps, save=True)[1:])


def magnitudes(
    grad_y: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, *, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of absolute terms behind each gradient, which bound what rounding can do to it."""
    # the terms of the mean, which is what they sum up to
    del mean, eps
    rows, columns = rstd.numel(), x.shape[-1]
    g, rstd = grad_y.double().abs(), _per_row(rstd.double(), x)
    u = (x.double().abs() + x.double().abs().mean(-1, keepdim=True)) * rstd
    gw = g * weight.double().abs()
    grad_x = rstd * (gw + gw.mean(-1, keepdim=True) + u * (gw * u).mean(-1, keepdim=True))
    return grad_x, (g * u).reshape(rows, columns).sum(0), g.reshape(rows, columns).sum(0)


def output_magnitudes(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float) -> tuple[Tensor]:
    """The sum of absolute terms behind each element of ``y``: ``x``, its row's mean, and ``bias``.

    Deviations below the smallest normal number of float32 are held no finer than that one.
    """
    wide = x.double()
    deviation = wide - wide.mean(-1, keepdim=True)
    rstd = torch.rsqrt(deviation.square().mean(-1, keepdim=True) + eps)
    size = (wide.abs() + wide.abs().mean(-1, keepdim=True)).clamp(min=torch.finfo(torch.float32).tiny)
    terms = size * rstd * weight.double().abs()
    return (terms if bias is None else terms + bias.double().abs(),)


def saved_magnitudes(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float) -> tuple[Tensor, Tensor]:
    """The sum of absolute terms behind ``mean``, and what the digits are in proportion to that ``rstd`` loses.

    An error of the deviations, which is one of ``x`` and the mean, is as many times larger beside the deviations.
    """
    del bias
    size = x.double().abs().mean(-1).reshape(-1)
    rstd = saved(x.double(), weight.double(), eps=eps)[1]
    return size, rstd * (1 + size * rstd)
