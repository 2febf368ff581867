"""The gradient of normalised rows: of what ``norm_forward`` computes, in Triton.

Of each row of ``s``, which is ``x`` or the saved sum, with its saved ``mean`` (0 where the norm does not centre) and
``rstd``, ``u = (s - mean) * rstd``, ``w = weight + weight_offset``, ``z = u * w + bias``, ``g`` and ``grad_summed`` the
gradients of ``y`` and of the sum, and ``h = g * activation'(z)``:

    grad_x      = rstd * (h * w - u * mean(h * w * u) - mean(h * w)) + grad_summed     the last mean: where centred
    grad_weight = sum over rows of h * u
    grad_bias   = sum over rows of h

Everything is computed in float32 and rounded once, when it is stored. A row is one block of registers while the
configuration says so: programs stay, take row after row, with the next one on its way, and keep their shares of the
sums over rows. Longer rows are read twice for ``grad_x``, and once more, by columns, for the sums over rows.
"""
# pyright: reportPossiblyUnboundVariable=false
# What branches of compile-time values bind, Triton sees bound.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel_plugins.triton.activations import value_and_slope
from portakernel_plugins.triton.configurations import configuration
from portakernel_plugins.triton.launch import cdiv, grid_of, launch, program_index
from portakernel_plugins.triton.row_blocks import is_long
from portakernel_plugins.triton.rows import with_row_stride
from portakernel_plugins.triton.weight_gradients import summed_shares


@triton.jit
def _parameter(pointer, stride, column, inside):
    return tl.load(pointer + column.to(tl.int64) * stride, mask=inside, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def _backward(
    s: tl.tensor,
    grad_y: tl.tensor,
    grad_summed: tl.tensor,  # None: zero
    weight: tl.tensor,
    bias: tl.tensor,  # None: absent, or of no influence
    mean: tl.tensor,  # None: the norm does not centre
    rstd: tl.tensor,
    grad_x: tl.tensor,  # None: not wanted
    grad_residual: tl.tensor,  # None: not wanted
    weight_shares: tl.tensor,  # (programs, N) float32, each program's share of grad_weight. None: not wanted
    bias_shares: tl.tensor,  # the same of grad_bias
    rows: tl.tensor,
    columns: tl.tensor,
    s_stride: tl.tensor,
    grad_y_stride: tl.tensor,
    grad_summed_stride: tl.tensor,
    weight_stride: tl.tensor,
    bias_stride: tl.tensor,
    weight_offset: tl.tensor,  # None: nothing is added
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_N)
    in_row = column < columns
    w = _parameter(weight, weight_stride, column, in_row)
    if weight_offset is not None:
        w = w + weight_offset
    if bias is not None:
        b = _parameter(bias, bias_stride, column, in_row)
    weight_share = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    bias_share = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)

    # The next rows are read before these are computed, so that there is always something on its way.
    row = program * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = (row < rows)[:, None] & in_row[None, :]
    s_next = tl.load(s + row[:, None] * s_stride + column[None, :], mask=inside, other=0.0)
    g_next = tl.load(grad_y + row[:, None] * grad_y_stride + column[None, :], mask=inside, other=0.0)
    r_next = tl.load(rstd + row, mask=row < rows, other=0.0)
    if mean is not None:
        m_next = tl.load(mean + row, mask=row < rows, other=0.0)
    if grad_summed is not None:
        e_next = tl.load(grad_summed + row[:, None] * grad_summed_stride + column[None, :], mask=inside, other=0.0)

    step = tl.num_programs(0) * BLOCK_M
    for first in range(program * BLOCK_M, rows, step):
        u = s_next.to(tl.float32)
        g = g_next.to(tl.float32)
        r = r_next[:, None]
        if mean is not None:
            u = u - m_next[:, None]
        u = u * r
        if grad_summed is not None:
            e = e_next

        row = first + step + tl.arange(0, BLOCK_M)
        inside = (row < rows)[:, None] & in_row[None, :]
        s_next = tl.load(s + row[:, None] * s_stride + column[None, :], mask=inside, other=0.0)
        g_next = tl.load(grad_y + row[:, None] * grad_y_stride + column[None, :], mask=inside, other=0.0)
        r_next = tl.load(rstd + row, mask=row < rows, other=0.0)
        if mean is not None:
            m_next = tl.load(mean + row, mask=row < rows, other=0.0)
        if grad_summed is not None:
            e_next = tl.load(grad_summed + row[:, None] * grad_summed_stride + column[None, :], mask=inside, other=0.0)

        if ACTIVATION != "none":
            z = u * w[None, :]
            if bias is not None:
                z += b[None, :]
            _value, slope = value_and_slope(z, ACTIVATION)
            g = g * slope
        if grad_x is not None:
            gw = g * w[None, :]
            # outside of the row ``g`` is 0, and with it ``gw``
            inner = gw - u * (tl.sum(gw * u, axis=1) / columns)[:, None]
            if mean is not None:
                inner -= (tl.sum(gw, axis=1) / columns)[:, None]
            gradient = r * inner
            if grad_summed is not None:
                gradient += e.to(tl.float32)
            row = first + tl.arange(0, BLOCK_M)
            inside = (row < rows)[:, None] & in_row[None, :]
            gradient = gradient.to(grad_x.dtype.element_ty)
            tl.store(grad_x + row[:, None] * columns + column[None, :], gradient, mask=inside)
            if grad_residual is not None:
                tl.store(grad_residual + row[:, None] * columns + column[None, :], gradient, mask=inside)
        if weight_shares is not None:
            weight_share += g * u
        if bias_shares is not None:
            bias_share += g

    if weight_shares is not None:
        tl.store(weight_shares + program * columns + column, tl.sum(weight_share, axis=0), mask=in_row)
    if bias_shares is not None:
        tl.store(bias_shares + program * columns + column, tl.sum(bias_share, axis=0), mask=in_row)


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
):
    """``u``, ``h`` and ``w`` of one row's block of columns."""
    inside = column < columns
    u = tl.load(s + s_at + column, mask=inside, other=0.0).to(tl.float32)
    h = tl.load(grad_y + g_at + column, mask=inside, other=0.0).to(tl.float32)
    w = _parameter(weight, weight_stride, column, inside)
    if weight_offset is not None:
        w = w + weight_offset
    if m is not None:
        u = u - m
    u = u * r
    if ACTIVATION != "none":
        z = u * w
        if bias is not None:
            z += _parameter(bias, bias_stride, column, inside)
        _value, slope = value_and_slope(z, ACTIVATION)
        h = h * slope
    return u, h, w


