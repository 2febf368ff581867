"""``rms_norm`` by PyTorch's fused operator, which accumulates in float32 and rounds once."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel_plugins.torch.norms.row_blocks import BLOCK_ELEMENTS, row_blocks
from portakernel_plugins.torch.operators import operator

# PyTorch's sums divide a single row among threads from 2**15 elements on.
_LONGEST_ROW = (1 << 15) - 1

# The public torch.rms_norm does not return rstd, and its gradient cannot take one.
_forward = operator("_fused_rms_norm")
_backward = operator("_fused_rms_norm_backward")


def rms_norm(
    x: Tensor, weight: Tensor, *, eps: float, out: Tensor | None = None, save: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """``x * rsqrt(mean(x**2, -1) + eps) * weight``; x: (..., N), weight: (N,) of one dtype; rstd: (M,) float32."""
    y, rstd = _forward(x, weight.shape, weight, eps)
    y = y.contiguous() if out is None else out.copy_(y)
    return (y, rstd.reshape(-1)) if save else y


def recorded(x: Tensor, weight: Tensor, *, eps: float, out: Tensor | None = None) -> Tensor:
    """The same as an operator whose gradient PyTorch records itself, without a step in Python."""
    y = torch.rms_norm(x, weight.shape, weight, eps)
    return y.contiguous() if out is None else out.copy_(y)


def backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, *, eps: float, needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients for ``x`` (..., N) and ``weight`` (N,), those that ``needs`` asks for."""
    del eps  # it is in rstd
    grads = _backward(grad_y, x, weight.shape, rstd.reshape(*x.shape[:-1], 1), weight, needs)
    return grads[0], grads[1]


def rms_norm_cpu(
    x: Tensor, weight: Tensor, *, eps: float, weight_offset: float = 0.0, out: Tensor | None = None, save: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """The same on CPUs, where ``weight`` may be float32 beside a 16-bit ``x``, and an offset is added to it."""
    factor = scale(weight, weight_offset)
    if few(x):
        dense = x.contiguous()
        if save or out is not None or factor.dtype is not x.dtype:
            return rms_norm(dense, factor, eps=eps, out=out, save=save)
        return torch.rms_norm(dense, factor.shape, factor, eps)
    y = x.new_empty(x.shape) if out is None else out
    rstd = torch.empty((*x.shape[:-1], 1), device=x.device)
    for rows in row_blocks(x.shape[:-1], x.shape[-1]):
        norm_rows(x[rows], factor, eps, y[rows], rstd[rows])
    return (y, rstd.view(-1)) if save else y


def few(x: Tensor) -> bool:
    """Whether ``x`` goes to PyTorch's own chain of operators whole: up to the size of a block.

    Longer than ``_LONGEST_ROW``, a block's single row would be summed in another order than several: those go too.
    """
    return x.numel() <= BLOCK_ELEMENTS or x.shape[-1] > _LONGEST_ROW


def norm_rows(x: Tensor, factor: Tensor, eps: float, y: Tensor, rstd: Tensor) -> None:
    """That chain, operator by operator, for a block of rows ``x``, ``y``: (..., N), rstd: (..., 1)."""
    # squares without gaps: a row's are added in the same order whatever its strides and its neighbours
    wide = x.contiguous().float()
    torch.mean(wide.square(), -1, True, out=rstd).add_(eps).rsqrt_()
    if y.dtype is torch.float32:
        torch.mul(wide, rstd, out=y).mul_(factor)
    else:
        y.copy_(wide.mul_(rstd).mul_(factor))


def backward_cpu(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    needs: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients on CPUs, for which PyTorch has no operator: in float32, some rows at a time."""
    del eps  # it is in rstd
    factor, (count, columns) = scale(weight, weight_offset), (rstd.numel(), x.shape[-1])
    all_x, all_grads, rstd = x.reshape(count, columns), grad_y.reshape(count, columns), rstd.reshape(count, 1)
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device) if needs[0] else None
    grad_weight = torch.zeros(columns, device=x.device) if needs[1] else None
    step = max(1, BLOCK_ELEMENTS // max(1, columns))
    for start in range(0, count, step):
        rows = slice(start, start + step)
        grad, normed = all_grads[rows].float(), all_x[rows] * rstd[rows]
        if grad_weight is not None:
            grad_weight += (grad * normed).sum(0)
        if grad_x is not None:
            weighted = grad * factor
            mean = (weighted * normed).mean(-1, keepdim=True)
            torch.mul(weighted.addcmul_(normed, mean, value=-1), rstd[rows], out=grad_x.view(count, columns)[rows])
    return grad_x, None if grad_weight is None else grad_weight.to(weight.dtype)


def scale(weight: Tensor, offset: float) -> Tensor:
    """What normalised rows are multiplied by: a sum with 16-bit weights is not to be rounded."""
    return weight.float() + offset if offset else weight


def rms_norm_mps(x: Tensor, weight: Tensor, *, eps: float, out: Tensor | None = None) -> Tensor:
    """The same by Metal's kernel, which reads rows without gaps, and returns no rstd."""
    y = _forward(x.contiguous(), weight.shape, weight.contiguous(), eps)[0] if x.numel() else torch.empty_like(x)
    return y if out is None else out.copy_(y)
