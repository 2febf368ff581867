"""Norms by QuACK's one kernel for them and its one backward, called below its autograd functions and torch operators.

Those choose nothing but what is allocated, and their dispatch costs more than small norms take.
"""
# pyright: reportMissingImports=false
# QuACK is an optional requirement.

from __future__ import annotations

from typing import Any

import torch
from quack.rmsnorm import _rmsnorm_bwd, _rmsnorm_fwd
from quack.rmsnorm_config import get_sm_count
from torch import Tensor

from portakernel.authoring.tensors import announce_once, delivered, dense, room, rows

_WIDE = 16  # bytes that are read at once


def rms_norm(
    x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, out: Tensor | None = None, save: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """``x * rsqrt(mean(x**2, -1) + eps) * (weight + weight_offset)``; x: (..., N), weight: (N,); rstd: (M,)."""
    y, rstd = room(x, out, _WIDE), _per_row(x) if save else None
    _normalise(x, weight, y, eps, rstd=rstd, weight_offset=weight_offset)
    return delivered(y, out) if rstd is None else (y, rstd)


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
    grad_x, grad_weight, _ = _gradients(grad_y, x, weight, rstd, needs=(*needs, False), weight_offset=weight_offset)
    return grad_x, grad_weight


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
    """``(y, summed)`` with ``summed = x + residual``: (..., N), weight: (N,); y is the norm of the sum before rounding.

    rstd: (M,).
    """
    to_y, to_summed = (None, None) if out is None else out
    y, summed, rstd = room(x, to_y, _WIDE), room(x, to_summed, _WIDE), _per_row(x) if save else None
    residuals = {"residual": rows(dense(residual, _WIDE)), "residual_out": rows(summed)}
    _normalise(x, weight, y, eps, rstd=rstd, weight_offset=weight_offset, **residuals)
    return (delivered(y, to_y), delivered(summed, to_summed)) if rstd is None else (y, summed, rstd)


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
    grad_y = torch.zeros_like(summed) if grad_y is None else grad_y
    wanted = (needs[0] or needs[1], needs[2], False)
    grad, grad_weight, _ = _gradients(
        grad_y, summed, weight, rstd, grad_summed=grad_summed, needs=wanted, weight_offset=weight_offset
    )
    grad_x = grad if needs[0] else None
    grad_residual = (grad if grad_x is None or grad is None else grad.clone()) if needs[1] else None
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
    y, shift = room(x, out, _WIDE), None if bias is None else dense(bias, _WIDE)
    mean, rstd = (_per_row(x), _per_row(x)) if save else (None, None)
    _normalise(x, weight, y, eps, bias=shift, rstd=rstd, mean=mean, is_layernorm=True)
    return delivered(y, out) if mean is None or rstd is None else (y, mean, rstd)


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
    return _gradients(grad_y, x, weight, rstd, mean=mean, needs=needs)


def _per_row(x: Tensor) -> Tensor:
    return x.new_empty(x.numel() // x.shape[-1], dtype=torch.float32)


def _normalise(x: Tensor, weight: Tensor, y: Tensor, eps: float, **more: Any) -> None:
    """Writes the norm into ``y``, and what ``more`` names beside it."""
    kinds = (name if isinstance(value, Tensor) else (name, value) for name, value in more.items() if value is not None)
    announce_once("QuACK's norm", x.dtype, weight.dtype, x.shape[-1], *kinds)
    _rmsnorm_fwd(rows(dense(x, _WIDE)), dense(weight, _WIDE), rows(y), eps=eps, **more)


def _gradients(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    rstd: Tensor,
    *,
    needs: tuple[bool, bool, bool],
    mean: Tensor | None = None,
    grad_summed: Tensor | None = None,
    weight_offset: float = 0.0,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients for ``x`` (with ``grad_summed`` on top), ``weight`` and ``bias``; with ``mean`` those of layer_norm.

    Blocks of rows sum their share of a parameter's gradient in float32, one after the other; a second sum adds those.
    """
    columns, grad_x = x.shape[-1], room(x)
    tokens, blocks = x.numel() // columns, get_sm_count(columns, x.device)

    def partial(needed: bool) -> Tensor | None:
        # of no rows QuACK writes nothing
        make = torch.empty if tokens else torch.zeros
        return make((blocks, columns), dtype=torch.float32, device=x.device) if needed else None

    def total(part: Tensor | None) -> Tensor | None:
        return None if part is None else part.sum(0).to(weight.dtype)

    of_weight, of_bias = partial(needs[1]), partial(needs[2])
    kind = weight_offset, needs[1:], mean is None, grad_summed is None, (tokens - 1).bit_length()
    announce_once("QuACK's gradient of norms", x.dtype, weight.dtype, columns, *kind)
    _rmsnorm_bwd(
        rows(dense(x, _WIDE)),
        dense(weight, _WIDE),
        rows(dense(grad_y, _WIDE)),
        rstd,
        rows(grad_x),
        of_weight,
        of_bias,
        dresidual_out=None if grad_summed is None else rows(dense(grad_summed, _WIDE)),
        sm_count=blocks,
        mean=mean,
        is_layernorm=mean is not None,
        weight_offset=weight_offset,
    )
    return grad_x if needs[0] else None, total(of_weight), total(of_bias)
