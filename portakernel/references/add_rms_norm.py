"""``add_rms_norm`` and its gradient: a sum rounded to its dtype, and ``rms_norm`` of it.

``summed = x + residual`` reaches the caller, so the norm is that of the rounded sum: what ``add`` and ``rms_norm`` give
one after the other. Its gradient is the norm's at ``summed`` plus ``grad_summed``, for ``x`` and ``residual`` alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.references import rms_norm

# What cancels is computed in float32: 16-bit results are measured where they are.
FLOAT32_MAGNITUDES = True


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def forward(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    out: tuple[Tensor, Tensor] | None = None,
    save: bool = False,
) -> tuple[Tensor, ...]:
    """``(y, summed)``: ``summed = x + residual`` and ``y = rms_norm(summed, weight)``; ``rstd (M,)`` too when ``save``.

    ``x``, ``residual``, ``y``, ``summed``: ``(*M, N)`` of one dtype, each rounded once from float32; ``weight: (N,)``.
    """
    summed = (_wide(x) + _wide(residual)).to(x.dtype).contiguous()
    y, rstd = rms_norm.forward(summed, weight, eps=eps, weight_offset=weight_offset, save=True)
    if out is not None:
        # only now: `out` may be the inputs
        y, summed = out[0].copy_(y), out[1].copy_(summed)
    return (y, summed, rstd) if save else (y, summed)


def backward(
    grad_y: Tensor | None,
    grad_summed: Tensor | None,
    weight: Tensor,
    summed: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    needs: tuple[bool, ...] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients for ``x``, ``residual`` and ``weight`` from those of ``y`` and ``summed``; None is zero."""
    if grad_y is None:  # whatever the statistics are: 0 * infinity is NaN
        summed, rstd = (torch.zeros_like(held) for held in (summed, rstd))
    through = torch.zeros_like(summed) if grad_y is None else grad_y
    # wide throughout, so that the sum below is rounded once
    grad, grad_weight = rms_norm.backward(
        _wide(through),
        _wide(summed),
        _wide(weight),
        rstd,
        eps=eps,
        weight_offset=weight_offset,
        needs=(needs[0] or needs[1], needs[2]),
    )
    if grad is not None:
        grad = (grad if grad_summed is None else grad + _wide(grad_summed)).to(summed.dtype).contiguous()
    return (
        grad if needs[0] else None,
        # memory of its own, as every result has
        (grad.clone() if needs[0] else grad) if grad is not None and needs[1] else None,
        None if grad_weight is None else grad_weight.to(weight.dtype),
    )


def saved(weight: Tensor, summed: Tensor, *, eps: float, weight_offset: float = 0.0) -> tuple[Tensor, ...]:
    """``rstd (M,)`` of the sum."""
    return tuple(rms_norm.forward(summed, weight, eps=eps, weight_offset=weight_offset, save=True)[1:])


def magnitudes(
    grad_y: Tensor | None,
    grad_summed: Tensor | None,
    weight: Tensor,
    summed: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of absolute terms behind each gradient, which bound what rounding can do to it."""
    through = torch.zeros_like(summed) if grad_y is None else grad_y
    grad, grad_weight = rms_norm.magnitudes(
        through.double(), summed.double(), weight.double(), rstd.double(), eps=eps, weight_offset=weight_offset
    )
    grad = grad if grad_summed is None else grad + grad_summed.double().abs()
    return grad, grad, grad_weight


def output_magnitudes(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float = 0.0
) -> tuple[Tensor, None]:
    """Those of ``rms_norm``; ``summed`` is one sum, rounded once."""
    summed = truth(x, residual, weight, eps=eps, weight_offset=weight_offset)[1]
    return *rms_norm.output_magnitudes(summed, weight, eps=eps, weight_offset=weight_offset), None


def truth(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float = 0.0) -> tuple[Tensor, ...]:
    """``(y, summed, rstd)`` in float64; ``summed`` is what the contract says: rounded to ``x``'s dtype."""
    summed = (_wide(x) + _wide(residual)).to(x.dtype).double()
    y, rstd = rms_norm.forward(summed, weight.double(), eps=eps, weight_offset=weight_offset, save=True)
    return y, summed, rstd
