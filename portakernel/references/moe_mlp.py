"""``moe_mlp`` and its gradient: one expert after the other, and each token's results in the order of its experts.

With ``gate, up`` the halves of ``z = x @ w_in[e].T``, ``h = activation(gate) * up``, ``w`` the weight and ``g`` the
gradient of y for a token of expert e:

    grad_weights = h . (g @ w_out[e])           grad_w_out[e] = sum of (w * g).T @ h
    grad_gate    = w * (g @ w_out[e]) * up * activation'(gate)
    grad_up      = w * (g @ w_out[e]) * activation(gate)
    grad_w_in[e] = sum of grad_z.T @ x          grad_x = sum of grad_z @ w_in[e]

Finding the tokens of an expert waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from portakernel.references.activations import ACTIVATIONS
from portakernel.tensors.index_values import check_indices

Activation = Literal["silu", "gelu", "gelu_tanh"]
Halves = Literal["concat", "interleaved"]


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _split(z: Tensor, halves: Halves) -> tuple[Tensor, Tensor]:
    """Gate and up of rows ``z: (R, 2I)``."""
    if halves == "interleaved":
        return z[:, 0::2], z[:, 1::2]
    middle = z.shape[1] // 2
    return z[:, :middle], z[:, middle:]


def _joined(gate: Tensor, up: Tensor, halves: Halves) -> Tensor:
    if halves == "interleaved":
        return torch.stack((gate, up), -1).flatten(1)
    return torch.cat((gate, up), 1)


def _assigned(experts: Tensor, count: int) -> Iterator[tuple[int, Tensor]]:
    """Each expert that has some of the assignments, and which."""
    flat = experts.reshape(-1)
    if flat.device.type == "cpu":
        here = flat[flat != -1]
        check_indices("moe_mlp", "experts", here, count, "E")
    for e in flat.unique().tolist():
        if 0 <= e < count:
            yield e, (flat == e).nonzero().flatten()


def _added(rows: Tensor, shape: torch.Size, weights: Tensor | None = None) -> Tensor:
    """The sums of each token's ``rows: (T * K, H)``, in the order of its experts, in ``rows``' dtype."""
    tokens, choices = shape
    rows = rows.reshape(tokens, choices, rows.shape[1])
    total = torch.zeros_like(rows[:, 0]) if choices else rows.new_zeros((tokens, rows.shape[2]))
    for j in range(choices):
        total = total + (rows[:, j] if weights is None else rows[:, j] * weights[:, j, None])
    return total


def _here(weights: Tensor, experts: Tensor) -> Tensor:
    """Weights, 0 of experts that are elsewhere."""
    return weights.masked_fill(experts < 0, 0)


def forward(
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    weights: Tensor,
    experts: Tensor,
    *,
    activation: Activation = "silu",
    halves: Halves = "concat",
    out: Tensor | None = None,
) -> Tensor:
    """``y: (T, H)``, rounded once.

    Raises:
        IndexOutOfRangeError: there is no such expert (on the CPU).
    """
    value, choices = ACTIVATIONS[activation].value, experts.shape[1]
    results = _wide(x).new_zeros((experts.numel(), x.shape[1]))
    for e, places in _assigned(experts, w_in.shape[0]):
        gate, up = _split(_wide(x[places // choices]) @ _wide(w_in[e]).T, halves)
        results[places] = (value(gate) * up) @ _wide(w_out[e]).T
    y = _added(results, experts.shape, _here(_wide(weights), experts)).to(x.dtype)
    return y if out is None else out.copy_(y)


def backward(
    grad_y: Tensor,
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    weights: Tensor,
    experts: Tensor,
    *,
    activation: Activation = "silu",
    halves: Halves = "concat",
    needs: tuple[bool, ...] = (True, True, True, True, False),
) -> tuple[Tensor | None, ...]:
    """Gradients for ``x``, ``w_in``, ``w_out`` and ``weights`` from that of ``y``, each rounded once."""
    function, choices = ACTIVATIONS[activation], experts.shape[1]
    grad_rows = _wide(x).new_zeros((experts.numel(), x.shape[1])) if needs[0] else None
    grad_in = w_in.new_zeros(w_in.shape) if needs[1] else None
    grad_out = w_out.new_zeros(w_out.shape) if needs[2] else None
    grad_weights = weights.new_zeros(experts.numel()) if needs[3] else None
    for e, places in _assigned(experts, w_in.shape[0]):
        tokens = places // choices
        rows, g, w = _wide(x[tokens]), _wide(grad_y[tokens]), _wide(weights).reshape(-1)[places].unsqueeze(1)
        gate, up = _split(rows @ _wide(w_in[e]).T, halves)
        activated = function.value(gate)
        h, u = activated * up, g @ _wide(w_out[e])
        grad_z = _joined(w * u * up * function.slope(gate), w * u * activated, halves)
        if grad_rows is not None:
            grad_rows[places] = grad_z @ _wide(w_in[e])
        if grad_in is not None:
            grad_in[e] = (grad_z.T @ rows).to(w_in.dtype)
        if grad_out is not None:
            grad_out[e] = ((w * g).T @ h).to(w_out.dtype)
        if grad_weights is not None:
            grad_weights[places] = (h * u).sum(1).to(weights.dtype)
    grad_x = None if grad_rows is None else _added(grad_rows, experts.shape).to(x.dtype)
    return grad_x, grad_in, grad_out, None if grad_weights is None else grad_weights.reshape(experts.shape), None


def plain(
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    weights: Tensor,
    experts: Tensor,
    *,
    activation: Activation = "silu",
    halves: Halves = "concat",
) -> Tensor:
    """Two linear layers for each expert, the gate between them and the weighted sum, each in the inputs' own dtype."""
    linear, choices = torch.nn.functional.linear, experts.shape[1]
    # what no expert has has gradients too
    nothing = 0 * (x[:0].sum() + w_in[:0].sum() + w_out[:0].sum() + weights[:0].sum().to(x.dtype))
    results, found = [x.new_zeros((0, x.shape[1])) + nothing], [experts.new_zeros(0, dtype=torch.int64)]
    for e, places in _assigned(experts, w_in.shape[0]):
        gate, up = _split(linear(x[places // choices], w_in[e]), halves)
        activated = {
            "silu": torch.nn.functional.silu,
            "gelu": torch.nn.functional.gelu,
            "gelu_tanh": lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
        }[activation](gate)
        results.append(linear(activated * up, w_out[e]))
        found.append(places)
    rows = x.new_zeros((experts.numel(), x.shape[1])).index_copy(0, torch.cat(found), torch.cat(results))
    return _added(rows, experts.shape, _here(weights, experts).to(x.dtype)) + nothing
