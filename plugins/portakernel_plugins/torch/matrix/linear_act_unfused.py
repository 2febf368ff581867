"""``linear_act`` as PyTorch's linear layer and then the activation, each rounded to the inputs' dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor
from torch.nn import functional

from portakernel_plugins.torch.matrix.linear_act import linear

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "none": lambda z: z,
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda z: functional.gelu(z, approximate="tanh"),
        "silu": functional.silu,
    }
)


def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str,
    out: Tensor | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """``activation(x @ weight.T + bias)``; x: (..., K), weight: (N, K), bias: (N,).

    With ``save`` what backward needs too, for graphs that call it.
    """
    y = _ACTIVATIONS[activation](z := linear(x, weight, bias))
    if save:
        return (y,) if activation in ("none", "relu") else (y, z)
    return y if out is None else out.copy_(y)
