"""torch.nn's norms and softmax, served by the ops of their names: formulas, and what is left to torch."""

from __future__ import annotations

import abc
import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from portakernel import ops
from portakernel.integrations.call_kinds import Kind, drawn
from portakernel.integrations.client import record
from portakernel.integrations.served_layer import ServedLayer
from portakernel.nn.norms import as_row, as_rows, rms_norm_eps

NAME = "torch.nn"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TAKEN = "the op takes float32, float16 and bfloat16"


class TorchLayer(ServedLayer, abc.ABC):
    """A module of torch.nn, of exactly one class, whose ``forward`` an op stands in for.

    The last of a call's arguments is whether autocast is on: what torch returns depends on it.
    """

    op_name: ClassVar[str]
    # what the class's forward names the one tensor that it takes
    input_name: ClassVar[str] = "input"

    def __init__(self, layer: str) -> None:
        super().__init__(NAME, layer, self.op_name)

    @classmethod
    def left(cls, module: Any) -> str:
        """Why a module stays torch's, whatever it is called with; empty where each call decides."""
        for name, parameter in module.named_parameters():
            if parameter.dtype not in DTYPES:
                return f"{name} is {name_of(parameter.dtype)}: {TAKEN}"
        return ""

    def forward(self, module: Any, *arguments: Any, **named: Any) -> Any:
        """What the instance's ``forward`` does; a call of anything but one tensor is the class's, errors too."""
        x = arguments[0] if arguments else named.get(self.input_name)
        if len(arguments) + len(named) != 1 or not isinstance(x, Tensor):
            return self.by_class(module, "the call gives something else than one tensor", *arguments, **named)
        return self(module, x, is_autocast_on(x))

    def by_class(self, module: Any, refused: str, *arguments: Any, **named: Any) -> Any:
        """The call by the class's forward, as it was made; counted where that returns."""
        result = type(module).forward(module, *arguments, **named)
        record(self.client, self.op, refused, self.layer)
        return result

    def own(self, module: Any, *arguments: Any) -> Any:
        """By the class's forward, which the instance's hides."""
        return type(module).forward(module, arguments[0])


class NormLayer(TorchLayer, abc.ABC):
    """A norm over the last dimensions."""

    def drawn(self, module: Any, kind: Kind) -> tuple[Any, ...]:
        """Rows of the sizes that the module normalises."""
        rows = drawn((*kind[0][:3], 2, math.prod(module.normalized_shape)), 0)
        return rows.view(-1, *module.normalized_shape), *kind[1:]


class RMSNormLayer(NormLayer):
    """``torch.nn.RMSNorm``, by ``rms_norm``."""

    op_name = "rms_norm"
    input_name = "x"

    def refusal(self, module: Any, *arguments: Any) -> str:
        """Dtypes that the op does not take, or that torch promotes."""
        x: Tensor = arguments[0]
        weight: Tensor | None = module.weight
        if weight is not None and weight.dtype != x.dtype and x.dtype in DTYPES:
            return f"x is {name_of(x.dtype)} and the weight {name_of(weight.dtype)}: torch decides what that becomes"
        return refused_tensor(x)

    def ours(self, module: Any, *arguments: Any) -> Any:
        """The last dimensions as one."""
        x: Tensor = arguments[0]
        rows = as_rows(x, module.normalized_shape)
        y = ops.rms_norm(rows, as_row(module.weight, rows), eps=rms_norm_eps(module.eps, x))
        return y.view(x.shape)

    def exact(self, module: Any, *arguments: Any) -> Any:
        """Torch's function of numbers in float64, with the epsilon of the dtype that the layer computes in."""
        weight = None if module.weight is None else module.weight.double()
        eps = torch.finfo(torch.float32).eps if module.eps is None else module.eps
        return functional.rms_norm(arguments[0], module.normalized_shape, weight, eps)


class LayerNormLayer(NormLayer):
    """``torch.nn.LayerNorm``, by ``layer_norm``."""

    op_name = "layer_norm"

    def refusal(self, module: Any, *arguments: Any) -> str:
        """Dtypes that the op does not take."""
        x: Tensor = arguments[0]
        weight: Tensor | None = module.weight
        if weight is not None and weight.dtype not in (x.dtype, torch.float32) and x.dtype in DTYPES:
            return f"x is {name_of(x.dtype)} and the weight {name_of(weight.dtype)}: the op takes x's, or float32"
        return refused_tensor(x)

    def ours(self, module: Any, *arguments: Any) -> Any:
        """The last dimensions as one."""
        x: Tensor = arguments[0]
        rows = as_rows(x, module.normalized_shape)
        bias = None if module.bias is None else module.bias.flatten()
        return ops.layer_norm(rows, as_row(module.weight, rows), bias, eps=module.eps).view(x.shape)

    def exact(self, module: Any, *arguments: Any) -> Any:
        """Torch's function of numbers in float64."""
        weight, bias = (None if each is None else each.double() for each in (module.weight, module.bias))
        return functional.layer_norm(arguments[0], module.normalized_shape, weight, bias, module.eps)


class SoftmaxLayer(TorchLayer):
    """``torch.nn.Softmax`` over the last dimension, by ``softmax``."""

    op_name = "softmax"

    @classmethod
    def left(cls, module: Any) -> str:
        """Where torch chooses the dimension."""
        return "dim is None: torch chooses it by the rank; give dim=-1" if module.dim is None else ""

    def refusal(self, module: Any, *arguments: Any) -> str:
        """Another dimension than the last, or a dtype that the op does not take."""
        x: Tensor = arguments[0]
        if module.dim not in (-1, x.dim() - 1):
            return f"dim={module.dim} of {x.dim()}: the op takes the last dimension"
        return refused_tensor(x)

    def ours(self, module: Any, *arguments: Any) -> Any:
        """The op's call."""
        del module
        return ops.softmax(arguments[0])

    def exact(self, module: Any, *arguments: Any) -> Any:
        """Torch's function of numbers in float64."""
        return functional.softmax(arguments[0], module.dim)


def refused_tensor(x: Tensor) -> str:
    """Why no op takes a tensor; empty where one may."""
    if x.dtype not in DTYPES:
        return f"x is {name_of(x.dtype)}: {TAKEN}"
    if x.device.type == "meta":
        return "x is on the meta device, where nothing is computed"
    return "x is nested" if x.is_nested else ""


def is_autocast_on(x: Tensor) -> bool:
    """Whether torch casts what it computes of ``x``; never on meta, which autocast does not know and raises of."""
    device = x.device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def name_of(dtype: torch.dtype) -> str:
    """A dtype as the ops name it."""
    return str(dtype).removeprefix("torch.")
