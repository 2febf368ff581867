"""``silu_and_mul`` and its gradient in Triton: ``silu(x[..., :N]) * x[..., N:]``, see ``gated``."""

from __future__ import annotations

from torch import Tensor

from portakernel_plugins.triton.gates import gated


def silu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(gate) * up``. ``x``: ``(..., 2N)``; ``out``: ``(..., N)``; any strides."""
    return gated.forward("silu_and_mul", "silu", x, out)


def backward(grad_y: Tensor, x: Tensor, *, needs: tuple[bool] = (True,)) -> tuple[Tensor | None]:
    """The gradient for ``x``: ``grad_y * up * silu'(gate)`` and ``grad_y * silu(gate)``."""
    return (gated.backward("silu_and_mul", "silu", grad_y, x) if needs[0] else None,)
