"""``softmax`` and its gradient in Triton.

With ``m = max(x)`` and ``e = exp(x - m)`` of a row:

    y      = e / sum(e)
    grad_x = y * (g - sum(g * y))                              g: gradient of y

Everything is computed in float32 and rounded once, when it is stored. A row stays in registers, in one block or
several, while the configuration says so. A longer one is read twice, block by block: the first time for its sums, where
each lane keeps a maximum of its own and the sum of exponentials below it (Milakov & Gimelshein 2018, arXiv 1805.02867),
the second time, from the end, because its end is what caches still hold, for its results.
"""
# pyright: reportGeneralTypeIssues=false
# Tuples grow by concatenation, the one way that Triton knows.
# mypy: disable-error-code="assignment, misc, unreachable, var-annotated"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import contiguous_like, delivered, row_target, with_row_stride
from portakernel.authoring.triton import Held, cdiv, grid_of, in_graphs, per_device, prepared, program_index
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.launching.row_blocks import (
    held_shape,
    in_units,
    is_long,
    load_blocks,
    store_block,
    unit_of,
    unwidened,
)

# Bytes that a thread reads at once.
_ACCESS_BYTES = 16

# The lowest number of float32. A maximum that starts from it, not from -inf, is a number beside nothing but -inf and
# NaN, so that exp(-inf - maximum) is 0; the sum of a row of -inf is then 0, and the row 0 / 0.
LOWEST = tl.constexpr(-3.4028234663852886e38)


# ``rows`` is not specialised: M being 1, or divisible by 16, must neither recompile the kernel nor change its layout.
@triton.jit(do_not_specialize=["rows"])
def _forward(
    x: tl.tensor,
    y: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    x_stride: tl.tensor,
    y_stride: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,  # of BLOCK_N columns, in a row
    UNIT: tl.constexpr,  # divides the length of rows, and their strides
    NARROW: tl.constexpr = False,  # the compiler is kept from holding them wide
) -> None:
    columns, x_stride, y_stride = in_units(columns, UNIT), in_units(x_stride, UNIT), in_units(y_stride, UNIT)
    row = program_index() * BLOCK_M + tl.arange(0, BLOCK_M)
    lane = tl.arange(0, BLOCK_N)

    # All is read before anything is written: ``y`` may be ``x``. What waits is as narrow as it is in memory.
    parts = load_blocks(x, row, x_stride, rows, lane, columns, BLOCK_N, BLOCKS, float("-inf"))
    largest = tl.maximum(parts[0].to(tl.float32), LOWEST)
    for i in tl.static_range(1, BLOCKS):
        largest = tl.maximum(largest, parts[i].to(tl.float32))
    row_max = tl.max(largest, axis=1)[:, None]
    if NARROW:
        parts = unwidened(parts, BLOCKS)
    total = tl.exp(parts[0].to(tl.float32) - row_max)
    for i in tl.static_range(1, BLOCKS):
        total += tl.exp(parts[i].to(tl.float32) - row_max)
    scale = (1.0 / tl.sum(total, axis=1))[:, None]
    if NARROW:
        parts = unwidened(parts, BLOCKS)
    for i in tl.static_range(BLOCKS):
        e = tl.exp(parts[i].to(tl.float32) - row_max)
        store_block(y, row, y_stride, rows, i * BLOCK_N + lane, columns, e * scale)


in_graphs(_forward, NARROW=False)  # which is assembly


@triton.jit(do_not_specialize=["rows"])
def _forward_long(
    x: tl.tensor,
    y: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    x_stride: tl.tensor,
    y_stride: tl.tensor,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,  # neighbouring elements of a lane: one thread reads them at once and reduces them alone
    UNIT: tl.constexpr,
) -> None:
    columns, x_stride, y_stride = in_units(columns, UNIT), in_units(x_stride, UNIT), in_units(y_stride, UNIT)
    BLOCK_N: tl.constexpr = LANES * VECTOR
    row = program_index()
    if row >= rows:
        return
    x_row, y_row = x + row * x_stride, y + row * y_stride
    column = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]

    lane_max = tl.full((LANES,), LOWEST, tl.float32)
    lane_sum = tl.full((LANES,), 0.0, tl.float32)
    for start in range(0, columns, BLOCK_N):
        inside = start + column < columns
        x_block = tl.load(x_row + start + column, mask=inside, other=float("-inf"), eviction_policy="evict_last")
        x_block = x_block.to(tl.float32)
        new_max = tl.maximum(lane_max, tl.max(tl.maximum(x_block, LOWEST), axis=1))
        lane_sum = lane_sum * tl.exp(lane_max - new_max) + tl.sum(tl.exp(x_block - new_max[:, None]), axis=1)
        lane_max = new_max
    row_max = tl.max(lane_max, axis=0)
    scale = 1.0 / tl.sum(lane_sum * tl.exp(lane_max - row_max), axis=0)

    # The row's sums depend on all of it: nothing is written before, and ``y`` may be ``x``.
    blocks = tl.cdiv(columns, BLOCK_N)
    for index in range(blocks):
        start = (blocks - 1 - index) * BLOCK_N
        inside = start + column < columns
        x_block = tl.load(x_row + start + column, mask=inside, other=float("-inf"), eviction_policy="evict_first")
        y_block = tl.exp(x_block.to(tl.float32) - row_max) * scale
        tl.store(y_row + start + column, y_block.to(y.dtype.element_ty), mask=inside, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["rows"])
