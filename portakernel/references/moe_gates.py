"""What the experts of ``moe_mlp`` make of gate and up, and its slopes.

``swiglu_oai`` is gpt-oss' gate: ``(up' + 1) * gate' * sigmoid(1.702 * gate')`` with ``gate' = min(gate, 7)`` and
``up' = min(max(up, -7), 7)``; the others are ``activation(gate) * up``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.references.activations import ACTIVATIONS

_STEEPNESS, _LIMIT = 1.702, 7.0


def gated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """What the second product takes."""
    if activation != "swiglu_oai":
        return ACTIVATIONS[activation].value(gate) * up
    gate = gate.clamp(max=_LIMIT)
    return (up.clamp(-_LIMIT, _LIMIT) + 1) * (gate * (_STEEPNESS * gate).sigmoid())


def slopes(gate: Tensor, up: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The derivatives of ``gated`` for gate and up."""
    if activation != "swiglu_oai":
        function = ACTIVATIONS[activation]
        return up * function.slope(gate), function.value(gate)
    low, share = gate.clamp(max=_LIMIT), (_STEEPNESS * gate.clamp(max=_LIMIT)).sigmoid()
    of_gate = (up.clamp(-_LIMIT, _LIMIT) + 1) * (share + _STEEPNESS * low * share * (1 - share))
    return of_gate * (gate <= _LIMIT), low * share * (up.abs() <= _LIMIT)


def plainly_gated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """``gated`` by PyTorch's operators, in its arguments' dtype."""
    if activation == "silu":
        return torch.nn.functional.silu(gate) * up
    if activation == "swiglu_oai":
        return gated(gate, up, activation)
    return torch.nn.functional.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up
