"""``linear_act`` and its gradients as formulas.

With ``z = x @ weight.T + bias`` and ``d = grad_y * activation'(z)``, the gradients are those of a linear layer:
``d @ weight`` for x, ``d.T @ x`` for weight, the sum of d's rows for bias.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from portakernel.references.activations import ACTIVATIONS

Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu"]

# Beyond it every slope is 0 or 1, and where a 16-bit preactivation overflowed, the formula gives NaN.
_STRAIGHT = 1000.0
# cuBLAS splits a long sum into parts, so many at most, and may round each to y's dtype before it adds them up.
_PART_TERMS, _MOST_PARTS = 512, 32


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


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
    y = ACTIVATIONS[activation].value(z).to(x.dtype)
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
        # y <= 0 where the preactivation is; not a product, which would make NaN of an infinite gradient there
        d = d.masked_fill(y <= 0, 0)
    elif activation != "none":
        assert preactivation is not None
        d = d * ACTIVATIONS[activation].slope(_wide(preactivation).clamp(-_STRAIGHT, _STRAIGHT))
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


def plain(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: Activation = "none"
) -> tuple[Tensor, ...]:
    """The layer and then the activation, each in the inputs' own dtype; the preactivation too, where it is saved."""
    z = torch.nn.functional.linear(x.contiguous(), weight, bias)
    match activation:
        case "none":
            return (z,)
        case "relu":
            return (torch.nn.functional.relu(z),)
        case "gelu":
            return torch.nn.functional.gelu(z), z
        case "gelu_tanh":
            return torch.nn.functional.gelu(z, approximate="tanh"), z
        case "silu":
            return torch.nn.functional.silu(z), z


def output_roundings(x: Tensor, weight: Tensor, bias: Tensor | None = None, **_: Any) -> tuple[Tensor, Tensor]:
    """The root of the sum of squared terms, times that of the number of parts of a sum: of ``y`` and what is saved."""
    del bias
    parts = min(max(x.shape[-1] // _PART_TERMS, min(x.shape[-1] // 16, 2)), _MOST_PARTS)
    terms = x.double().square() @ weight.double().square().T
    size = (parts * terms.clamp(min=torch.finfo(x.dtype).tiny ** 2)).sqrt()  # subnormal parts are rounded as far apart
    return size, size


def gradient_doubts(
    grad_y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: Activation = "none"
) -> tuple[Tensor | None, ...]:
    """By how much gradients differ where relu's slope, 0 or 1, depends on how a preactivation next to 0 is rounded.

    As large as its error are the rounding of the product, before ``bias`` is added, of parts, and of float32 sums.
    """
    if activation != "relu":
        return None, None, None
    wide, w, near = x.double(), weight.double(), torch.finfo(torch.float32).eps
    z = wide @ w.T
    error = torch.finfo(x.dtype).eps / 2 * (z.abs() + output_roundings(x, weight)[0]) + near * (wide.abs() @ w.abs().T)
    z = z if bias is None else z + bias.double()
    return backward(grad_y.double().abs() * (z.abs() <= error), wide.abs(), w.abs(), z)