@triton.jit(do_not_specialize=["rows"])
def _backward_long(
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
) -> None:
    row = program_index()
    if row >= rows:
        return
    s_at, g_at = row * s_stride, row * grad_y_stride
    lane = tl.arange(0, BLOCK_N)
    r = tl.load(rstd + row)
    m = None
    if mean is not None:
        m = tl.load(mean + row)

    lane_product = tl.full((BLOCK_N,), 0.0, tl.float32)
    lane_sum = tl.full((BLOCK_N,), 0.0, tl.float32)
    for start in range(0, columns, BLOCK_N):
        column = start + lane
        u, h, w = _of_block(
            s, grad_y, weight, bias, s_at, g_at, column, columns, m, r, weight_stride, bias_stride, weight_offset,
            ACTIVATION,
        )  # fmt: skip
        lane_product += h * w * u
        lane_sum += h * w
    product = tl.sum(lane_product, axis=0) / columns
    total = tl.sum(lane_sum, axis=0) / columns

    blocks = tl.cdiv(columns, BLOCK_N)
    for index in range(blocks):
        column = (blocks - 1 - index) * BLOCK_N + lane
        inside = column < columns
        u, h, w = _of_block(
            s, grad_y, weight, bias, s_at, g_at, column, columns, m, r, weight_stride, bias_stride, weight_offset,
            ACTIVATION,
        )  # fmt: skip
        inner = h * w - u * product
        if mean is not None:
            inner -= total
        gradient = r * inner
        if grad_summed is not None:
            e = tl.load(grad_summed + row * grad_summed_stride + column, mask=inside, other=0.0)
            gradient += e.to(tl.float32)
        gradient = gradient.to(grad_x.dtype.element_ty)
        tl.store(grad_x + row * columns + column, gradient, mask=inside)
        if grad_residual is not None:
            tl.store(grad_residual + row * columns + column, gradient, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _shares(
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
) -> None:
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
            bias_stride, weight_offset, ACTIVATION,
        )  # fmt: skip
        weight_share += h * u
        bias_share += h
    if weight_shares is not None:
        tl.store(weight_shares + program * columns + column, weight_share, mask=column < columns)
    if bias_shares is not None:
        tl.store(bias_shares + program * columns + column, bias_share, mask=column < columns)


