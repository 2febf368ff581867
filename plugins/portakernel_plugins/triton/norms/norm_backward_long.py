"""The gradient of normalised rows that are too long for registers: ``norm_backward``'s formulas, in Triton.

A row is read twice for ``grad_x``, block by block, the second time from its end, which is what caches still hold; and
once more, by columns, for the sums over rows.
"""
# pyright: reportGeneralTypeIssues=false
# Triton's static_range is no iterable to Python.

from __future__ import annotations

import triton
import triton.language as tl

from portakernel.authoring.triton import program_index
from portakernel_plugins.triton.gates.activations import value_and_slope
from portakernel_plugins.triton.launching.row_blocks import in_units, load_parameter


@triton.jit
def _of_block(
    s,
    grad_y,
    weight,
    bias,
    s_at,
    g_at,
    column,
    columns,
    m,
    r,
    weight_stride,
    bias_stride,
    weight_offset,
    ACTIVATION: tl.constexpr,
    UNIT: tl.constexpr,
    EVICTION: tl.constexpr,
):
    """``u``, ``h`` and ``w`` of one row's block of columns."""
    inside = column < columns
    u = tl.load(s + s_at + column, mask=inside, other=0.0, eviction_policy=EVICTION).to(tl.float32)
    h = tl.load(grad_y + g_at + column, mask=inside, other=0.0, eviction_policy=EVICTION).to(tl.float32)
    w = load_parameter(weight, weight_stride, column, columns, UNIT).to(tl.float32)
    if weight_offset is not None:
        w = w + weight_offset
    if m is not None:
        u = u - m
    u = u * r
    if ACTIVATION != "none":
        z = u * w
        if bias is not None:
            z += load_parameter(bias, bias_stride, column, columns, UNIT).to(tl.float32)
        _value, slope = value_and_slope(z, ACTIVATION)
        h = h * slope
    return u, h, w


