"""``silu_and_mul`` and ``gelu_and_mul`` by FlashInfer's CUDA kernels, which compute in float32 and round once."""
# pyright: reportMissingImports=false
# FlashInfer is an optional requirement.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flashinfer import activation
from torch import Tensor

from portakernel.authoring.tensors import announce_once, delivered, dense, room

_WIDE = 16  # bytes that are read at once


def silu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(x[..., :N]) * x[..., N:]``; x: (..., 2N)."""
    return _gated(activation.silu_and_mul, x, out)


def gelu_and_mul(x: Tensor, *, approximate: str, out: Tensor | None = None) -> Tensor:
    """``gelu(x[..., :N]) * x[..., N:]``, by erf; x: (..., 2N)."""
    del approximate  # it is "none": nothing else is claimed
    return _gated(activation.gelu_and_mul, x, out)


def _gated(act: Callable[..., Any], x: Tensor, out: Tensor | None) -> Tensor:
    y = room(x[..., : x.shape[-1] // 2], out, _WIDE)
    if y.numel():
        announce_once(f"FlashInfer's {act.__name__}", x.device)
        act(dense(x, _WIDE), out=y)
    return delivered(y, out)
