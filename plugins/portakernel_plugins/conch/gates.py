"""``silu_and_mul`` and ``gelu_and_mul`` by Conch's kernels, which round the activation before the product."""
# pyright: reportMissingImports=false
# Conch is an optional requirement.

from __future__ import annotations

from collections.abc import Callable

from conch.kernels.activation.gelu_tanh_and_mul import gelu_tanh_and_mul_launcher
from conch.kernels.activation.silu_and_mul import silu_and_mul_launcher
from torch import Tensor

from portakernel.authoring.tensors import delivered, dense, room, rows


def silu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(x[..., :N]) * x[..., N:]``; x: (..., 2N)."""
    return _gated(silu_and_mul_launcher, x, out)


def gelu_and_mul(x: Tensor, *, approximate: str, out: Tensor | None = None) -> Tensor:
    """``gelu(x[..., :N]) * x[..., N:]`` by tanh; x: (..., 2N)."""
    del approximate  # it is "tanh": nothing else is claimed
    return _gated(gelu_tanh_and_mul_launcher, x, out)


def _gated(launch: Callable[[Tensor, Tensor], None], x: Tensor, out: Tensor | None) -> Tensor:
    y = room(x[..., : x.shape[-1] // 2], out)
    launch(rows(y), rows(dense(x)))
    return delivered(y, out)
