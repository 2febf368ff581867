"""Norms by Liger's kernels, called below its autograd functions, which overwrite gradients that are not theirs.

Rows and weights are read without gaps: others are copied, as those functions do.
"""
# pyright: reportMissingImports=false
# Liger is an optional requirement.

from __future__ import annotations

import torch
from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_backward, fused_add_rms_norm_forward
from liger_kernel.ops.layer_norm import layer_norm_backward, layer_norm_forward
from liger_kernel.ops.rms_norm import rms_norm_backward, rms_norm_forward
from liger_kernel.ops.utils import calculate_settings
from torch import Tensor

from portakernel.authoring.tensors import delivered, dense, rows

# Liger's casting mode "gemma", by the number that backward takes: float32 throughout, rounded once. "llama" rounds
# before the weight.
_GEMMA = 1
# What fused_add_rms_norm_forward launches with, and asks backward to.
_STAGES = 2


def rms_norm(
    x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, out: Tensor | None = None, save: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """``x * rsqrt(mean(x**2, -1) + eps) * (weight + weight_offset)``; x: (..., N), weight: (N,); rstd: (M,)."""
    y, _, rstd, *_ = rms_norm_forward(x.contiguous(), weight.contiguous(), eps, weight_offset, _GEMMA, None)
    return (y, rstd) if save else delivered(y, out)


def rms_norm_gradients(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    weight_offset: float,
    needs: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients for ``x`` (..., N) and ``weight`` (N,), those that ``needs`` asks for."""
    del eps  # it is in rstd
    block, warps = calculate_settings(x.shape[-1])
    grad_x, grad_weight = rms_norm_backward(
        grad_y.contiguous(),
        rows(dense(x)),
        weight.contiguous(),
        rstd,
        weight_offset,
        _GEMMA,
        block,
        warps,
        in_place=False,
        row_mode=None,
        needs_dw=needs[1],
    )
    return grad_x if needs[0] else None, grad_weight


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    *,
    eps: float,
    weight_offset: float,
    out: tuple[Tensor, Tensor] | None = None,
    save: bool = False,
) -> tuple[Tensor, ...]:
    """``(y, summed)`` with ``summed = x + residual``, rounded before its norm: (..., N), weight: (N,); rstd: (M,)."""
    y, summed, rstd, *_ = fused_add_rms_norm_forward(
        x.contiguous(), residual.contiguous(), weight.contiguous(), eps, weight_offset, _GEMMA
    )
    if out is not None:
        y, summed = out[0].copy_(y), out[1].copy_(summed)
    return (y, summed, rstd) if save else (y, summed)


def add_rms_norm_gradients(
    grad_y: Tensor | None,
    grad_summed: Tensor | None,
    weight: Tensor,
    summed: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    weight_offset: float,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients for ``x`` and ``residual`` (..., N), equal, and ``weight`` (N,), as ``needs`` asks; None is zero."""
    del eps
    summed = summed.contiguous()
    block, warps = calculate_settings(summed.shape[-1])
    grad, _, grad_weight = fused_add_rms_norm_backward(
        torch.zeros_like(summed) if grad_y is None else grad_y.contiguous(),
        torch.zeros_like(summed) if grad_summed is None else grad_summed.contiguous(),
        summed,
        weight.contiguous(),
        rstd,
        weight_offset,
        _GEMMA,
        block,
        warps,
        _STAGES,
        in_place=False,
        needs_dw=needs[2],
    )
    grad_x = grad if needs[0] else None
    grad_residual = (grad if grad_x is None else grad.clone()) if needs[1] else None
    return grad_x, grad_residual, grad_weight


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float,
    out: Tensor | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """``(x - mean) * rstd * weight + bias``; x: (..., N), weight and bias: (N,) of one dtype; mean, rstd: (M,)."""
    weight = weight.contiguous()
    bias = torch.zeros_like(weight) if bias is None else bias.contiguous()
    y, _, mean, rstd, *_ = layer_norm_forward(x.contiguous(), weight, bias, eps)
    return (y, mean, rstd) if save else delivered(y, out)


def layer_norm_gradients(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients for ``x`` (..., N), ``weight`` and ``bias`` (N,), those that ``needs`` asks for."""
    del eps
    weight = weight.contiguous()
    # of bias Liger reads the dtype alone, which is weight's
    grad_x, grad_weight, grad_bias = layer_norm_backward(
        grad_y.contiguous(), rows(dense(x)), weight, weight, mean, rstd, needs_dw=needs[1], needs_db=needs[2]
    )
    return grad_x if needs[0] else None, grad_weight, grad_bias
