"""``softmax`` and its gradient of few long rows, whose parts are several programs'.

With ``m`` the largest of a part, and of the parts of a row ``M`` the largest of these:

    first launch     m, t = sum(exp(x - m))                 of each part
    second launch    y = exp(x - M) / sum(t * exp(m - M))

    first launch     d = sum(g * y)                         of each part, g: gradient of y
    second launch    grad_x = y * (g - sum(d))

Everything is computed in float32 and rounded once, when it is stored. How long a part is does not depend on the number
of rows, but ``softmax.py`` sums in another order: its bits are others.
"""

# pyright: reportGeneralTypeIssues=false
# Triton's static_range is no iterable to Python.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import contiguous_like, delivered, row_target, with_row_stride
from portakernel.authoring.triton import Held, cdiv, grid_of, per_device, prepared, program_index
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.launching.row_blocks import in_units, unit_of
from portakernel_plugins.triton.losses.softmax import LOWEST


@triton.jit
def _row_and_part(index, parts):
    """The row, int64, and the number of a program's part in it."""
    # 32 bits hold the number of any program, and dividing 64 bits takes long
    index = index.to(tl.int32)
    row = index // parts
    return row.to(tl.int64), index - row * parts


@triton.jit(do_not_specialize=["programs", "parts"])
def _forward_sums(
    x: tl.tensor,
    sums: tl.tensor,  # (programs, 2) float32
    programs: tl.tensor,
    parts: tl.tensor,  # of a row
    columns: tl.tensor,
    x_stride: tl.tensor,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,  # of BLOCK_N columns, in a part
    UNIT: tl.constexpr,  # divides the length of rows, and their strides
) -> None:
    columns, x_stride = in_units(columns, UNIT), in_units(x_stride, UNIT)
    program = program_index()
    if program >= programs:
        return
    row, part = _row_and_part(program, parts)
    column = part * (BLOCKS * BLOCK_N) + tl.arange(0, BLOCK_N)
    lane_max = tl.full((BLOCK_N,), LOWEST, tl.float32)
    lane_sum = tl.full((BLOCK_N,), 0.0, tl.float32)
    for i in tl.static_range(BLOCKS):
        at = column + i * BLOCK_N
        x_block = tl.load(x + row * x_stride + at, mask=at < columns, other=float("-inf")).to(tl.float32)
        new_max = tl.maximum(lane_max, x_block)
        lane_sum = lane_sum * tl.exp(lane_max - new_max) + tl.exp(x_block - new_max)
        lane_max = new_max
    part_max = tl.max(lane_max, axis=0)
    tl.store(sums + 2 * program, part_max)
    tl.store(sums + 2 * program + 1, tl.sum(lane_sum * tl.exp(lane_max - part_max), axis=0))


@triton.jit(do_not_specialize=["programs", "parts"])
def _forward_results(
    x: tl.tensor,
    sums: tl.tensor,
    y: tl.tensor,  # may be ``x``
    programs: tl.tensor,
    parts: tl.tensor,
    columns: tl.tensor,
    x_stride: tl.tensor,
    y_stride: tl.tensor,
    PARTS: tl.constexpr,  # no fewer than parts, a power of two
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,
    UNIT: tl.constexpr,
) -> None:
    columns, x_stride, y_stride = in_units(columns, UNIT), in_units(x_stride, UNIT), in_units(y_stride, UNIT)
    # from the end, which caches still hold
    program = programs - 1 - program_index()
    if program < 0:
        return
    row, part = _row_and_part(program, parts)
    other = tl.arange(0, PARTS)
    of_row = sums + 2 * (row * parts + other)
    tops = tl.load(of_row, mask=other < parts, other=LOWEST)
    totals = tl.load(of_row + 1, mask=other < parts, other=0.0)
    row_max = tl.max(tops, axis=0)
    scale = 1.0 / tl.sum(totals * tl.exp(tops - row_max), axis=0)
    column = part * (BLOCKS * BLOCK_N) + tl.arange(0, BLOCK_N)
    for i in tl.static_range(BLOCKS):
        at = column + i * BLOCK_N
        x_block = tl.load(x + row * x_stride + at, mask=at < columns, other=float("-inf")).to(tl.float32)
        y_block = tl.exp(x_block - row_max) * scale
        tl.store(y + row * y_stride + at, y_block.to(y.dtype.element_ty), mask=at < columns)


