"""``gelu_and_mul`` and its gradient as formulas (GEGLU: Shazeer 2020, arXiv 2002.05202).

With ``gate, up = x[..., :N], x[..., N:]`` the output is ``y = gelu(gate) * up``; its slope in ``gate`` is
``gelu'(gate) * up``, in ``up`` it is ``gelu(gate)``. ``gelu(z) = z * (1 + erf(z / sqrt(2))) / 2`` or, with
``approximate="tanh"``, ``z * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 * z**3))) / 2``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.references.activations import ACTIVATIONS

_GELUS = {"none": ACTIVATIONS["gelu"], "tanh": ACTIVATIONS["gelu_tanh"]}


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    middle = x.shape[-1] // 2
    return x[..., :middle], x[..., middle:]


def forward(x: Tensor, *, approximate: str, out: Tensor | None = None) -> Tensor:
    """``gelu(x[..., :N]) * x[..., N:]``, rounded once. ``x: (*M, 2N)``, the output ``(*M, N)``."""
    gate, up = _halves(_wide(x))
    y = (_GELUS[approximate].value(gate) * up).to(x.dtype)
    return y.contiguous() if out is None else out.copy_(y)


def backward(grad_y: Tensor, x: Tensor, *, approximate: str, needs: tuple[bool, ...] = (True,)) -> tuple[Tensor | None]:
    """The gradient for ``x``, ``(*M, 2N)``, from that of ``y``."""
    if not needs[0]:
        return (None,)
    gelu = _GELUS[approximate]
    g, (gate, up) = _wide(grad_y), _halves(_wide(x))
    return (torch.cat((g * up * gelu.slope(gate), g * gelu.value(gate)), -1).to(x.dtype),)


def magnitudes(grad_y: Tensor, x: Tensor, *, approximate: str) -> tuple[Tensor]:
    """The sums of absolute terms behind the gradient, which bound what rounding can do to it."""
    gelu = _GELUS[approximate]
    g, (gate, up) = grad_y.double().abs(), _halves(x.double())
    return (torch.cat((g * up.abs() * gelu.slope_magnitude(gate), g * gelu.value_magnitude(gate)), -1),)


def output_magnitudes(x: Tensor, *, approximate: str) -> tuple[Tensor]:
    """The sum of absolute terms behind each output: ``1`` and ``erf`` (``tanh``) cancel where the gate is negative."""
    gate, up = _halves(x.double())
    return (_GELUS[approximate].value_magnitude(gate) * up.abs(),)
