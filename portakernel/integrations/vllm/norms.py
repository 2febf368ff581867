"""vLLM's norms by ``rms_norm``, ``add_rms_norm`` and ``layer_norm``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portakernel import ops
from portakernel.integrations.first_calls import shortfall
from portakernel.integrations.served_layer import refused_dtype
from portakernel.integrations.vllm.layer import VllmLayer
from portakernel.runtime import contract_of

# How much larger than vLLM's the error of `add_rms_norm` may be in a trial of few numbers of 16 bits. Of many it is
# 1.00 to 1.05 times as large; where all weights are 1, 1.4 times.
_BY_CHANCE = 1.25


class RootMeanSquare(VllmLayer):
    """``RMSNorm``, with or without a residual that is added before.

    Of 16 bits, vLLM norms the sum before it is rounded, and rounds again before the weight; ``add_rms_norm`` norms the
    rounded sum, and rounds at the end. Errors are alike, but where all weights are powers of two.
    """

    def __init__(self) -> None:
        super().__init__("RMSNorm", "rms_norm")

    def op_of(self, *arguments: Any) -> str:
        """``add_rms_norm`` for a call with a residual."""
        return "rms_norm" if arguments[1] is None else "add_rms_norm"

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""
        x, residual = arguments
        if module.variance_size_override is not None:
            return "variance_size_override: the op's mean is that of the whole row"
        if not (module.pass_weight if residual is None else module.pass_weight_add):
            return "no weight: the op multiplies by one"
        if reason := _refused(x, module.weight, residual):
            return reason
        if residual is not None and x.dtype != module.weight.dtype:
            return "a residual of 16 bits and a float32 weight: vLLM rounds once, the op its sum before"
        return ""

    def ours(self, module: Any, *arguments: Any) -> Any:
        """By ``rms_norm`` or ``add_rms_norm``."""
        x, residual = arguments
        if residual is None:
            return ops.rms_norm(x, module.weight.data, eps=module.variance_epsilon)
        return ops.add_rms_norm(x, residual, module.weight.data, eps=module.variance_epsilon)

    def exact(self, module: Any, *arguments: Any) -> Any:
        """The formula in float64."""
        return _exact(module, 0.0, *arguments)

    def shortfall(self, ours: Any, own: Any, exact: Any, op: str) -> str:
        """As for all layers; the sum's rounding of 16 bits weighs more or less than vLLM's by the numbers' chance."""
        if op == "add_rms_norm" and own[0].dtype != torch.float32:
            return shortfall(ours, own, exact, contract_of(op).tolerance, _BY_CHANCE)
        return super().shortfall(ours, own, exact, op)


class GemmaRootMeanSquare(VllmLayer):
    """``GemmaRMSNorm``, whose weight is an offset of 1, with or without a residual that is added before.

    vLLM rounds its result once, and norms the sum before it is rounded. Of 16 bits ``rms_norm`` therefore takes the sum
    in float32: ``add_rms_norm``, which rounds it, has half as much error again.
    """

    def __init__(self) -> None:
        super().__init__("GemmaRMSNorm", "rms_norm")

    def op_of(self, *arguments: Any) -> str:
        """``add_rms_norm`` for a call with a residual in float32."""
        x, residual = arguments
        name = str(x.dtype) if isinstance(x, Tensor) else x[1]
        return "add_rms_norm" if residual is not None and name == "torch.float32" else "rms_norm"

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""
        x, residual = arguments
        return _refused(x, module.weight, residual)

    def ours(self, module: Any, *arguments: Any) -> Any:
        """By ``rms_norm`` or ``add_rms_norm``."""
        x, residual = arguments
        weight, eps = module.weight.data, module.variance_epsilon
        if residual is None:
            return ops.rms_norm(x, weight, eps=eps, weight_offset=1.0)
        if x.dtype == torch.float32:
            return ops.add_rms_norm(x, residual, weight, eps=eps, weight_offset=1.0)
        summed = x.float() + residual.float()
        return ops.rms_norm(summed, weight.float(), eps=eps, weight_offset=1.0).to(x.dtype), summed.to(x.dtype)

    def exact(self, module: Any, *arguments: Any) -> Any:
        """The formula in float64."""
        return _exact(module, 1.0, *arguments)


class MeanAndVariance(VllmLayer):
    """``LayerNorm``."""

    def __init__(self) -> None:
        super().__init__("LayerNorm", "layer_norm")

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""
        (x,) = arguments
        if module.weight is None:
            return "no weight (elementwise_affine=False): the op multiplies by one"
        if module.bias is not None and module.bias.dtype != module.weight.dtype:
            return "weight and bias differ in dtype"
        return _refused(x, module.weight, None)

    def ours(self, module: Any, *arguments: Any) -> Any:
        """By ``layer_norm``."""
        (x,) = arguments
        bias = None if module.bias is None else module.bias.data
        return ops.layer_norm(x, module.weight.data, bias, eps=module.eps)

    def exact(self, module: Any, *arguments: Any) -> Any:
        """The formula in float64."""
        (x,) = arguments
        centred = x - x.mean(-1, keepdim=True)
        y = centred * (centred.square().mean(-1, keepdim=True) + module.eps).rsqrt() * module.weight.data.double()
        return y if module.bias is None else y + module.bias.data.double()


def _exact(module: Any, offset: float, x: Tensor, residual: Tensor | None) -> Any:
    summed = x if residual is None else x + residual
    root = (summed.square().mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()
    y = summed * root * (module.weight.data.double() + offset)
    return y if residual is None else (y, summed)


def _refused(x: Tensor, weight: Tensor, residual: Tensor | None) -> str:
    """Why no norm op takes these tensors; empty where one does."""
    if reason := refused_dtype(x):
        return reason
    if weight.dtype not in (x.dtype, torch.float32):
        return f"a weight of {weight.dtype} beside an input of {x.dtype}: the op takes the input's dtype or float32"
    if residual is not None and residual.dtype != x.dtype:
        return f"a residual of {residual.dtype} beside an input of {x.dtype}: the op adds tensors of one dtype"
    if residual is not None and residual.shape != x.shape:
        return "a residual of another shape than the input"
    return ""


RMS_NORM = RootMeanSquare()
GEMMA_RMS_NORM = GemmaRootMeanSquare()
LAYER_NORM = MeanAndVariance()