def _backward(
    grad_y: tl.tensor,
    y: tl.tensor,
    grad_x: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    grad_y_stride: tl.tensor,
    y_stride: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,
    UNIT: tl.constexpr,
) -> None:
    columns, y_stride = in_units(columns, UNIT), in_units(y_stride, UNIT)
    grad_y_stride = in_units(grad_y_stride, UNIT)
    row = program_index() * BLOCK_M + tl.arange(0, BLOCK_M)
    lane = tl.arange(0, BLOCK_N)

    g = load_blocks(grad_y, row, grad_y_stride, rows, lane, columns, BLOCK_N, BLOCKS)
    p = load_blocks(y, row, y_stride, rows, lane, columns, BLOCK_N, BLOCKS)
    products = g[0].to(tl.float32) * p[0].to(tl.float32)
    for i in tl.static_range(1, BLOCKS):
        products += g[i].to(tl.float32) * p[i].to(tl.float32)
    total = tl.sum(products, axis=1)[:, None]
    for i in tl.static_range(BLOCKS):
        gradient = p[i].to(tl.float32) * (g[i].to(tl.float32) - total)
        store_block(grad_x, row, columns, rows, i * BLOCK_N + lane, columns, gradient)


@triton.jit(do_not_specialize=["rows"])
def _backward_long(
    grad_y: tl.tensor,
    y: tl.tensor,
    grad_x: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    grad_y_stride: tl.tensor,
    y_stride: tl.tensor,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
    UNIT: tl.constexpr,
) -> None:
    columns, y_stride = in_units(columns, UNIT), in_units(y_stride, UNIT)
    grad_y_stride = in_units(grad_y_stride, UNIT)
    BLOCK_N: tl.constexpr = LANES * VECTOR
    row = program_index()
    if row >= rows:
        return
    g_row, y_row, grad_row = grad_y + row * grad_y_stride, y + row * y_stride, grad_x + row * columns
    column = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]

    lane_sum = tl.full((LANES,), 0.0, tl.float32)
    for start in range(0, columns, BLOCK_N):
        inside = start + column < columns
        g = tl.load(g_row + start + column, mask=inside, other=0.0).to(tl.float32)
        p = tl.load(y_row + start + column, mask=inside, other=0.0).to(tl.float32)
        lane_sum += tl.sum(g * p, axis=1)
    total = tl.sum(lane_sum, axis=0)

    blocks = tl.cdiv(columns, BLOCK_N)
    for index in range(blocks):
        start = (blocks - 1 - index) * BLOCK_N
        inside = start + column < columns
        g = tl.load(g_row + start + column, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        p = tl.load(y_row + start + column, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        gradient = (p * (g - total)).to(grad_x.dtype.element_ty)
        tl.store(grad_row + start + column, gradient, mask=inside, eviction_policy="evict_first")


@per_device
def _plan(kernel: str, device: torch.device, n: int, element_bytes: int) -> tuple[Held, int]:
    """What ``kernel`` launches for rows of ``n``, and how many of them a program takes."""
    unit = unit_of(n)
    how = configuration(kernel, device, n, element_bytes, unit)
    forward = kernel == "softmax.forward"
    if is_long(how):
        vector = min(_ACCESS_BYTES // element_bytes, how.elements)
        meta = {"LANES": how.elements // vector, "VECTOR": vector, "UNIT": unit, **how.options}
        return prepared(_forward_long if forward else _backward_long, meta, "N"), 1
    meta = {**held_shape(how, n), "UNIT": unit, **how.options}
    return prepared(_forward if forward else _backward, meta, "N"), how.rows


def softmax(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``exp(x - max) / sum(exp(x - max))`` over the last dimension.

    ``x``: ``(..., N)``, any strides, read where it lies if its rows are contiguous and at one stride; float32, float16
    or bfloat16. ``out``: any strides; may be ``x`` itself.
    """
    n = x.shape[-1]
    y, y_stride = row_target(x, out)
    elements = x.numel()
    if elements:
        rows = elements // n
        x, x_stride = with_row_stride(x)
        held, together = _plan("softmax.forward", x.device, n, x.element_size())
        held.launch(grid_of(cdiv(rows, together)), x, y, rows, n, x_stride, y_stride)
    return delivered(y, out)


def backward(grad_y: Tensor, y: Tensor, *, needs: tuple[bool] = (True,)) -> tuple[Tensor | None]:
    """The gradient for ``x`` from that of ``y`` and from ``y`` as forward returned it; any strides."""
    if not needs[0]:
        return (None,)
    n = y.shape[-1]
    grad_x = contiguous_like(y)
    elements = y.numel()
    if elements:
        rows = elements // n
        y, y_stride = with_row_stride(y)
        grad_y, g_stride = with_row_stride(grad_y)
        held, together = _plan("softmax.backward", y.device, n, y.element_size())
        held.launch(grid_of(cdiv(rows, together)), grad_y, y, grad_x, rows, n, g_stride, y_stride)
    return (grad_x,)
