"""``silu_and_mul_quantize`` in Triton.

    y     = silu(x[..., :N]) * x[..., N:]
    scale = amax(abs(y)) / max(dtype)      of the row, or of each 128 elements; 1 below 2**-100
    q     = y / scale                      rounded to nearest, ties to even

Everything is computed in float32. ``x`` is read once, but for rows that do not fit in registers, which are read twice.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import as_bytes, delivered, with_row_stride
from portakernel.authoring.triton import cdiv, grid_of, launch, program_index
from portakernel_plugins.triton.gates.activations import activated
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.launching.row_blocks import is_long
from portakernel_plugins.triton.quantize.float8 import (
    conversion,
    divided,
    group_places,
    largest_number,
    largest_scale,
    magnitude,
    memory,
    narrowed,
    quantized,
)

_BLOCK = 128


@triton.jit
def _gated(x, columns, inside):
    gate = tl.load(x, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    return activated(gate, "silu") * up


@triton.jit(do_not_specialize=["rows"])
def _groups(
    x: tl.tensor,
    q: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    per_row: tl.tensor,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    FUSED: tl.constexpr,
) -> None:
    number, row, first, left = group_places(rows, columns, per_row, GROUP, GROUPS, False)
    inner = tl.arange(0, GROUP)
    inside = inner[None, :] < left[:, None]
    y = _gated(x + (row * stride + first)[:, None] + inner[None, :], columns, inside)

    code, s = quantized(y, FORMAT, CAST, FUSED)

    tl.store(q + (row * columns + first)[:, None] + inner[None, :], code, mask=inside)
    tl.store(scale + number, s, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def _long_rows(
    x: tl.tensor,
    q: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    BLOCK_N: tl.constexpr,
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    FUSED: tl.constexpr,
) -> None:
    row = program_index()
    if row >= rows:
        return
    lane = tl.arange(0, BLOCK_N)
    largest = tl.full((BLOCK_N,), 0, tl.int32)
    for start in range(0, columns, BLOCK_N):
        column = start + lane
        y = _gated(x + row * stride + column, columns, column < columns)
        largest = tl.maximum(largest, magnitude(y))
    s = largest_scale(tl.max(largest, axis=0), largest_number(FORMAT))
    reciprocal = tl.div_rn(1.0, s)
    tl.store(scale + row, s)

    # from the end, which was read last
    blocks = tl.cdiv(columns, BLOCK_N)
    for index in range(blocks):
        column = (blocks - 1 - index) * BLOCK_N + lane
        y = _gated(x + row * stride + column, columns, column < columns)
        code = narrowed(divided(y, s, reciprocal, FUSED), FORMAT, CAST)
        tl.store(q + row * columns + column, code, mask=column < columns)


def silu_and_mul_quantize(
    x: Tensor, *, granularity: str, dtype: str, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """``(q, scale)``: ``silu(gate) * up`` of ``x: (*M, 2N)`` in ``dtype``, and the float32 scales that give it back.

    ``x``: float32, float16 or bfloat16, any strides (rows without a single one are copied). ``q: (*M, N)``; ``scale``:
    ``(*M, 1)`` for ``row``, ``(*M, ceil(N/128))`` for ``block_1x128``. ``out``: any strides.
    """
    rows, columns = math.prod(x.shape[:-1]), x.shape[-1] // 2
    by_row = granularity == "row"
    per_row = 1 if by_row else cdiv(columns, _BLOCK)
    q_out, scale_out = (None, None) if out is None else out
    q = memory(q_out, x, (*x.shape[:-1], columns), getattr(torch, dtype))
    scale = memory(scale_out, x, (*x.shape[:-1], per_row), torch.float32)
    if scale.numel():
        x, stride = with_row_stride(x)
        group = columns if by_row else _BLOCK
        how = configuration("silu_and_mul_quantize", x.device, group, x.element_size())
        args = (x, as_bytes(q), scale, rows, columns, stride)
        to = conversion(dtype, x.device)
        if is_long(how):
            launch(_long_rows, grid_of(rows), *args, BLOCK_N=how.elements, **to, **how.options)
        else:
            grid = grid_of(cdiv(rows * per_row, how.rows))
            shape = {"GROUP": how.columns, "GROUPS": how.rows, **to, **how.options}
            launch(_groups, grid, *args, per_row, parameter="N", **shape)
    return delivered(q, q_out), delivered(scale, scale_out)
