"""``dequantize`` as a formula: ``x = q * scale``."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.references.scale_formats import dequantised, write


def forward(
    q: Tensor,
    scale: Tensor,
    global_scale: Tensor | None = None,
    *,
    format: str = "row",
    dtype: str = "float32",
    out: Tensor | None = None,
) -> Tensor:
    """``x: (*M, K)`` in ``dtype``: ``q * scale * global_scale`` in float32, rounded once more.

    ``q: (*M, K)`` float8, or ``(*M, K/2)`` float4_e2m1fn_x2; ``scale`` as ``format`` says; ``global_scale: ()``.
    """
    wanted: torch.dtype = getattr(torch, dtype)
    return write(dequantised(q, scale, global_scale, format=format).to(wanted), out)


def truth(
    q: Tensor, scale: Tensor, global_scale: Tensor | None = None, *, format: str = "row", dtype: str = "float32"
) -> tuple[Tensor]:
    """``x`` in float64."""
    del dtype
    return (dequantised(q, scale, global_scale, format=format, dtype=torch.float64),)