def backward(
    kernel: str,
    grad_y: Tensor,
    grad_summed: Tensor | None,
    s: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    *,
    weight_offset: float | None = None,
    activation: str = "none",
    needs: tuple[bool, bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The gradients for ``x``, ``residual``, ``weight`` and ``bias`` that ``needs`` asks for, as ``kernel`` says.

    ``s``, ``grad_y``, ``grad_summed``: ``(..., N)``, any strides, read where they lie if their rows are contiguous and
    at one stride. ``mean``, ``rstd``: ``(M,)`` float32, from forward; a norm without ``mean`` does not centre.
    """
    n = s.shape[-1]
    rows = s.numel() // n
    wanted = [torch.empty_like(s, memory_format=torch.contiguous_format) for need in needs[:2] if need]
    grad_x, grad_residual = (*wanted, None, None)[:2]  # they are equal: which is which does not matter below
    sums = needs[2] + needs[3]
    if not (wanted or sums):
        return None, None, None, None

    how = configuration(kernel, s.device, n)
    long = is_long(how)
    if long:
        block = configuration("weight_gradients.shares", s.device, n)
        across = cdiv(n, block.elements)
        programs = min(rows, cdiv(block.programs, across))
    else:
        programs = min(cdiv(rows, how.rows), how.programs)
    shares = [torch.empty(programs, n, dtype=torch.float32, device=s.device) for _ in range(sums)]
    weight_shares = shares[0] if needs[2] else None
    bias_shares = shares[-1] if needs[3] else None

    if rows:
        s, s_stride = with_row_stride(s)
        grad_y, grad_y_stride = with_row_stride(grad_y)
        grad_summed_stride = None
        if grad_summed is not None:
            grad_summed, grad_summed_stride = with_row_stride(grad_summed)
        if activation == "none":
            bias = None
        inputs = (s, grad_y, grad_summed, weight, bias, mean, rstd)
        strides = (s_stride, grad_y_stride, grad_summed_stride, weight.stride(0))
        rest = (None if bias is None else bias.stride(0), weight_offset)
        if not long:
            outputs = (grad_x, grad_residual, weight_shares, bias_shares)
            meta = {"ACTIVATION": activation, "BLOCK_M": how.rows, "BLOCK_N": how.columns, **how.options}
            launch(_backward, (programs,), *inputs, *outputs, rows, n, *strides, *rest, parameter="N", **meta)
        elif grad_x is not None:
            meta = {"ACTIVATION": activation, "BLOCK_N": how.elements, **how.options}
            grid = grid_of(rows)
            launch(
                _backward_long, grid, *inputs, grad_x, grad_residual, rows, n, *strides, *rest, parameter="N", **meta
            )
        if long and sums:
            meta = {"ACTIVATION": activation, "BLOCK_N": block.elements, **block.options}
            given = (s, grad_y, weight, bias, mean, rstd, weight_shares, bias_shares, rows, n)
            given_strides = (s_stride, grad_y_stride, weight.stride(0))
            launch(_shares, (across, programs), *given, *given_strides, *rest, parameter="N", **meta)

    totals = summed_shares(shares, weight.dtype) if sums else []
    return (
        grad_x if needs[0] else None,
        (grad_residual if needs[0] else grad_x) if needs[1] else None,
        totals[0] if needs[2] else None,
        totals[-1] if needs[3] else None,
    )
