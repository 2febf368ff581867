"""vLLM's gated activations by ``silu_and_mul`` and ``gelu_and_mul``."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from portakernel import ops
from portakernel.integrations.served_layer import refused_dtype
from portakernel.integrations.vllm.layer import VllmLayer


class Gated(VllmLayer):
    """A layer whose input holds gate and up side by side."""

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""
        del module
        return refused_dtype(arguments[0])


class SiluGated(Gated):
    """``SiluAndMul``."""

    def __init__(self) -> None:
        super().__init__("SiluAndMul", "silu_and_mul")

    def ours(self, module: Any, *arguments: Any) -> Any:
        """By ``silu_and_mul``."""
        del module
        return ops.silu_and_mul(arguments[0])

    def exact(self, module: Any, *arguments: Any) -> Any:
        """The formula in float64."""
        del module
        gate, up = arguments[0].chunk(2, -1)
        return gate * torch.sigmoid(gate) * up


class GeluGated(Gated):
    """``GeluAndMul``, of either approximation."""

    def __init__(self) -> None:
        super().__init__("GeluAndMul", "gelu_and_mul")

    def ours(self, module: Any, *arguments: Any) -> Any:
        """By ``gelu_and_mul``."""
        return ops.gelu_and_mul(arguments[0], approximate=module.approximate)

    def exact(self, module: Any, *arguments: Any) -> Any:
        """The formula in float64."""
        gate, up = arguments[0].chunk(2, -1)
        return F.gelu(gate, approximate=module.approximate) * up


SILU_AND_MUL = SiluGated()
GELU_AND_MUL = GeluGated()
