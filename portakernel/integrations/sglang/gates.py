"""SGLang's gated activations by ``silu_and_mul`` and ``gelu_and_mul``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portakernel import ops
from portakernel.integrations.served_layer import refused_dtype
from portakernel.integrations.sglang.layer import SglangLayer


class SiluGate(SglangLayer):
    """``SiluAndMul``."""

    names = ("x",)
    known = 1

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""
        del module
        return refused_dtype(arguments[0])

    def ours(self, module: Any, *arguments: Any) -> Any:
        """By ``silu_and_mul``."""
        del module
        return ops.silu_and_mul(arguments[0])

    def exact(self, module: Any, *arguments: Any) -> Any:
        """The formula in float64."""
        del module
        gate, up = _halves(arguments[0])
        return torch.nn.functional.silu(gate) * up


class GeluGate(SglangLayer):
    """``GeluAndMul``."""

    names = ("x",)
    known = 1

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""
        if module.approximate not in ("none", "tanh"):
            return f"approximate={module.approximate!r}: the op has none and tanh"
        return refused_dtype(arguments[0])

    def ours(self, module: Any, *arguments: Any) -> Any:
        """By ``gelu_and_mul``."""
        return ops.gelu_and_mul(arguments[0], approximate=module.approximate)

    def exact(self, module: Any, *arguments: Any) -> Any:
        """The formula in float64."""
        gate, up = _halves(arguments[0])
        return torch.nn.functional.gelu(gate, approximate=module.approximate) * up


def _halves(x: Tensor) -> tuple[Tensor, ...]:
    return x.chunk(2, -1)
