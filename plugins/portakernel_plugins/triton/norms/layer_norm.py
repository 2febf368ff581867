"""``layer_norm`` and its gradient in Triton.

    y = (x - mean) * rstd * weight + bias,    rstd = 1 / sqrt(mean((x - mean)**2) + eps)    per row

The variance is the mean of squared deviations from the mean, whose digits do not cancel. ``norm_forward`` and
``norm_backward`` hold the kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.authoring.tensors import delivered, row_target
from portakernel_plugins.triton.norms import norm_backward, norm_forward


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float,
    out: Tensor | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """``(x - mean) * rstd * weight + bias``; ``mean`` and ``rstd`` too when ``save``.

    ``x``: ``(..., N)``; float32, float16 or bfloat16. ``weight``, ``bias``: ``(N,)``, any stride, of the dtype of ``x``
    or float32. ``mean``, ``rstd``: ``(M,)`` float32. ``out``: any strides; may be ``x`` itself.
    """
    n = x.shape[-1]
    y, y_stride = row_target(x, out)
    mean = rstd = None
    if save:
        mean = torch.empty(x.numel() // n, dtype=torch.float32, device=x.device)
        rstd = torch.empty_like(mean)
    norm_forward.forward(
        "layer_norm.forward",
        x,
        None,
        weight,
        bias,
        y,
        None,
        mean,
        rstd,
        y_stride=y_stride,
        eps=float(eps),
        centred=True,
    )
    y = delivered(y, out)
    return y if mean is None or rstd is None else (y, mean, rstd)


def backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    needs: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, ...]:
    """The gradients for ``x``, ``weight`` and ``bias`` that ``needs`` asks for, from what forward saved.

    ``grad_y``: any strides. The gradient of a row of ``x`` does not depend on the other rows.
    """
    del eps  # it is in rstd already
    needs_all = (needs[0], False, needs[1], needs[2])
    grad_x, _, *sums = norm_backward.backward(
        "layer_norm.backward", grad_y, None, x, weight, None, mean, rstd, needs=needs_all
    )
    return (grad_x, *sums)
