"""Two linear layers of one input that write side by side, as gated ops read them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from portakernel.tensors.torch_internals import is_hooked

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def may_write_into_one(gate: nn.Module, up: nn.Module, x: Tensor) -> bool:
    """Whether both layers are nothing but a product with a weight, which nobody differentiates or looks at."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type) or x.dtype not in _DTYPES:
        return False
    return type(x) is Tensor and _is_plain_product(gate, x) and _is_plain_product(up, x)


def _is_plain_product(layer: nn.Module, x: Tensor) -> bool:
    if type(layer) is not nn.Linear or is_hooked(layer):
        return False
    weight: Any = layer.weight
    bias: Any = layer.bias
    return bias is None and type(weight) is nn.Parameter and weight.dtype is x.dtype and weight.device == x.device


def written_into_one(gate: Tensor, up: Tensor, x: Tensor) -> Tensor:
    """``x @ gate.T`` and ``x @ up.T`` side by side; x: (*, K), the weights (N, K), the result (*, 2N)."""
    rows, first = x.reshape(-1, x.shape[-1]), gate.shape[0]
    pair = x.new_empty(rows.shape[0], first + up.shape[0])
    torch.mm(rows, gate.t(), out=pair[:, :first])
    torch.mm(rows, up.t(), out=pair[:, first:])
    return pair.view(*x.shape[:-1], pair.shape[1])
