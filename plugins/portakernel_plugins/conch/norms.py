"""Norms by Conch's kernels, through its launchers; two of them write over what they read, which are copies here."""
# pyright: reportMissingImports=false
# Conch is an optional requirement.

from __future__ import annotations

from conch.kernels.normalization.gemma_rms_norm import gemma_rms_norm_inplace_launcher
from conch.kernels.normalization.rms_norm import fused_add_rms_norm_launcher, rms_norm_launcher
from torch import Tensor

from portakernel.authoring.tensors import delivered, dense, room, rows


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, out: Tensor | None = None) -> Tensor:
    """``x * rsqrt(mean(x**2, -1) + eps) * weight``, rounded before the weight; x: (..., N), weight: (N,)."""
    y = room(x, out)
    rms_norm_launcher(rows(y), rows(dense(x)), weight.contiguous(), eps)
    return delivered(y, out)


def rms_norm_gemma(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, out: Tensor | None = None) -> Tensor:
    """``x * rsqrt(mean(x**2, -1) + eps) * (weight + 1)``, rounded once; x: (..., N), weight: (N,)."""
    del weight_offset  # it is 1: nothing else is claimed
    y = room(x, out).copy_(x)
    gemma_rms_norm_inplace_launcher(rows(y), weight.contiguous(), eps)
    return delivered(y, out)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """``(y, summed)`` with ``summed = x + residual``: (..., N), weight: (N,); y is rounded before the weight."""
    to_y, to_summed = (None, None) if out is None else out
    y, summed = room(x, to_y).copy_(x), room(residual, to_summed).copy_(residual)
    fused_add_rms_norm_launcher(rows(y), rows(summed), weight.contiguous(), eps)
    return delivered(y, to_y), delivered(summed, to_summed)
