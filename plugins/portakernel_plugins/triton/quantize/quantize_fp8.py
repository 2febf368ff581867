"""``quantize_fp8`` in Triton.

    scale = amax(abs(x)) / max(dtype)      of the elements that share it; 1 below 2**-100
    q     = x / scale                      rounded to nearest, ties to even

Everything is computed in float32, with the divisions of IEEE 754. ``x`` is read once, but for one scale to a tensor and
for rows that do not fit in registers, which are read twice.
"""
# pyright: reportGeneralTypeIssues=false
# Tuples grow by concatenation, the one way that Triton knows.

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import as_bytes, delivered, with_row_stride
from portakernel.authoring.triton import cdiv, grid_of, in_graphs, launch, program_index
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.launching.row_blocks import held_shape, load_blocks, unwidened
from portakernel_plugins.triton.quantize.float8 import (
    conversion,
    divided,
    flattened,
    group_places,
    largest_number,
    largest_of,
    largest_scale,
    magnitude,
    maxima,
    memory,
    narrowed,
    quantized,
)

# A longer row is read twice.
_LONGEST_BLOCK = 65536
_BLOCK = 128


@triton.jit(do_not_specialize=["rows"])
def _rows(
    x: tl.tensor,
    q: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,  # of BLOCK_N columns, in a row
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    FUSED: tl.constexpr,
    NARROW: tl.constexpr = False,  # the compiler is kept from holding them wide
) -> None:
    row = program_index() * BLOCK_M + tl.arange(0, BLOCK_M)
    lane = tl.arange(0, BLOCK_N)
    parts = load_blocks(x, row, stride, rows, lane, columns, BLOCK_N, BLOCKS)

    largest = magnitude(parts[0].to(tl.float32))
    for i in tl.static_range(1, BLOCKS):
        largest = tl.maximum(largest, magnitude(parts[i].to(tl.float32)))
    s = largest_scale(tl.max(largest, axis=1), largest_number(FORMAT))
    reciprocal = tl.div_rn(1.0, s)[:, None]

    if NARROW:
        parts = unwidened(parts, BLOCKS)
    for i in tl.static_range(BLOCKS):
        column = i * BLOCK_N + lane
        code = narrowed(divided(parts[i].to(tl.float32), s[:, None], reciprocal, FUSED), FORMAT, CAST)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        tl.store(q + row[:, None] * columns + column[None, :], code, mask=inside)
    tl.store(scale + row, s, mask=row < rows)


in_graphs(_rows, NARROW=False)  # which is assembly


@triton.jit(do_not_specialize=["rows", "tiles"])
def _long_rows(
    x: tl.tensor,
    q: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    tiles: tl.tensor,
    BLOCK_N: tl.constexpr,
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    FUSED: tl.constexpr,
) -> None:
    row = program_index()
    width = tl.where(row < rows, columns, 0)
    first = row * 0
    largest = tl.full((BLOCK_N,), 0, tl.int32)
    for _ in range(tiles):
        column = first + tl.arange(0, BLOCK_N)
        block = tl.load(x + row * stride + column, mask=column < width, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, magnitude(block))
        first += BLOCK_N
    s = largest_scale(tl.max(largest, axis=0), largest_number(FORMAT))
    reciprocal = tl.div_rn(1.0, s)
    tl.store(scale + row, s, mask=row < rows)

    # from the end, which was read last
    for _ in range(tiles):
        first -= BLOCK_N
        column = first + tl.arange(0, BLOCK_N)
        block = tl.load(x + row * stride + column, mask=column < width, other=0.0).to(tl.float32)
        code = narrowed(divided(block, s, reciprocal, FUSED), FORMAT, CAST)
        tl.store(q + row * columns + column, code, mask=column < width)


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
    FLAT: tl.constexpr,
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    FUSED: tl.constexpr,
) -> None:
    number, row, first, left = group_places(rows, columns, per_row, GROUP, GROUPS, FLAT)
    inner = tl.arange(0, GROUP)
    inside = inner[None, :] < left[:, None]
    block = tl.load(x + (row * stride + first)[:, None] + inner[None, :], mask=inside, other=0.0).to(tl.float32)

    code, s = quantized(block, FORMAT, CAST, FUSED)

    tl.store(q + (row * columns + first)[:, None] + inner[None, :], code, mask=inside)
    tl.store(scale + number, s, mask=left > 0)


@triton.jit(do_not_specialize=["rows"])
def _squares(
    x: tl.tensor,
    q: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    across: tl.tensor,
    BLOCK: tl.constexpr,
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    FUSED: tl.constexpr,
) -> None:
    number = program_index()
    down = number // across
    row = down * BLOCK + tl.arange(0, BLOCK)
    column = (number - down * across) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    block = tl.load(x + row[:, None] * stride + column[None, :], mask=inside, other=0.0).to(tl.float32)

    s = largest_scale(tl.max(tl.max(magnitude(block), axis=1), axis=0), largest_number(FORMAT))
    quotient = divided(block, s, tl.div_rn(1.0, s), FUSED)

    tl.store(q + row[:, None] * columns + column[None, :], narrowed(quotient, FORMAT, CAST), mask=inside)
    tl.store(scale + number, s, mask=number < tl.cdiv(rows, BLOCK).to(tl.int64) * across)


