"""``rms_norm`` by PyTorch's fused operator, which accumulates in float32 and rounds once."""

from __future__ import annotations

import torch
from torch import Tensor

# The public torch.rms_norm does not return rstd, and its gradient cannot take one.
_forward = torch.ops.aten._fused_rms_norm.default
_backward = torch.ops.aten._fused_rms_norm_backward.default


def rms_norm(
    x: Tensor, weight: Tensor, *, eps: float, out: Tensor | None = None, save: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """``x * rsqrt(mean(x**2, -1) + eps) * weight``; x: (..., N), weight: (N,) of one dtype; rstd: (M,) float32."""
    y, rstd = _forward(x, weight.shape, weight, eps)
    y = y.contiguous() if out is None else out.copy_(y)
    return (y, rstd.reshape(-1)) if save else y


def backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, *, eps: float, needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients for ``x`` (..., N) and ``weight`` (N,), those that ``needs`` asks for."""
    del eps  # it is in rstd
    grads = _backward(grad_y, x, weight.shape, rstd.reshape(*x.shape[:-1], 1), weight, needs)
    return grads[0], grads[1]


def rms_norm_mps(x: Tensor, weight: Tensor, *, eps: float, out: Tensor | None = None) -> Tensor:
    """The same by Metal's kernel, which reads rows without gaps, and returns no rstd."""
    y = _forward(x.contiguous(), weight.shape, weight.contiguous(), eps)[0] if x.numel() else torch.empty_like(x)
    return y if out is None else out.copy_(y)
