"""``linear_act`` and its gradients as formulas.

With ``z = x @ weight.T + bias`` and ``d = grad_y * activation'(z)``, the gradients are those of a linear layer:
``d @ weight`` for x, ``d.T @ x`` for weight, the sum of d's rows for bias.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu"]

# gelu_tanh is x/2 * (1 + tanh(u)) = x * sigmoid(2 * u) with u = sqrt(2 / pi) * (x + 0.044715 * x**3)
_SLOPE, _CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715
# Every derivative is 0 or 1 out there, where its formula would multiply 0 by an overflowed square.
_FLAT = 1000.0


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _activated(z: Tensor, activation: Activation) -> Tensor:
    match activation:
        case "none":
            return z
        case "relu":
            return z.clamp(min=0)
        case "gelu":
            # half the complementary error function: 1 + erf cancels for negative z
            return z * 0.5 * torch.erfc(-z * math.sqrt(0.5))
        case "gelu_tanh":
            return z * torch.sigmoid(_SLOPE * (z + _CUBIC * z**3))
        case "silu":
            return z * torch.sigmoid(z)


def _derivative(z: Tensor, activation: Literal["gelu", "gelu_tanh", "silu"]) -> Tensor:
    z = z.clamp(-_FLAT, _FLAT)
    match activation:
        case "gelu":
            density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
            return 0.5 * torch.erfc(-z * math.sqrt(0.5)) + z * density
        case "gelu_tanh":
            gate = torch.sigmoid(_SLOPE * (z + _CUBIC * z**3))
            return gate + z * gate * (1 - gate) * _SLOPE * (1 + 3 * _CUBIC * z.square())
        case "silu":
            gate = torch.sigmoid(z)
            return gate + z * gate * (1 - gate)


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation = "none",
    out: Tensor | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """``activation(x @ weight.T + bias)``, rounded once; with ``save`` what backward needs of it too."""
    z = _wide(x) @ _wide(weight).T
    if bias is not None:
        z = z + _wide(bias)
    y = _activated(z, activation).to(x.dtype)
    y = y.contiguous() if out is None else out.copy_(y)
    if not save:
        return y
    return (y,) if activation in ("none", "relu") else (y, z.to(x.dtype).contiguous())


def backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    preactivation: Tensor | None = None,
    *,
    activation: Activation = "none",
    needs: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients for ``x``, ``weight`` and ``bias`` from that of ``y``, in float32 from what is stored."""
    d = _wide(grad_y)
    if activation == "relu":
        # not y > 0: where y is NaN, so is what it came from, and torch passes the gradient on
        d = d.masked_fill(y <= 0, 0)
    elif activation != "none":
        assert preactivation is not None
        d = d * _derivative(_wide(preactivation), activation)
    count = math.prod(x.shape[:-1])
    rows = d.reshape(count, weight.shape[0])
    grad_x = grad_weight = grad_bias = None
    if needs[0]:
        grad_x = (d @ _wide(weight)).to(x.dtype).contiguous()
    if needs[1]:
        grad_weight = (rows.T @ _wide(x).reshape(count, x.shape[-1])).to(weight.dtype).contiguous()
    if needs[2]:
        grad_bias = rows.sum(0).to(x.dtype)
    return grad_x, grad_weight, grad_bias


def plain(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: Activation = "none") -> Tensor:
    """The layer and then the activation, each in the inputs' own dtype."""
    z = torch.nn.functional.linear(x, weight, bias)
    match activation:
        case "none":
            return z
        case "relu":
            return torch.nn.functional.relu(z)
        case "gelu":
            return torch.nn.functional.gelu(z)
        case "gelu_tanh":
            return torch.nn.functional.gelu(z, approximate="tanh")
        case "silu":
            return torch.nn.functional.silu(z)
