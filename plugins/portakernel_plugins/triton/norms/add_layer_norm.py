"""``add_layer_norm`` and its gradient in Triton: a sum rounded to its dtype, ``layer_norm`` of it, an activation.

    summed = x + residual;    y = activation((summed - mean) * rstd * weight + bias)

``summed`` is normalised as it is stored. ``norm_forward`` and ``norm_backward`` hold the kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel_plugins.triton.norms import norm_backward, norm_forward, residual_norm


def add_layer_norm(
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
    """``(y, summed)``; ``mean`` and ``rstd`` too when ``save``.

    ``x``, ``residual``: ``(..., N)`` of one dtype of float32, float16, bfloat16. ``weight``, ``bias``: ``(N,)``, any
    stride, of that dtype or float32. ``mean``, ``rstd``: ``(M,)`` float32. ``out``: any strides; may be
    ``(x, residual)``.
    """
    results = residual_norm.Results(x, out)
    mean = rstd = None
    if save:
        mean = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)
        rstd = torch.empty_like(mean)
    norm_forward.forward(
        "add_layer_norm.forward",
        x,
        residual,
        weight,
        bias,
        results.y,
        results.summed,
        mean,
        rstd,
        y_stride=results.y_stride,
        summed_stride=results.summed_stride,
        eps=float(eps),
        centred=True,
        activation=activation,
    )
    y, summed = results.returned(out)
    return (y, summed) if mean is None or rstd is None else (y, summed, mean, rstd)


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
    needs: tuple[bool, bool, bool, bool] = (True, True, True, True),
) -> tuple[Tensor | None, ...]:
    """The gradients for ``x``, ``residual``, ``weight`` and ``bias`` that ``needs`` asks for; None is zero.

    ``grad_y``, ``grad_summed``: any strides. The gradients of ``x`` and ``residual`` are equal, each in its own memory.
    """
    del eps  # it is in rstd already
    needs = (*needs[:3], needs[3] and bias is not None)
    if grad_y is None:
        return residual_norm.past_the_norm(grad_summed, summed, weight, needs)
    return norm_backward.backward(
        "add_layer_norm.backward",
        grad_y,
        grad_summed,
        summed,
        weight,
        bias,
        mean,
        rstd,
        activation=activation,
        needs=needs,
    )
