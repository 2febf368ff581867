"""``add_layer_norm`` and its gradient: a sum rounded to its dtype, ``layer_norm`` of it, and an activation.

``summed = x + residual`` reaches the caller, so the norm is that of the rounded sum: what ``add`` and ``layer_norm``
give one after the other. With ``z = layer_norm(summed)``, the output is ``y = activation(z)``: the gradient of ``y``
times the activation's slope at ``z`` goes through the norm, and ``grad_summed`` is added, for ``x`` and ``residual``
alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.references import layer_norm
from portakernel.references.activations import ACTIVATIONS

# relu's slope jumps at 0. Where z is that close to 0, measured by its terms, rounding decides on which side it falls:
# there the slope's magnitude is so large that both answers are right.
_NEAR_ZERO = 2.0**-18
_EITHER_WAY = 2.0**24


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def forward(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float,
    activation: str = "none",
    out: tuple[Tensor, Tensor] | None = None,
    save: bool = False,
) -> tuple[Tensor, ...]:
    """``(y, summed)``: ``summed = x + residual``, ``y = activation(layer_norm(summed))``; statistics too when ``save``.

    ``x``, ``residual``, ``y``, ``summed``: ``(*M, N)`` of one dtype, each rounded once from float32; ``weight`` and
    ``bias``: ``(N,)``; the statistics are ``mean (M,)`` and ``rstd (M,)``.
    """
    summed = (_wide(x) + _wide(residual)).to(x.dtype).contiguous()
    wide_bias = None if bias is None else _wide(bias)
    z, mean, rstd = layer_norm.forward(_wide(summed), _wide(weight), wide_bias, eps=eps, save=True)
    y = ACTIVATIONS[activation].value(z).to(x.dtype)
    if out is not None:
        # only now: `out` may be the inputs
        y, summed = out[0].copy_(y), out[1].copy_(summed)
    return (y, summed, mean, rstd) if save else (y, summed)


def backward(
    grad_y: Tensor | None,
    grad_summed: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    summed: Tensor,
    mean: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    activation: str = "none",
    needs: tuple[bool, ...] = (True, True, True, True),
) -> tuple[Tensor | None, ...]:
    """Gradients for ``x``, ``residual``, ``weight`` and ``bias``; an output's gradient of None is zero."""
    if grad_y is None:  # whatever the statistics are: 0 * infinity is NaN
        summed, mean, rstd = (torch.zeros_like(held) for held in (summed, mean, rstd))
    wide = _wide(summed)
    # wide throughout, so that the sum below is rounded once
    through = torch.zeros_like(wide) if grad_y is None else _wide(grad_y)
    if activation != "none":
        through = through * ACTIVATIONS[activation].slope(_normalised(wide, weight, bias, mean, rstd))
    grad, grad_weight, grad_bias = layer_norm.backward(
        through,
        wide,
        _wide(weight),
        mean,
        rstd,
        eps=eps,
        needs=(needs[0] or needs[1], needs[2], needs[3] and bias is not None),
    )
    if grad is not None:
        grad = (grad if grad_summed is None else grad + _wide(grad_summed)).to(summed.dtype).contiguous()
    return (
        grad if needs[0] else None,
        # memory of its own, as every result has
        (grad.clone() if needs[0] else grad) if grad is not None and needs[1] else None,
        None if grad_weight is None else grad_weight.to(weight.dtype),
        None if grad_bias is None else grad_bias.to(weight.dtype),
    )


def _normalised(summed: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor, rstd: Tensor) -> Tensor:
    """What the activation was applied to, from the saved statistics."""
    shape = (*summed.shape[:-1], 1)
    z = (summed - mean.reshape(shape)) * rstd.reshape(shape) * _wide(weight)
    return z if bias is None else z + _wide(bias)


def saved(
    weight: Tensor, bias: Tensor | None, summed: Tensor, *, eps: float, activation: str = "none"
) -> tuple[Tensor, ...]:
    """``mean (M,)`` and ``rstd (M,)`` of the sum."""
    del bias, activation
    return layer_norm.saved(summed, weight, eps=eps)


def magnitudes(
    grad_y: Tensor | None,
    grad_summed: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    summed: Tensor,
    mean: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    activation: str = "none",
) -> tuple[Tensor | None, ...]:
    """The sums of absolute terms behind each gradient, which bound what rounding can do to it."""
    wide, weight, mean, rstd = summed.double(), weight.double(), mean.double(), rstd.double()
    wide_bias = None if bias is None else bias.double()
    through = torch.zeros_like(wide) if grad_y is None else grad_y.double().abs()
    z = _normalised(wide, weight, wide_bias, mean, rstd)
    wide_bias = None if wide_bias is None else wide_bias.abs()
    terms = _normalised(wide.abs(), weight.abs(), wide_bias, -wide.abs().mean(-1), rstd)
    through = through * _slope_magnitude(activation, z, terms)
    grad, grad_weight, grad_bias = layer_norm.magnitudes(through, wide, weight, mean, rstd, eps=eps)
    grad = grad if grad_summed is None else grad + grad_summed.double().abs()
    return grad, grad, grad_weight, grad_bias if bias is not None else None


def _slope_magnitude(activation: str, z: Tensor, terms: Tensor) -> Tensor:
    """The terms behind the slope at ``z``, and what an error in ``z``, a sum of ``terms``, makes of it."""
    chosen = ACTIVATIONS[activation]
    slope = chosen.slope_magnitude(z)
    if chosen.curvature:  # a slope that is the same everywhere does not mind where z is infinite
        slope = slope + chosen.curvature * terms
    if activation == "relu":
        slope = torch.where((z != 0) & (z.abs() <= _NEAR_ZERO * terms), _EITHER_WAY, slope)
    return slope


def truth(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float,
    activation: str = "none",
) -> tuple[Tensor, ...]:
    """``(y, summed, mean, rstd)`` in float64; ``summed`` is what the contract says: rounded to ``x``'s dtype."""
    summed = (_wide(x) + _wide(residual)).to(x.dtype).double()
    wide_bias = None if bias is None else bias.double()
    z, mean, rstd = layer_norm.forward(summed, weight.double(), wide_bias, eps=eps, save=True)
    return ACTIVATIONS[activation].value(z), summed, mean, rstd


def output_magnitudes(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float,
    activation: str = "none",
) -> tuple[Tensor, None]:
    """The terms behind what the activation is applied to, whatever the activation: none stretches by more than 1.13."""
    del activation
    (terms,) = layer_norm.output_magnitudes(x.double() + residual.double(), weight, bias, eps=eps)
    return terms, None


def saved_magnitudes(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float,
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    """Those of ``layer_norm`` for the sum."""
    del activation
    return layer_norm.saved_magnitudes(x.double() + residual.double(), weight, bias, eps=eps)
