"""vLLM's norms by ``rms_norm``, ``add_rms_norm`` and ``layer_norm``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portakernel import ops
from portakernel.integrations.vllm.layer import VllmLayer, refused_dtype


class RootMeanSquare(VllmLayer):
    """``RMSNorm``, and with an ``offset`` of 1 ``GemmaRMSNorm``; with a residual, which is added before."""

    def __init__(self, layer: str, offset: float) -> None:
        super().__init__(layer, "rms_norm")
        self.offset = offset

    def op_of(self, *arguments: Any) -> str:
        """``add_rms_norm`` for a call with a residual."""
        return "rms_norm" if arguments[1] is None else "add_rms_norm"

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""
        x, residual = arguments
        if getattr(module, "variance_size_override", None) is not None:
            return "variance_size_override: the op's mean is that of the whole row"
        if not getattr(module, "pass_weight" if residual is None else "pass_weight_add", True):
            return "no weight: the op multiplies by one"
        return _refused(x, module.weight, residual)

    def ours(self, module: Any, *arguments: Any) -> Any:
        """By ``rms_norm`` or ``add_rms_norm``."""
        x, residual = arguments
        eps, offset = module.variance_epsilon, self.offset
        if residual is None:
            return ops.rms_norm(x, module.weight.data, eps=eps, weight_offset=offset)
        return ops.add_rms_norm(x, residual, module.weight.data, eps=eps, weight_offset=offset)

    def exact(self, module: Any, *arguments: Any) -> Any:
        """The formula in float64."""
        x, residual = arguments
        summed = x if residual is None else x + residual
        root = (summed.square().mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()
        y = summed * root * (module.weight.data.double() + self.offset)
        return y if residual is None else (y, summed)


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


RMS_NORM = RootMeanSquare("RMSNorm", 0.0)
GEMMA_RMS_NORM = RootMeanSquare("GemmaRMSNorm", 1.0)
LAYER_NORM = MeanAndVariance()
