"""``quantize_fp4`` as a formula: ``q = x / scale``, with one scale to a block, and in nvfp4 one more to the tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.references.scale_formats import (
    block_maxima,
    divided,
    float4,
    float8,
    largest_scale,
    numbers,
    power_of_two_scale,
    reciprocal,
    spread,
    write_all,
)

# The largest number that e2m1 and an e4m3fn scale make together, and the smallest scale that is not zero.
_LARGEST = 6.0 * 448.0
_SMALLEST_BLOCK_SCALE = 2.0**-9


def forward(x: Tensor, *, format: str = "nvfp4", out: tuple[Tensor, ...] | None = None) -> tuple[Tensor, ...]:
    """``(q, scale)`` for ``mxfp4``, ``(q, scale, global_scale)`` for ``nvfp4``.

    ``x: (*M, K)``; ``q: (*M, K/2)`` in float4_e2m1fn_x2; ``scale``: ``(*M, ceil(K/32))`` in float8_e8m0fnu, or
    ``(*M, ceil(K/16))`` in float8_e4m3fn; ``global_scale: ()`` in float32.
    """
    wide = x.float()
    if format == "mxfp4":
        scale = power_of_two_scale(block_maxima(wide, "mxfp4"), "float4_e2m1fn_x2")
        return write_all((float4(wide * spread(reciprocal(scale), "mxfp4", x.shape)), scale), out)
    scale, global_scale = _nvfp4_scales(wide)
    both = numbers(scale, torch.float32) * global_scale
    return write_all((float4(wide / spread(both, "nvfp4", x.shape)), scale, global_scale), out)


def truth(x: Tensor, *, format: str = "nvfp4") -> tuple[Tensor, ...]:
    """The results in float64, ``q: (*M, K)`` clamped but not rounded, of the scales as they are stored."""
    wide = x.double()
    if format == "mxfp4":
        scale = numbers(power_of_two_scale(block_maxima(x.float(), "mxfp4"), "float4_e2m1fn_x2"))
        return _clamped(wide / spread(scale, "mxfp4", x.shape)), scale
    stored, rounded = _nvfp4_scales(x.float())
    both = (numbers(stored, torch.float32) * rounded).double()
    global_scale = largest_scale(block_maxima(wide, "tensor"), _LARGEST)
    return _clamped(wide / spread(both, "nvfp4", x.shape)), numbers(stored), global_scale


def _clamped(q: Tensor) -> Tensor:
    return torch.where(q.isnan(), 0.0, q.clamp(-6.0, 6.0))


def _nvfp4_scales(x: Tensor) -> tuple[Tensor, Tensor]:
    """The blocks' scales and the tensor's. Each operation here is rounded to float32, as the contract has it."""
    global_scale = largest_scale(block_maxima(x, "tensor"), _LARGEST)
    scale = divided(block_maxima(x, "nvfp4"), 6.0) / global_scale
    return float8(scale.clamp(min=_SMALLEST_BLOCK_SCALE), "float8_e4m3fn"), global_scale
