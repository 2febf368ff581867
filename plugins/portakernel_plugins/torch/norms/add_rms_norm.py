"""``add_rms_norm`` by ``torch.add`` and PyTorch's fused norm of the sum, which is rounded in between."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from portakernel_plugins.torch.add import add
from portakernel_plugins.torch.norms import residual as shared
from portakernel_plugins.torch.norms import rms_norm
from portakernel_plugins.torch.norms.row_blocks import row_blocks


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    *,
    eps: float,
    out: tuple[Tensor, Tensor] | None = None,
    save: bool = False,
) -> tuple[Tensor, ...]:
    """``(y, summed)`` with ``summed = x + residual``: (..., N), weight: (N,) of one dtype; rstd: (M,) float32."""
    # out may be (x, residual): x is read before y is written
    summed = add(x, residual, out=None if out is None else out[1])
    y, rstd = rms_norm.rms_norm(summed, weight, eps=eps, out=None if out is None else out[0], save=True)
    return (y, summed, rstd) if save else (y, summed)


def add_rms_norm_cpu(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    out: tuple[Tensor, Tensor] | None = None,
    save: bool = False,
) -> tuple[Tensor, ...]:
    """The same on CPUs, with an offset of the weight."""
    if rms_norm.few(x):
        y, summed = (None, None) if out is None else out
        summed = add(x, residual, out=summed)
        normed = rms_norm.rms_norm_cpu(summed, weight, eps=eps, weight_offset=weight_offset, out=y, save=save)
        return (normed, summed) if isinstance(normed, Tensor) else (normed[0], summed, normed[1])
    factor = rms_norm.scale(weight, weight_offset)
    y, summed = (x.new_empty(x.shape), x.new_empty(x.shape)) if out is None else out
    rstd = torch.empty((*x.shape[:-1], 1), device=x.device)
    for rows in row_blocks(x.shape[:-1], x.shape[-1]):
        torch.add(x[rows], residual[rows], out=summed[rows])
        rms_norm.norm_rows(summed[rows], factor, eps, y[rows], rstd[rows])
    return (y, summed, rstd.view(-1)) if save else (y, summed)


def backward(
    grad_y: Tensor | None,
    grad_summed: Tensor | None,
    weight: Tensor,
    summed: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, ...]:
    """Gradients for ``x`` and ``residual`` (..., N) and ``weight`` (N,), as ``needs`` asks for; None is zero."""
    return _gradients(rms_norm.backward, grad_y, grad_summed, weight, summed, rstd, needs, eps=eps)


def backward_cpu(
    grad_y: Tensor | None,
    grad_summed: Tensor | None,
    weight: Tensor,
    summed: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, ...]:
    """The gradients on CPUs."""
    parameters = {"eps": eps, "weight_offset": weight_offset}
    return _gradients(rms_norm.backward_cpu, grad_y, grad_summed, weight, summed, rstd, needs, **parameters)


def _gradients(
    of_norm: Callable[..., tuple[Tensor | None, Tensor | None]],
    grad_y: Tensor | None,
    grad_summed: Tensor | None,
    weight: Tensor,
    summed: Tensor,
    rstd: Tensor,
    needs: tuple[bool, bool, bool],
    **parameters: float,
) -> tuple[Tensor | None, ...]:
    if grad_y is None:
        return shared.past_norm(grad_summed, weight, needs)
    given = shared.before_norm(grad_y, grad_summed, summed, weight)
    grad, grad_weight = of_norm(*given, rstd, needs=(needs[0] or needs[1], needs[2]), **parameters)
    grad_x, grad_residual = shared.behind_norm(grad, grad_summed, summed, needs)
    return grad_x, grad_residual, None if grad_weight is None else grad_weight.to(weight.dtype)
