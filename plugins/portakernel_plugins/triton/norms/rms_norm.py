"""``rms_norm`` and its gradient in Triton.

With ``u = x * rstd`` and ``w = weight + weight_offset``:

    rstd        = 1 / sqrt(mean(x**2) + eps)                   per row
    y           = u * w
    grad_x      = rstd * (g * w - u * mean(g * w * u))         g: gradient of y
    grad_weight = sum over rows of g * u

Everything is computed in float32 and rounded once, when it is stored. ``norm_forward`` and ``norm_backward`` hold the
kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.authoring.tensors import delivered, row_target
from portakernel_plugins.triton.norms import norm_backward, norm_forward


def rms_norm(
    x: Tensor, weight: Tensor, *, eps: float, weight_offset: float = 0.0, out: Tensor | None = None, save: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """``x * rstd * (weight + weight_offset)``, and ``rstd`` too when ``save``.

    ``x``: ``(..., N)``, any strides; float32, float16 or bfloat16. ``weight``: ``(N,)``, any stride, of the dtype of
    ``x`` or float32. ``rstd``: ``(M,)`` float32. ``out``: any strides; may be ``x`` itself.
    """
    n = x.shape[-1]
    y, y_stride = row_target(x, out)
    rstd = torch.empty(x.numel() // n, dtype=torch.float32, device=x.device) if save else None
    norm_forward.forward(
        "rms_norm.forward",
        x,
        None,
        weight,
        None,
        y,
        None,
        None,
        rstd,
        y_stride=y_stride,
        eps=float(eps),
        weight_offset=float(weight_offset),
        centred=False,
    )
    y = delivered(y, out)
    return y if rstd is None else (y, rstd)


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
    """The gradients for ``x`` and ``weight`` that ``needs`` asks for, each of its argument's shape and dtype.

    Shapes and dtypes as in forward; ``rstd``: ``(M,)`` float32, from forward; ``grad_y``: any strides. No atomics: each
    program sums its rows in order and the programs' sums are added in order, so that equal calls on one device give
    equal bits. ``grad_weight`` is a sum over rows and how it is grouped depends on M; ``grad_x`` does not.
    """
    del eps  # it is in rstd already
    needs_all = (needs[0], False, needs[1], False)
    grad_x, _, grad_weight, _ = norm_backward.backward(
        "rms_norm.backward",
        grad_y,
        None,
        x,
        weight,
        None,
        None,
        rstd,
        weight_offset=float(weight_offset),
        needs=needs_all,
    )
    return grad_x, grad_weight
