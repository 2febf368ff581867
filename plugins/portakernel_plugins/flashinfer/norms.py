"""Norms by FlashInfer's kernels in CuTe DSL, which compute in float32 and round once.

They are called by name, because FlashInfer's own functions may choose its CUDA kernels, which are compiled with
-use_fast_math: numbers that are subnormal in float32, as bfloat16 has them, count as zero there.
"""
# pyright: reportMissingImports=false
# FlashInfer is an optional requirement.

from __future__ import annotations

import torch
from flashinfer.norm.kernels import layernorm_cute, rmsnorm_cute
from flashinfer.utils import device_support_pdl
from torch import Tensor

from portakernel.authoring.tensors import announce_once, delivered, dense, room, rows

_WIDE = 16  # bytes that are read at once
_ROWS = 128  # what rms_norm asks of its rows' addresses at most: a power of two that divides a row's bytes


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, out: Tensor | None = None) -> Tensor:
    """``x * rsqrt(mean(x**2, -1) + eps) * (weight + weight_offset)``; x: (..., N), weight: (N,) of one dtype."""
    y = room(x, out, _ROWS)
    if x.numel():
        early = device_support_pdl(x.device)
        # a tensor whose elements 32 bits do not number has a kernel of its own
        announce_once("FlashInfer's rms_norm", x.dtype, x.shape[-1], weight_offset, x.numel() >= 1 << 31, x.device)
        rmsnorm_cute(
            rows(dense(x, _ROWS)), dense(weight, _WIDE), rows(y), eps, weight_bias=weight_offset, enable_pdl=early
        )
    return delivered(y, out)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float, out: Tensor | None = None
) -> Tensor:
    """``(x - mean) * rstd * weight + bias``; x: (..., N), weight and bias: (N,) of one dtype."""
    y = room(x, out, _WIDE)
    if x.numel():
        weight = dense(weight, _WIDE)
        bias = torch.zeros_like(weight) if bias is None else dense(bias, _WIDE)
        announce_once("FlashInfer's layer_norm", x.dtype, weight.dtype, x.shape[-1], x.device)
        layernorm_cute(rows(y), rows(dense(x, _WIDE)), weight, bias, eps)
    return delivered(y, out)
