"""Gated activations in Triton: ``y = f(gate) * up``, where a row of ``x`` is ``gate`` and then ``up``.

``activations`` has the functions. Everything is computed in float32 and rounded once, when it is stored.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import contiguous_like, delivered, row_stride, with_row_stride
from portakernel.authoring.triton import Held, cdiv, grid_of, per_device, prepared, program_index
from portakernel_plugins.triton.gates.activations import activated, value_and_slope
from portakernel_plugins.triton.launching.configurations import Configuration, configuration
from portakernel_plugins.triton.launching.row_blocks import in_units, unit_of

# Columns of a block of rows, at least, where several blocks are a row.
_NARROWEST = 256


@triton.jit
def _block(columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The rows, int64, and the columns of this program; neighbouring programs read neighbouring memory."""
    # 32 bits hold the number of any program, and dividing 64 bits would cost as much as the rest
    index = program_index().to(tl.int32)
    blocks = tl.cdiv(columns, BLOCK_N)
    rows_before = index // blocks
    row = tl.cast(rows_before, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    return row, (index - rows_before * blocks) * BLOCK_N + tl.arange(0, BLOCK_N)


# ``rows`` is not specialised: M being 1, or divisible by 16, must not recompile the kernel.
@triton.jit(do_not_specialize=["rows"])
def _forward(
    x: tl.tensor,
    y: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    x_stride: tl.tensor,
    y_stride: tl.tensor,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    UNIT: tl.constexpr,  # divides lengths and strides of rows
) -> None:
    columns, x_stride, y_stride = in_units(columns, UNIT), in_units(x_stride, UNIT), in_units(y_stride, UNIT)
    row, column = _block(columns, BLOCK_M, BLOCK_N)
    inside = (row < rows)[:, None] & (column < columns)[None, :]

    gate_at = x + row[:, None] * x_stride + column[None, :]
    gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_at + columns, mask=inside, other=0.0).to(tl.float32)
    y_block = activated(gate, ACTIVATION) * up
    tl.store(y + row[:, None] * y_stride + column[None, :], y_block.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _backward(
    grad_y: tl.tensor,
    x: tl.tensor,
    grad_x: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    grad_y_stride: tl.tensor,
    x_stride: tl.tensor,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    UNIT: tl.constexpr,
) -> None:
    columns, x_stride = in_units(columns, UNIT), in_units(x_stride, UNIT)
    grad_y_stride = in_units(grad_y_stride, UNIT)
    row, column = _block(columns, BLOCK_M, BLOCK_N)
    inside = (row < rows)[:, None] & (column < columns)[None, :]

    gate_at = x + row[:, None] * x_stride + column[None, :]
    gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_at + columns, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad_y + row[:, None] * grad_y_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    value, slope = value_and_slope(gate, ACTIVATION)

    grad_gate_at = grad_x + row[:, None] * 2 * columns + column[None, :]
    tl.store(grad_gate_at, (g * up * slope).to(grad_x.dtype.element_ty), mask=inside)
    tl.store(grad_gate_at + columns, (g * value).to(grad_x.dtype.element_ty), mask=inside)


def _fitted(how: Configuration, columns: int) -> Configuration:
    """The same with blocks that fit rows of which none needs all: of two of 1024, one of 1120 would leave half.

    They are as wide as they can be and have an eighth more than the row, or less, else as wide as have least more.
    """
    most = min(how.columns, how.elements)
    widths = [most >> halved for halved in range(most.bit_length()) if most >> halved >= _NARROWEST] or [most]
    covered = {width: cdiv(columns, width) * width for width in widths}
    close = (width for width in widths if 8 * covered[width] <= 9 * columns)
    width = next(close, min(widths, key=lambda each: covered[each]))
    return replace(how, columns=width, rows=max(1, how.elements // width))


@per_device
def _plan(
    kernel: str, device: torch.device, n: int, activation: str, unit: int, element_bytes: int
) -> tuple[Held, int, int]:
    """What ``kernel`` launches for rows of ``n``; how many a program takes, and how many programs take one."""
    how = _fitted(configuration(kernel, device, n, element_bytes, unit), n)
    block = min(how.columns, how.elements)  # whole rows, or a part of one up to the configured elements
    meta = {"ACTIVATION": activation, "BLOCK_M": how.rows, "BLOCK_N": block, "UNIT": unit, **how.options}
    return prepared(_forward if kernel.endswith("forward") else _backward, meta), how.rows, cdiv(n, block)


def forward(op: str, activation: str, x: Tensor, out: Tensor | None) -> Tensor:
    """``activation(x[..., :N]) * x[..., N:]``, launched as ``op`` is configured.

    ``x``: ``(..., 2N)``, any strides, read where it lies if its rows are contiguous and at one stride; float32, float16
    or bfloat16. ``out``: any strides.
    """
    n = x.shape[-1] // 2
    out_stride = None if out is None else row_stride(out)
    in_place = out is not None and out_stride is not None
    y = out if in_place else x.new_empty((*x.shape[:-1], n))
    assert y is not None
    elements = y.numel()
    if elements:
        x, x_stride = with_row_stride(x)
        rows = elements // n
        y_stride = n if out_stride is None else out_stride
        unit = unit_of(n, x_stride, y_stride)
        held, together, across = _plan(f"{op}.forward", x.device, n, activation, unit, x.element_size())
        held.launch(grid_of(cdiv(rows, together) * across), x, y, rows, n, x_stride, y_stride)
    return delivered(y, out)


def backward(op: str, activation: str, grad_y: Tensor, x: Tensor) -> Tensor:
    """The gradient for ``x`` from that of ``y``; any strides, as in forward."""
    n = x.shape[-1] // 2
    grad_x = contiguous_like(x)
    elements = grad_y.numel()
    if elements:
        x, x_stride = with_row_stride(x)
        grad_y, grad_y_stride = with_row_stride(grad_y)
        rows = elements // n
        unit = unit_of(n, x_stride, grad_y_stride)
        held, together, across = _plan(f"{op}.backward", x.device, n, activation, unit, x.element_size())
        grid = grid_of(cdiv(rows, together) * across)
        held.launch(grid, grad_y, x, grad_x, rows, n, grad_y_stride, x_stride)
    return grad_x
