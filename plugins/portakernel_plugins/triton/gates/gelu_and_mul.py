"""``gelu_and_mul`` and its gradient in Triton: ``gelu(x[..., :N]) * x[..., N:]``, see ``gated``."""

from __future__ import annotations

from torch import Tensor

from portakernel_plugins.triton.gates import gated

_ACTIVATIONS = {"none": "gelu", "tanh": "gelu_tanh"}


def gelu_and_mul(x: Tensor, *, approximate: str, out: Tensor | None = None) -> Tensor:
    """``gelu(gate) * up``. ``x``: ``(..., 2N)``; ``out``: ``(..., N)``; any strides."""
    return gated.forward("gelu_and_mul", _ACTIVATIONS[approximate], x, out)


def backward(grad_y: Tensor, x: Tensor, *, approximate: str, needs: tuple[bool] = (True,)) -> tuple[Tensor | None]:
    """The gradient for ``x``: ``grad_y * up * gelu'(gate)`` and ``grad_y * gelu(gate)``."""
    return (gated.backward("gelu_and_mul", _ACTIVATIONS[approximate], grad_y, x) if needs[0] else None,)