@triton.jit
def _added(
    s, grad_y, weight, bias, s_at, g_at, column, columns, m, r, weight_stride, bias_stride, weight_offset, lane_product,
    lane_sum, ACTIVATION: tl.constexpr, UNIT: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """Each lane's sums with its columns of this block."""
    u, h, w = _of_block(
        s, grad_y, weight, bias, s_at, g_at, column, columns, m, r, weight_stride, bias_stride, weight_offset,
        ACTIVATION, UNIT, EVICTION,
    )  # fmt: skip
    return lane_product + h * w * u, lane_sum + h * w


@triton.jit
def _finish(
    s, grad_y, grad_summed, weight, bias, grad_x, grad_residual, s_at, g_at, e_at, at, column, columns, m, r,
    weight_stride, bias_stride, weight_offset, product, total, ACTIVATION: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Stores ``grad_x`` of a block of columns."""
    inside = column < columns
    u, h, w = _of_block(
        s, grad_y, weight, bias, s_at, g_at, column, columns, m, r, weight_stride, bias_stride, weight_offset,
        ACTIVATION, UNIT, "evict_first",
    )  # fmt: skip
    inner = h * w - u * product
    if m is not None:
        inner -= total
    gradient = r * inner
    if grad_summed is not None:
        gradient += tl.load(grad_summed + e_at + column, mask=inside, other=0.0).to(tl.float32)
    gradient = gradient.to(grad_x.dtype.element_ty)
    tl.store(grad_x + at + column, gradient, mask=inside, eviction_policy="evict_first")
    if grad_residual is not None:
        tl.store(grad_residual + at + column, gradient, mask=inside, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["rows"])
def backward_long(
    s: tl.tensor,
    grad_y: tl.tensor,
    grad_summed: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    grad_x: tl.tensor,
    grad_residual: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    s_stride: tl.tensor,
    grad_y_stride: tl.tensor,
    grad_summed_stride: tl.tensor,
    weight_stride: tl.tensor,
    bias_stride: tl.tensor,
    weight_offset: tl.tensor,
    ACTIVATION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,  # of BLOCK_N columns, in a row, whose reads overlap; 0: so many that they are a loop
    UNIT: tl.constexpr,  # divides the length of rows, and their strides
) -> None:
    """``grad_x``, a row by each program."""
    columns, s_stride, grad_y_stride = in_units(columns, UNIT), in_units(s_stride, UNIT), in_units(grad_y_stride, UNIT)
    if grad_summed is not None:
        grad_summed_stride = in_units(grad_summed_stride, UNIT)
    if weight_offset is not None:  # Inductor passes numbers in float64
        weight_offset = tl.cast(weight_offset, tl.float32)
    row = program_index()
    if row >= rows:
        return
    s_at, g_at, at = row * s_stride, row * grad_y_stride, row * columns
    e_at = at
    if grad_summed is not None:
        e_at = row * grad_summed_stride
    lane = tl.arange(0, BLOCK_N)
    r = tl.load(rstd + row)
    m = None
    if mean is not None:
        m = tl.load(mean + row)

    lane_product = tl.full((BLOCK_N,), 0.0, tl.float32)
    lane_sum = tl.full((BLOCK_N,), 0.0, tl.float32)
    if BLOCKS > 0:
        for i in tl.static_range(BLOCKS):
            lane_product, lane_sum = _added(
                s, grad_y, weight, bias, s_at, g_at, i * BLOCK_N + lane, columns, m, r, weight_stride, bias_stride,
                weight_offset, lane_product, lane_sum, ACTIVATION, UNIT, "evict_last",
            )  # fmt: skip
    else:
        # counted by columns: by blocks it takes more than the 32 registers with which two programs fit side by side
        for start in range(0, columns, BLOCK_N):
            lane_product, lane_sum = _added(
                s, grad_y, weight, bias, s_at, g_at, start + lane, columns, m, r, weight_stride, bias_stride,
                weight_offset, lane_product, lane_sum, ACTIVATION, UNIT, "",
            )  # fmt: skip
    product = tl.sum(lane_product, axis=0) / columns
    total = tl.sum(lane_sum, axis=0) / columns

    if BLOCKS > 0:
        for i in tl.static_range(BLOCKS):
            _finish(
                s, grad_y, grad_summed, weight, bias, grad_x, grad_residual, s_at, g_at, e_at, at,
                (BLOCKS - 1 - i) * BLOCK_N + lane, columns, m, r, weight_stride, bias_stride, weight_offset, product,
                total, ACTIVATION, UNIT,
            )  # fmt: skip
    else:
        blocks = tl.cdiv(columns, BLOCK_N)
        for i in range(blocks):
            _finish(
                s, grad_y, grad_summed, weight, bias, grad_x, grad_residual, s_at, g_at, e_at, at,
                (blocks - 1 - i) * BLOCK_N + lane, columns, m, r, weight_stride, bias_stride, weight_offset, product,
                total, ACTIVATION, UNIT,
            )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def row_shares(
    s: tl.tensor,
    grad_y: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    weight_shares: tl.tensor,  # (programs along the second dimension, N) float32. None: not wanted
    bias_shares: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    s_stride: tl.tensor,
    grad_y_stride: tl.tensor,
    weight_stride: tl.tensor,
    bias_stride: tl.tensor,
    weight_offset: tl.tensor,
    ACTIVATION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    UNIT: tl.constexpr,
) -> None:
    """Shares of the sums over rows: a program's columns of every so many rows."""
    columns, s_stride, grad_y_stride = in_units(columns, UNIT), in_units(s_stride, UNIT), in_units(grad_y_stride, UNIT)
    if weight_offset is not None:  # Inductor passes numbers in float64
        weight_offset = tl.cast(weight_offset, tl.float32)
    program = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    weight_share = tl.full((BLOCK_N,), 0.0, tl.float32)
    bias_share = tl.full((BLOCK_N,), 0.0, tl.float32)
    for row in range(program, rows, tl.num_programs(1)):
        r = tl.load(rstd + row)
        m = None
        if mean is not None:
            m = tl.load(mean + row)
        u, h, _w = _of_block(
            s, grad_y, weight, bias, row * s_stride, row * grad_y_stride, column, columns, m, r, weight_stride,
            bias_stride, weight_offset, ACTIVATION, UNIT, "",
        )  # fmt: skip
        weight_share += h * u
        bias_share += h
    if weight_shares is not None:
        tl.store(weight_shares + program * columns + column, weight_share, mask=column < columns)
    if bias_shares is not None:
        tl.store(bias_shares + program * columns + column, bias_share, mask=column < columns)
