"""``quantize_mxfp8`` in Triton.

    scale = 2 ** (floor(log2(amax(abs(x)))) - emax)      of each 32 of a row, at least 2**-127
    q     = x / scale                                    clamped, and rounded to nearest, ties to even

The quotient is a product with a power of two, and exact.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import as_bytes, delivered, with_row_stride
from portakernel.authoring.triton import cdiv, grid_of, launch
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.quantize.float8 import (
    conversion,
    flattened,
    group_places,
    magnitude,
    memory,
    narrowed,
    power_scale,
)

_BLOCK = 32


@triton.jit(do_not_specialize=["rows"])
def _quantize(
    x: tl.tensor,
    q: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    per_row: tl.tensor,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    FLAT: tl.constexpr,
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    FUSED: tl.constexpr,  # nothing here is divided
) -> None:
    number, row, first, left = group_places(rows, columns, per_row, GROUP, GROUPS, FLAT)
    inner = tl.arange(0, GROUP)
    inside = inner[None, :] < left[:, None]
    block = tl.load(x + (row * stride + first)[:, None] + inner[None, :], mask=inside, other=0.0).to(tl.float32)

    s, reciprocal = power_scale(tl.max(magnitude(block), axis=1), FORMAT)
    code = narrowed(block * reciprocal[:, None], FORMAT, CAST)

    tl.store(q + (row * columns + first)[:, None] + inner[None, :], code, mask=inside)
    tl.store(scale + number, s, mask=left > 0)


def quantize_mxfp8(x: Tensor, *, dtype: str, out: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """``(q, scale)``: ``x: (*M, K)`` in ``dtype``, and ``(*M, ceil(K/32))`` scales in float8_e8m0fnu.

    ``x``: float32, float16 or bfloat16, any strides (rows without a single one are copied). ``out``: any strides.
    """
    rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
    per_row = cdiv(columns, _BLOCK)
    q_out, scale_out = (None, None) if out is None else out
    q = memory(q_out, x, x.shape, getattr(torch, dtype))
    scale = memory(scale_out, x, (*x.shape[:-1], per_row), torch.float8_e8m0fnu)
    if scale.numel():
        x, stride = with_row_stride(x)
        how = configuration("quantize_mxfp8", x.device, _BLOCK)
        grid = grid_of(cdiv(rows * per_row, how.rows))
        rows, columns, flat = flattened(rows, columns, stride, _BLOCK)
        args = (x, as_bytes(q), as_bytes(scale), rows, columns, stride, per_row)
        to = conversion(dtype, x.device)
        launch(_quantize, grid, *args, GROUP=_BLOCK, GROUPS=how.rows, FLAT=flat, **to, **how.options)
    return delivered(q, q_out), delivered(scale, scale_out)