@triton.jit(do_not_specialize=["rows", "tiles", "count"])
def _one_scale(
    x: tl.tensor,
    q: tl.tensor,
    scale: tl.tensor,
    partial: tl.tensor,
    count: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    tiles: tl.tensor,
    across: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PARTIALS: tl.constexpr,
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    FUSED: tl.constexpr,
) -> None:
    # the tensor's end was read last, and may still be cached
    tile = tiles - 1 - program_index()
    row = tile // across * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tile % across * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (row < tl.where(tile >= 0, rows, 0))[:, None] & (column < columns)[None, :]
    block = tl.load(x + row[:, None] * stride + column[None, :], mask=inside, other=0.0).to(tl.float32)

    s = largest_scale(largest_of(partial, count, PARTIALS), largest_number(FORMAT))
    quotient = divided(block, s, tl.div_rn(1.0, s), FUSED)

    tl.store(q + row[:, None] * columns + column[None, :], narrowed(quotient, FORMAT, CAST), mask=inside)
    tl.store(scale, s, mask=program_index() == 0)


def quantize_fp8(
    x: Tensor, *, granularity: str, dtype: str, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """``(q, scale)``: ``x: (*M, K)`` in ``dtype``, and the float32 scales that give it back.

    ``x``: float32, float16 or bfloat16, any strides (rows without a single one are copied). ``scale``: ``()`` for
    ``tensor``, ``(*M, 1)`` for ``row``, ``(*M, ceil(K/128))`` for ``block_1x128``, ``(ceil(M/128), ceil(K/128))`` for
    ``block_128x128``. ``out``: any strides.
    """
    rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
    q_out, scale_out = (None, None) if out is None else out
    q = memory(q_out, x, x.shape, getattr(torch, dtype))
    scale = memory(scale_out, x, _scale_shape(x, rows, granularity), torch.float32)
    if scale.numel():
        x, stride = with_row_stride(x)
        if granularity == "block_1x128" and columns < _BLOCK:  # whose groups are rows
            granularity = "row"
        _LAUNCH[granularity](x, as_bytes(q), scale, rows, columns, stride, conversion(dtype, x.device))
    return delivered(q, q_out), delivered(scale, scale_out)


def _scale_shape(x: Tensor, rows: int, granularity: str) -> tuple[int, ...]:
    across = cdiv(x.shape[-1], _BLOCK)
    if granularity == "block_1x128":
        return (*x.shape[:-1], across)
    if granularity == "block_128x128":
        return (cdiv(rows, _BLOCK), across)
    return (*x.shape[:-1], 1) if granularity == "row" else ()


def _launch_rows(
    x: Tensor, q: Tensor, scale: Tensor, rows: int, columns: int, stride: int, to: Mapping[str, Any]
) -> None:
    if columns > _LONGEST_BLOCK:
        how = configuration("quantize_fp8.long_rows", x.device, columns)
        tiles = cdiv(columns, how.elements)
        args = (x, q, scale, rows, columns, stride, tiles)
        launch(_long_rows, grid_of(rows), *args, BLOCK_N=how.elements, **to, **how.options)
        return
    how = configuration("quantize_fp8.rows", x.device, columns)
    grid = grid_of(cdiv(rows, how.rows))
    shape = held_shape(how, max(columns, 1))
    launch(_rows, grid, x, q, scale, rows, columns, stride, parameter="K", **shape, **to, **how.options)


def _launch_groups(
    x: Tensor, q: Tensor, scale: Tensor, rows: int, columns: int, stride: int, to: Mapping[str, Any]
) -> None:
    how = configuration("quantize_fp8.groups", x.device, _BLOCK)
    rows, columns, flat = flattened(rows, columns, stride, _BLOCK)
    per_row = cdiv(columns, _BLOCK)
    grid = grid_of(cdiv(rows * per_row, how.rows))
    args = (x, q, scale, rows, columns, stride, per_row)
    launch(_groups, grid, *args, GROUP=_BLOCK, GROUPS=how.rows, FLAT=flat, **to, **how.options)


def _launch_squares(
    x: Tensor, q: Tensor, scale: Tensor, rows: int, columns: int, stride: int, to: Mapping[str, Any]
) -> None:
    how = configuration("quantize_fp8.squares", x.device, _BLOCK)
    across = cdiv(columns, _BLOCK)
    grid = grid_of(cdiv(rows, _BLOCK) * across)
    launch(_squares, grid, x, q, scale, rows, columns, stride, across, BLOCK=_BLOCK, **to, **how.options)


def _launch_one_scale(
    x: Tensor, q: Tensor, scale: Tensor, rows: int, columns: int, stride: int, to: Mapping[str, Any]
) -> None:
    partial, partials = maxima(x, rows, columns, stride)
    if stride == columns:
        rows, columns, stride = 1, rows * columns, rows * columns
    how = configuration("quantize_fp8.tensor", x.device, columns)
    width = min(how.columns, how.elements)
    across = cdiv(columns, width)
    tiles = cdiv(rows, how.rows) * across
    args = (x, q, scale, partial, len(partial), rows, columns, stride, tiles, max(1, across))
    shape: Mapping[str, Any] = {"BLOCK_M": how.rows, "BLOCK_N": width, "PARTIALS": partials}
    launch(_one_scale, grid_of(max(1, tiles)), *args, **shape, **to, **how.options)


_LAUNCH = {
    "row": _launch_rows,
    "block_1x128": _launch_groups,
    "block_128x128": _launch_squares,
    "tensor": _launch_one_scale,
}
