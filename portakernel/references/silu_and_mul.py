"""``silu_and_mul`` and its gradient as formulas (SwiGLU: Shazeer 2020, arXiv 2002.05202).

With ``gate, up = x[..., :N], x[..., N:]`` and ``s = sigmoid(gate)``, the output is ``y = gate * s * up``; its slope in
``gate`` is ``s * (1 + gate * (1 - s)) * up``, in ``up`` it is ``gate * s``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.references.activations import ACTIVATIONS

_SILU = ACTIVATIONS["silu"]


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    middle = x.shape[-1] // 2
    return x[..., :middle], x[..., middle:]


def forward(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(x[..., :N]) * x[..., N:]``, rounded once. ``x: (*M, 2N)``, the output ``(*M, N)``."""
    gate, up = _halves(_wide(x))
    y = (_SILU.value(gate) * up).to(x.dtype)
    return y.contiguous() if out is None else out.copy_(y)


def backward(grad_y: Tensor, x: Tensor, *, needs: tuple[bool, ...] = (True,)) -> tuple[Tensor | None]:
    """The gradient for ``x``, ``(*M, 2N)``, from that of ``y``."""
    if not needs[0]:
        return (None,)
    g, (gate, up) = _wide(grad_y), _halves(_wide(x))
    return (torch.cat((g * up * _SILU.slope(gate), g * _SILU.value(gate)), -1).to(x.dtype),)


def magnitudes(grad_y: Tensor, x: Tensor) -> tuple[Tensor]:
    """The sums of absolute terms behind the gradient, which bound what rounding can do to it."""
    g, (gate, up) = grad_y.double().abs(), _halves(x.double())
    return (torch.cat((g * up.abs() * _SILU.slope_magnitude(gate), g * _SILU.value_magnitude(gate)), -1),)
