"""``linear_act`` by CUTLASS: bias and activation in the epilogue of the product, rounded once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from portakernel_plugins.cutlass.calls import Call
from portakernel_plugins.cutlass.launch import room, rows, vector
from portakernel_plugins.cutlass.libraries import ELEMENTS, Macros, element_macros
from portakernel_plugins.cutlass.products import Product

# The order is that of activation.cuh's enumeration.
_ACTIVATIONS: Mapping[str, int] = MappingProxyType({"none": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4})

_MACROS: Mapping[torch.dtype, Macros] = MappingProxyType(
    {getattr(torch, dtype): element_macros(dtype) for dtype in ELEMENTS}
)

_HOPPER = Product("linear_act")
_AMPERE = Product("linear_act_ampere")


def linear_act(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str, out: Tensor | None = None
) -> Tensor:
    """``activation(x @ weight.T + bias)``; x: (..., K), weight: (N, K), bias: (N,), on Hopper."""
    return _linear_act(_HOPPER, x, weight, bias, activation, out)


def linear_act_ampere(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str, out: Tensor | None = None
) -> Tensor:
    """The same on Ampere and Ada."""
    return _linear_act(_AMPERE, x, weight, bias, activation, out)


def _linear_act(
    product: Product, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, out: Tensor | None
) -> Tensor:
    N, K = weight.shape
    y = room(x, N, x.dtype, out)
    if M := x.numel() // K:
        (a, stride_a), (b, stride_b) = rows(x, K), rows(weight, K)
        held = None if bias is None else vector(bias)
        added = None if held is None else held.data_ptr()
        addresses = a.data_ptr(), b.data_ptr(), None, None, None, added, y.data_ptr()
        call = Call(*addresses, stride_a, stride_b, N, M, N, K, _ACTIVATIONS[activation])
        product(call, y, _MACROS[x.dtype])
    return y if out is None or out is y else out.copy_(y)
