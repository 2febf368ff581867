"""The gradients of ``grouped_mm`` in Triton.

    grad_a[rows of e] = grad_y[rows of e] @ b[e]            the products of forward, with matrices the other way round
    grad_b[e]         = grad_y[rows of e].T @ a[rows of e]
    grad_bias[e]      = the sum of grad_y[rows of e]

Where rows are gathered, a row of a has the sum of the gradients of all that were made of it: those are sorted, stably,
by the row that they are of.

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


@triton.jit
def _gathered_rows(
    x, gather, first, end, lane, lanes, row_stride, lane_stride, gather_stride, shared,
    ROWS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """The same of those rows that ``gather`` names, of which so many neighbouring numbers are ``shared`` by each."""
    place = (first + tl.arange(0, ROWS)).to(tl.int64)
    row = tl.load(gather + place * gather_stride, mask=place < end, other=0).to(tl.int64) // shared
    at = x + (row * row_stride)[:, None] + (lane.to(tl.int64) * lane_stride)[None, :]
    block = tl.load(at, mask=(place < end)[:, None] & (lane < lanes)[None, :], other=0.0)
    return block.to(tl.float32) if WIDEN else block


@triton.jit(do_not_specialize=["programs"])
def _gradient_of_b(
    grad,  # (M, N)
    a,  # (M, K)
    offsets,
    gather,  # (R,): which rows of a. None: its own
    of_grad,  # the same of grad
    grad_b,  # (E, N, K)
    columns,
    inners,
    programs,
    grad_row,
    grad_column,
    a_row,
    a_inner,
    offsets_stride,
    gather_stride,
    of_grad_stride,
    shared,
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
        if of_grad is None:
            left = _rows(grad, first, end, column, columns, grad_row, grad_column, BLOCK_M, WIDEN)
        else:
            left = _gathered_rows(
                grad, of_grad, first, end, column, columns, grad_row, grad_column, of_grad_stride, shared,
                BLOCK_M, WIDEN,
            )  # fmt: skip
        if gather is None:
            right = _rows(a, first, end, inner, inners, a_row, a_inner, BLOCK_M, WIDEN)
        else:
            right = _gathered_rows(
                a, gather, first, end, inner, inners, a_row, a_inner, gather_stride, shared, BLOCK_M, WIDEN
            )  # fmt: skip
        z = tl.dot(left.T, right, z, input_precision=PRECISION)
    at = grad_b + expert * columns * inners + (column.to(tl.int64) * inners)[:, None] + inner[None, :]
    tl.store(at, z.to(grad_b.dtype.element_ty), mask=(column < columns)[:, None] & (inner < inners)[None, :])


@triton.jit(do_not_specialize=["programs"])
def _gradient_of_bias(
    grad,  # (M, N)
    offsets,
    of_grad,  # (R,): which rows of grad, each one's numbers those of its weights. None: its own
    weights,  # (M, shared): what rows are multiplied with. None: by nothing
    grad_bias,  # (E, N)
    columns,
    programs,
    grad_row,
    grad_column,
    offsets_stride,
    of_grad_stride,
    shared,
    weights_row,
    weights_choice,
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
        if of_grad is None:
            rows = _rows(grad, first, end, column, columns, grad_row, grad_column, BLOCK_M, True)
        else:
            rows = _gathered_rows(
                grad, of_grad, first, end, column, columns, grad_row, grad_column, of_grad_stride, shared, BLOCK_M, True
            )
        if weights is not None:
            place = (first + tl.arange(0, BLOCK_M)).to(tl.int64)
            number = tl.load(of_grad + place * of_grad_stride, mask=place < end, other=0).to(tl.int64)
            at = weights + number // shared * weights_row + number % shared * weights_choice
            rows *= tl.load(at, mask=place < end, other=0.0).to(tl.float32)[:, None]
        total += tl.sum(rows, axis=0)
    tl.store(grad_bias + expert * columns + column, total.to(grad_bias.dtype.element_ty), mask=column < columns)


@triton.jit(do_not_specialize=["programs"])
def _sums_of_gathered(
    grad,  # (R, K) float32, contiguous
    order,  # (R,): sorted by row
    bounds,  # (M + 1,): where in order those of each row begin
    grad_a,  # (M, K)
    inners,
    programs,
    BLOCK_K: tl.constexpr,
) -> None:
    index = program_index()
    if index >= programs:
        return
    across = tl.cdiv(inners, BLOCK_K)
    row = index // across
    inner = (index - row * across) * BLOCK_K + tl.arange(0, BLOCK_K)
    begin, end = tl.load(bounds + row).to(tl.int32), tl.load(bounds + row + 1).to(tl.int32)
    total = tl.zeros((BLOCK_K,), tl.float32)
    for place in range(begin, end):
        at = grad + tl.load(order + place).to(tl.int64) * inners + inner
        total += tl.load(at, mask=inner < inners, other=0.0)
    tl.store(grad_a + row * inners + inner, total.to(grad_a.dtype.element_ty), mask=inner < inners)


def _gradient_of_a(grad_y: Tensor, a: Tensor, b: Tensor, offsets: Tensor, gather: Tensor | None) -> Tensor:
    """The gradient for ``a``, in whose memory nothing is left undefined."""
    experts, columns, inners = b.shape
    if not (experts and columns and grad_y.numel() and a.numel()):
        return a.new_zeros(a.shape)
    if gather is None:
        grad_a = a.new_empty(a.shape)
        multiply("forward", grad_y, b.transpose(1, 2), offsets, grad_a, rest=True)
        return grad_a
    of_rows = a.new_empty((gather.shape[0], inners), dtype=torch.float32)
    multiply("forward", grad_y, b.transpose(1, 2), offsets, of_rows, rest=True)
    rows, order = gather.sort(stable=True)
    bounds = torch.searchsorted(rows, torch.arange(a.shape[0] + 1, device=a.device, dtype=rows.dtype))
    grad_a = a.new_empty(a.shape)
    how = configuration("grouped_mm.sums_of_gathered", a.device, inners)
    block = min(how.columns, how.elements)
    programs = a.shape[0] * cdiv(inners, block)
    launch(
        _sums_of_gathered, grid_of(programs), of_rows, order, bounds, grad_a, inners, programs, BLOCK_K=block,
        **how.options,
    )  # fmt: skip
    return grad_a


def gradient_of_matrices(
    grad_b: Tensor,
    grad: Tensor,
    a: Tensor,
    offsets: Tensor,
    rows: int,
    *,
    gather: Tensor | None = None,
    of_grad: Tensor | None = None,
    shared: int = 1,
) -> None:
    """Writes ``grad_b: (E, N, K)``, contiguous: of each expert's rows those of ``grad`` with those of ``a``.

    There are so many ``rows``; of ``a`` those that ``gather`` names, of ``grad`` those of ``of_grad``, ``shared`` by so
    many neighbouring numbers.
    """
    experts, columns, inners = grad_b.shape
    how = tiles_for("gradient_of_b", a, rows, experts)
    options = {name: value for name, value in how.options.items() if name not in _OF_FORWARD}
    tiles = experts * cdiv(columns, options["BLOCK_N"]) * cdiv(inners, options["BLOCK_K"])
    if not tiles:
        return
    launch(
        _gradient_of_b,
        grid_of(tiles),
        grad,
        a,
        offsets,
        gather,
        of_grad,
        grad_b,
        columns,
        inners,
        tiles,
        *grad.stride(),
        *a.stride(),
        offsets.stride(0),
        0 if gather is None else gather.stride(0),
        0 if of_grad is None else of_grad.stride(0),
        shared,
        **products_of(a),
        **options,
    )


def gradient_of_bias(
    grad_bias: Tensor,
    grad: Tensor,
    offsets: Tensor,
    rows: int,
    *,
    of_grad: Tensor | None = None,
    weights: Tensor | None = None,
) -> None:
    """Writes ``grad_bias: (E, N)``, contiguous: of each expert the sum of its rows of ``grad``.

    There are so many ``rows``; with ``weights: (M, K)``, of ``grad`` row ``n // K`` for each number n of ``of_grad``,
    times the weight of that number.
    """
    experts, columns = grad_bias.shape
    how = configuration("grouped_mm.gradient_of_bias", grad.device, max(1, rows // max(experts, 1)))
    programs = experts * cdiv(columns, how.options["BLOCK_N"])
    if not programs:
        return
    launch(
        _gradient_of_bias,
        grid_of(programs),
        grad,
        offsets,
        of_grad,
        weights,
        grad_bias,
        columns,
        programs,
        *grad.stride(),
        offsets.stride(0),
        0 if of_grad is None else of_grad.stride(0),
        1 if weights is None else weights.shape[1],
        *((0, 0) if weights is None else weights.stride()),
        **how.options,
    )


def backward(
    grad_y: Tensor,
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    gather: Tensor | None,
    *,
    format: str = "none",
    needs: tuple[bool, ...] = (True, True, False, True, False, False, False),
) -> tuple[Tensor | None, ...]:
    """The gradients for ``a``, ``b`` and ``bias`` that ``needs`` asks for; all tensors of any strides.

    Raises:
        ArgumentValueError: those of float8 a or b are asked for.
    """
    if format != "none" and (needs[0] or needs[1]):
        raise ArgumentValueError(f"grouped_mm: format is {format!r}; gradients of a and b are those of format='none'")
    grad_a = _gradient_of_a(grad_y, a, b, offsets, gather) if needs[0] else None
    grad_b = grad_bias = None
    if needs[1]:
        grad_b = b.new_empty(b.shape)
        gradient_of_matrices(grad_b, grad_y, a, offsets, grad_y.shape[0], gather=gather)
    if needs[3] and bias is not None:
        grad_bias = bias.new_empty(bias.shape)
        gradient_of_bias(grad_bias, grad_y, offsets, grad_y.shape[0])
    return grad_a, grad_b, None, grad_bias, None, None, None


# What configurations say for forward alone, where one is for both.
_OF_FORWARD = ("SWAP", "FLATTEN", "DESCRIPTORS", "STORES")