@triton.jit(do_not_specialize=["programs", "parts"])
def _backward_sums(
    grad_y: tl.tensor,
    y: tl.tensor,
    sums: tl.tensor,  # (programs,) float32
    programs: tl.tensor,
    parts: tl.tensor,
    columns: tl.tensor,
    grad_y_stride: tl.tensor,
    y_stride: tl.tensor,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,
    UNIT: tl.constexpr,
) -> None:
    columns, y_stride = in_units(columns, UNIT), in_units(y_stride, UNIT)
    grad_y_stride = in_units(grad_y_stride, UNIT)
    program = program_index()
    if program >= programs:
        return
    row, part = _row_and_part(program, parts)
    column = part * (BLOCKS * BLOCK_N) + tl.arange(0, BLOCK_N)
    lane_sum = tl.full((BLOCK_N,), 0.0, tl.float32)
    for i in tl.static_range(BLOCKS):
        at = column + i * BLOCK_N
        g = tl.load(grad_y + row * grad_y_stride + at, mask=at < columns, other=0.0).to(tl.float32)
        p = tl.load(y + row * y_stride + at, mask=at < columns, other=0.0).to(tl.float32)
        lane_sum += g * p
    tl.store(sums + program, tl.sum(lane_sum, axis=0))


@triton.jit(do_not_specialize=["programs", "parts"])
def _backward_results(
    grad_y: tl.tensor,
    y: tl.tensor,
    sums: tl.tensor,
    grad_x: tl.tensor,
    programs: tl.tensor,
    parts: tl.tensor,
    columns: tl.tensor,
    grad_y_stride: tl.tensor,
    y_stride: tl.tensor,
    PARTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,
    UNIT: tl.constexpr,
) -> None:
    columns, y_stride = in_units(columns, UNIT), in_units(y_stride, UNIT)
    grad_y_stride = in_units(grad_y_stride, UNIT)
    program = programs - 1 - program_index()
    if program < 0:
        return
    row, part = _row_and_part(program, parts)
    other = tl.arange(0, PARTS)
    total = tl.sum(tl.load(sums + row * parts + other, mask=other < parts, other=0.0), axis=0)
    column = part * (BLOCKS * BLOCK_N) + tl.arange(0, BLOCK_N)
    for i in tl.static_range(BLOCKS):
        at = column + i * BLOCK_N
        g = tl.load(grad_y + row * grad_y_stride + at, mask=at < columns, other=0.0).to(tl.float32)
        p = tl.load(y + row * y_stride + at, mask=at < columns, other=0.0).to(tl.float32)
        gradient = (p * (g - total)).to(grad_x.dtype.element_ty)
        tl.store(grad_x + row * columns + at, gradient, mask=at < columns)


@per_device
def _plan(kernel: str, device: torch.device, n: int, unit: int) -> tuple[Held, Held, int]:
    """Both launches of ``kernel`` for rows of ``n``, and how many programs share a row."""
    how = configuration("softmax_parts", device, n)
    parts = cdiv(n, how.elements * how.options["BLOCKS"])
    meta = {"BLOCK_N": how.elements, "UNIT": unit, **how.options}
    sums, results = (_forward_sums, _forward_results) if kernel == "forward" else (_backward_sums, _backward_results)
    # as many as there may be of a size whose power of two is the same
    others = 1 << (parts - 1).bit_length()
    return prepared(sums, meta, "N"), prepared(results, {**meta, "PARTS": others}, "N"), parts


def softmax(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``exp(x - max) / sum(exp(x - max))`` over the last dimension.

    ``x``: ``(..., N)``, any strides, read where it lies if its rows are contiguous and at one stride; float32, float16
    or bfloat16. ``out``: any strides; may be ``x`` itself.
    """
    n = x.shape[-1]
    y, y_stride = row_target(x, out)
    elements = x.numel()
    if elements:
        x, x_stride = with_row_stride(x)
        first, second, parts = _plan("forward", x.device, n, unit_of(n))
        programs = elements // n * parts
        sums = torch.empty((programs, 2), dtype=torch.float32, device=x.device)
        grid = grid_of(programs)
        first.launch(grid, x, sums, programs, parts, n, x_stride)
        second.launch(grid, x, sums, y, programs, parts, n, x_stride, y_stride)
    return delivered(y, out)


def backward(grad_y: Tensor, y: Tensor, *, needs: tuple[bool] = (True,)) -> tuple[Tensor | None]:
    """The gradient for ``x`` from that of ``y`` and from ``y`` as forward returned it; any strides."""
    if not needs[0]:
        return (None,)
    n = y.shape[-1]
    grad_x = contiguous_like(y)
    elements = y.numel()
    if elements:
        y, y_stride = with_row_stride(y)
        grad_y, g_stride = with_row_stride(grad_y)
        first, second, parts = _plan("backward", y.device, n, unit_of(n))
        programs = elements // n * parts
        sums = torch.empty(programs, dtype=torch.float32, device=y.device)
        grid = grid_of(programs)
        first.launch(grid, grad_y, y, sums, programs, parts, n, g_stride, y_stride)
        second.launch(grid, grad_y, y, sums, grad_x, programs, parts, n, g_stride, y_stride)
    return (grad_x,)
