"""The gradients of ``grouped_mm`` in Triton.

    grad_a[rows of e] = grad_y[rows of e] @ b[e]            the products of forward, with matrices the other way round
    grad_b[e]         = grad_y[rows of e].T @ a[rows of e]
    grad_bias[e]      = the sum of grad_y[rows of e]

A program has a tile of one expert's matrix, and adds up that expert's rows in their order: nothing is added atomically,
equal calls give equal bits, and an expert without rows has zeros.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring import ArgumentValueError
from portakernel.authoring.triton import cdiv, grid_of, launch, program_index
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.matrix.grouped_mm import multiply, products_of, tiles_for


@triton.jit
def _rows(x, first, end, lane, lanes, row_stride, lane_stride, ROWS: tl.constexpr, WIDEN: tl.constexpr):
    """``(ROWS, lanes)`` of ``x``, zeros behind ``end``."""
    row = (first + tl.arange(0, ROWS)).to(tl.int64)
    at = x + (row * row_stride)[:, None] + (lane.to(tl.int64) * lane_stride)[None, :]
    block = tl.load(at, mask=(row < end)[:, None] & (lane < lanes)[None, :], other=0.0)
    return block.to(tl.float32) if WIDEN else block


@triton.jit(do_not_specialize=["programs"])
def _gradient_of_b(
    grad,  # (M, N)
    a,  # (M, K)
    offsets,
    grad_b,  # (E, N, K)
    columns,
    inners,
    programs,
    grad_row,
    grad_column,
    a_row,
    a_inner,
    offsets_stride,
    BLOCK_M: tl.constexpr,  # rows at a time
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WIDEN: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    index = program_index()
    if index >= programs:
        return
    down, across = tl.cdiv(columns, BLOCK_N), tl.cdiv(inners, BLOCK_K)
    expert = index // (down * across)
    place = (index - expert * (down * across)).to(tl.int32)
    column = place % down * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = place // down * BLOCK_K + tl.arange(0, BLOCK_K)
    begin = tl.load(offsets + expert * offsets_stride).to(tl.int32)
    end = tl.load(offsets + (expert + 1) * offsets_stride).to(tl.int32)
    z = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for first in range(begin, end, BLOCK_M):
        left = _rows(grad, first, end, column, columns, grad_row, grad_column, BLOCK_M, WIDEN)
        right = _rows(a, first, end, inner, inners, a_row, a_inner, BLOCK_M, WIDEN)
        z = tl.dot(left.T, right, z, input_precision=PRECISION)
    at = grad_b + expert * columns * inners + (column.to(tl.int64) * inners)[:, None] + inner[None, :]
    tl.store(at, z.to(grad_b.dtype.element_ty), mask=(column < columns)[:, None] & (inner < inners)[None, :])


@triton.jit(do_not_specialize=["programs"])
def _gradient_of_bias(
    grad,  # (M, N)
    offsets,
    grad_bias,  # (E, N)
    columns,
    programs,
    grad_row,
    grad_column,
    offsets_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    index = program_index()
    if index >= programs:
        return
    across = tl.cdiv(columns, BLOCK_N)
    expert = index // across
    column = (index - expert * across).to(tl.int32) * BLOCK_N + tl.arange(0, BLOCK_N)
    begin = tl.load(offsets + expert * offsets_stride).to(tl.int32)
    end = tl.load(offsets + (expert + 1) * offsets_stride).to(tl.int32)
    total = tl.zeros((BLOCK_N,), tl.float32)
    for first in range(begin, end, BLOCK_M):
        total += tl.sum(_rows(grad, first, end, column, columns, grad_row, grad_column, BLOCK_M, True), axis=0)
    tl.store(grad_bias + expert * columns + column, total.to(grad_bias.dtype.element_ty), mask=column < columns)


def backward(
    grad_y: Tensor,
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    *,
    format: str = "none",
    needs: tuple[bool, ...] = (True, True, False, True, False, False),
) -> tuple[Tensor | None, ...]:
    """The gradients for ``a``, ``b`` and ``bias`` that ``needs`` asks for; all tensors of any strides.

    Raises:
        ArgumentValueError: those of float8 a or b are asked for.
    """
    if format != "none" and (needs[0] or needs[1]):
        raise ArgumentValueError(f"grouped_mm: format is {format!r}; gradients of a and b are those of format='none'")
    (_, inners), (experts, columns, _) = a.shape, b.shape
    grad_a = grad_b = grad_bias = None
    if needs[0]:
        grad_a = a.new_empty(a.shape) if experts and columns and a.numel() else a.new_zeros(a.shape)
        if columns:
            multiply("forward", grad_y, b.transpose(1, 2), offsets, grad_a, rest=True)
    if needs[1]:
        grad_b = b.new_empty(b.shape)
        how = tiles_for("gradient_of_b", a, experts)
        options = dict(how.options)
        tiles = experts * cdiv(columns, options["BLOCK_N"]) * cdiv(inners, options["BLOCK_K"])
        if tiles:
            launch(
                _gradient_of_b,
                grid_of(tiles),
                grad_y,
                a,
                offsets,
                grad_b,
                columns,
                inners,
                tiles,
                *grad_y.stride(),
                *a.stride(),
                offsets.stride(0),
                **products_of(a),
                **{name: value for name, value in options.items() if name not in _OF_FORWARD},
            )
    if needs[3] and bias is not None:
        grad_bias = bias.new_empty(bias.shape)
        how = configuration("grouped_mm.gradient_of_bias", a.device, max(1, a.shape[0] // max(experts, 1)))
        programs = experts * cdiv(columns, how.options["BLOCK_N"])
        if programs:
            launch(
                _gradient_of_bias,
                grid_of(programs),
                grad_y,
                offsets,
                grad_bias,
                columns,
                programs,
                *grad_y.stride(),
                offsets.stride(0),
                **how.options,
            )
    return grad_a, grad_b, None, grad_bias, None, None


# What configurations say for forward alone, where one is for both.
_OF_FORWARD = ("SWAP", "FLATTEN", "DESCRIPTORS")
