"""SGLang's norms by ``rms_norm`` and ``add_rms_norm``."""

from __future__ import annotations

from typing import Any

import torch

from portakernel import ops
from portakernel.integrations.served_layer import refused_dtype
from portakernel.integrations.sglang.layer import SglangLayer


class _RootMeanSquare(SglangLayer):
    """What both have in common: a norm of ``x``, or of its sum with ``residual``."""

    offset = 0.0

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""
        x, residual = arguments
        if reason := refused_dtype(x):
            return reason
        if module.weight.dtype not in (x.dtype, torch.float32):
            return f"a weight of {module.weight.dtype} beside an input of {x.dtype}: the op takes the latter or float32"
        if residual is not None and residual.dtype != x.dtype:
            return f"a residual of {residual.dtype} beside an input of {x.dtype}: the op adds tensors of one dtype"
        if residual is not None and residual.shape != x.shape:
            return "a residual of another shape than the input"
        return ""

    def ours(self, module: Any, *arguments: Any) -> Any:
        """By ``rms_norm`` or ``add_rms_norm``."""
        x, residual = arguments
        eps, weight = module.variance_epsilon, module.weight.data
        if residual is None:
            return ops.rms_norm(x, weight, eps=eps, weight_offset=self.offset)
        return ops.add_rms_norm(x, residual, weight, eps=eps, weight_offset=self.offset)

    def exact(self, module: Any, *arguments: Any) -> Any:
        """The formula in float64."""
        x, residual = arguments
        summed = x if residual is None else x + residual
        root = (summed.square().mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()
        y = summed * root * (module.weight.data.double() + self.offset)
        return y if residual is None else (y, summed)


class Norm(_RootMeanSquare):
    """``RMSNorm``."""

    names = ("x", "residual", "post_residual_addition", "quant_linear")
    known = 2

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""
        x, residual = arguments
        if module.variance_size_override is not None:
            return "var_hidden_size: the op's mean is that of the whole row"
        if not module.has_weight:
            return "no weight: the op multiplies by one"
        if module.cast_x_before_out_mul:
            return "cast_x_before_out_mul: the op rounds once, after the weight"
        if module.override_orig_dtype not in (None, x.dtype):
            return f"override_orig_dtype={module.override_orig_dtype}: the op's result has the input's dtype"
        if module._quant_linear is not None:
            return "fuse_input_quant: the next layer's input is quantised in the same kernel"
        if getattr(module, "x_pad_to_multiple", 0):
            return "x_pad_to_multiple: the op's result has the input's size"
        if residual is not None and x.dtype != torch.float32:
            return "residual: SGLang norms the sum in float32, the op the one that is rounded, which is less exact"
        return super().lacks(module, x, residual)


class GemmaNorm(_RootMeanSquare):
    """``GemmaRMSNorm``, whose weight is from one."""

    names = ("x", "residual", "post_residual_addition")
    known = 2
    offset = 1.0
