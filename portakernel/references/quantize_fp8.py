"""``quantize_fp8`` as a formula: ``q = x / scale``, with ``scale = amax / max``."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.references.scale_formats import LARGEST, block_maxima, float8, largest_scale, spread, write_all


def forward(
    x: Tensor, *, granularity: str = "row", dtype: str = "float8_e4m3fn", out: tuple[Tensor, ...] | None = None
) -> tuple[Tensor, ...]:
    """``(q, scale)``: ``x: (*M, K)`` in ``dtype``, and in float32 the scales that give it back.

    ``scale`` is ``()`` for ``tensor``, ``(*M, 1)`` for ``row``, ``(*M, ceil(K/128))`` for ``block_1x128``,
    ``(ceil(M/128), ceil(K/128))`` for ``block_128x128``.
    """
    wide = x.float()
    scale = largest_scale(block_maxima(wide, granularity), LARGEST[dtype])
    q = float8(wide / spread(scale, granularity, x.shape), dtype)
    return write_all((q, scale), out)


def truth(x: Tensor, *, granularity: str = "row", dtype: str = "float8_e4m3fn") -> tuple[Tensor, ...]:
    """``(q, scale)`` in float64: ``q`` clamped but not rounded, of the scale as float32 has it."""
    wide, largest = x.double(), LARGEST[dtype]
    scale = largest_scale(block_maxima(wide, granularity), largest)
    rounded = scale.to(torch.float32).double()
    return (wide / spread(rounded, granularity, x.shape)).clamp(-largest, largest), scale
