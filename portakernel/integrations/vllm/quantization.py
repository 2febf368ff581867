"""vLLM's ``QuantFP8`` by ``quantize_fp8``: the dynamic forms, whose scales are made of the numbers themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portakernel import ops
from portakernel.integrations.first_calls import LARGER
from portakernel.integrations.served_layer import refused_dtype
from portakernel.integrations.vllm.layer import VllmLayer

# An element of three bits behind the leading one is off by no more of itself, roundings of its scale included.
_RELATIVE = 2.0**-4 * 1.01


class Quantisation(VllmLayer):
    """``QuantFP8``: ``(x, scale, scale_ub, use_triton)`` to elements and scales."""

    def __init__(self) -> None:
        super().__init__("QuantFP8", "quantize_fp8")

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""
        x, scale, scale_ub, use_triton = arguments
        del use_triton  # says who computes it, and changes no number
        if module.static or scale is not None:
            return "static scales: the op makes its own"
        if scale_ub is not None:
            return "scale_ub: the op's scales have no upper bound"
        if module.num_token_padding is not None and module.num_token_padding > x.shape[0]:
            return "num_token_padding: the op adds no rows"
        if _granularity(module) is None:
            return "scales of another group than a tensor, a row or 128 of a row"
        if module.is_group_quant and (module.column_major_scales or module.tma_aligned_scales or module.use_ue8m0):
            return "scales in columns, aligned, or rounded to powers of two: the op's are float32 in rows"
        if x.dim() != 2:
            return f"an input of {x.dim()} dimensions: two are served"
        return refused_dtype(x)

    def ours(self, module: Any, *arguments: Any) -> Any:
        """By ``quantize_fp8``."""
        granularity = _granularity(module)
        assert granularity is not None  # as `lacks` says
        q, scale = ops.quantize_fp8(arguments[0], granularity=granularity, dtype=module.portakernel_dtype)
        return q, scale.reshape(1) if granularity == "tensor" else scale

    def exact(self, module: Any, *arguments: Any) -> Any:
        """The numbers themselves, which elements and scales are to give back."""
        return arguments[0]

    def shortfall(self, ours: Any, own: Any, exact: Any, op: str) -> str:
        """Why elements and scales give the numbers back worse than vLLM's own do; empty where as well.

        Scales need not be vLLM's: it bounds those of next to nothing, the op makes them 1.
        """
        del op
        for mine, theirs in zip(ours, own, strict=True):
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                return f"the op returns {mine.dtype} {tuple(mine.shape)}, vLLM {theirs.dtype} {tuple(theirs.shape)}"
        far, their_far = (_error(q, scale, exact) for q, scale in (ours, own))
        if their_far > _RELATIVE:
            return f"vLLM's own elements and scales are {their_far:.3g} of the largest number off: no quantisation of x"
        return "" if far <= LARGER * their_far else f"{far:.3g} of the largest number off, vLLM's own {their_far:.3g}"


def _granularity(module: Any) -> Any:
    """The op's name of what shares a scale; None where it has none."""
    if module.is_group_quant:
        return "block_1x128" if module.group_size == 128 else None
    return "row" if module.group_shape.is_per_token() else "tensor" if module.group_shape.is_per_tensor() else None


def _error(q: Tensor, scale: Tensor, x: Tensor) -> float:
    """The root mean square of what each element is off, of the largest number that shares its scale."""
    width = x.shape[-1] if scale.dim() < 2 else -(-x.shape[-1] // scale.shape[-1])
    scales = scale.double() if scale.dim() < 2 else scale.double().repeat_interleave(width, -1)[:, : x.shape[-1]]
    off = (q.double() * scales - x).abs()
    largest = x.abs().amax() if scale.dim() < 2 else x.abs().amax(-1, keepdim=True)
    return float((off / largest.clamp(min=torch.finfo(torch.float32).tiny)).square().mean().sqrt())


QUANT_FP8 = Quantisation()
