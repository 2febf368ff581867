"""``add_rms_norm`` and its gradient in Triton: a sum rounded to its dtype, and ``rms_norm`` of it.

    summed = x + residual;    y = summed * rstd * (weight + weight_offset)

``summed`` is normalised as it is stored. ``norm_forward`` and ``norm_backward`` hold the kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel_plugins.triton.norms import norm_backward, norm_forward, residual_norm


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    out: tuple[Tensor, Tensor] | None = None,
    save: bool = False,
) -> tuple[Tensor, ...]:
    """``(y, summed)``; ``rstd`` too when ``save``.

    ``x``, ``residual``: ``(..., N)`` of one dtype of float32, float16, bfloat16. ``weight``: ``(N,)``, any stride, of
    that dtype or float32. ``rstd``: ``(M,)`` float32. ``out``: any strides; may be ``(x, residual)``.
    """
    results = residual_norm.Results(x, out)
    rstd = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device) if save else None
    norm_forward.forward(
        "add_rms_norm.forward",
        x,
        residual,
        weight,
        None,
        results.y,
        results.summed,
        None,
        rstd,
        y_stride=results.y_stride,
        summed_stride=results.summed_stride,
        eps=float(eps),
        weight_offset=float(weight_offset),
        centred=False,
    )
    y, summed = results.returned(out)
    return (y, summed) if rstd is None else (y, summed, rstd)


def backward(
    grad_y: Tensor | None,
    grad_summed: Tensor | None,
    weight: Tensor,
    summed: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    needs: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, ...]:
    """The gradients for ``x``, ``residual`` and ``weight`` that ``needs`` asks for; None is zero.

    ``grad_y``, ``grad_summed``: any strides. The gradients of ``x`` and ``residual`` are equal, each in its own memory.
    """
    del eps  # it is in rstd already
    needs_all = (*needs, False)
    if grad_y is None:
        return residual_norm.past_the_norm(grad_summed, summed, weight, needs_all)[:3]
    return norm_backward.backward(
        "add_rms_norm.backward",
        grad_y,
        grad_summed,
        summed,
        weight,
        None,
        None,
        rstd,
        weight_offset=float(weight_offset),
        needs=needs_all,
    )[:3]
