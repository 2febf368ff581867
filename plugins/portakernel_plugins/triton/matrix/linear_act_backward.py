"""The gradients of ``linear_act`` in Triton.

With ``z = x @ weight.T + bias`` and ``d = grad_y * activation'(z)``:

    grad_x      = d @ weight
    grad_weight = d.T @ x
    grad_bias   = sum(d)        over rows

d is computed in float32, rounded to the dtype of ``grad_y`` where it becomes a factor, and not where it is summed. The
sum is one of shares of rows, each in order, which are added in their order: how it is grouped depends on M alone.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import contiguous_like
from portakernel.authoring.triton import cdiv, launch
from portakernel_plugins.triton.gates.activations import value_and_slope
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.matrix.linear_act import CURVED, multiply
from portakernel_plugins.triton.norms.weight_gradients import summed_shares

# Shares of rows that a column's sum has at most.
_MOST_SHARES = 128
# d's rows begin at multiples of as many elements, so that the widest accesses take them.
_ALIGNED = 16
# Beyond it every slope is 0 or 1, and where a 16-bit preactivation overflowed, the formula gives NaN.
_STRAIGHT = tl.constexpr(1000.0)


@triton.jit(do_not_specialize=["rows", "blocks"])
def _gradient(
    grad_y: tl.tensor,
    decides: tl.tensor,  # y for relu, the preactivation for a curve. None: the slope is 1
    d: tl.tensor,  # None: not wanted
    shares: tl.tensor,  # (programs down, N) float32. None: not wanted
    rows: tl.tensor,
    columns: tl.tensor,
    blocks: tl.tensor,  # of rows, for each program
    grad_outer: tl.tensor,
    grad_inner: tl.tensor,
    decides_outer: tl.tensor,
    decides_inner: tl.tensor,
    d_stride: tl.tensor,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    column = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    first = tl.program_id(1).to(tl.int64) * blocks * BLOCK_M
    for block in range(blocks):
        row = first + block * BLOCK_M + tl.arange(0, BLOCK_M)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        at = grad_y + row[:, None] * grad_outer + column[None, :] * grad_inner
        value = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        if decides is not None:
            at = decides + row[:, None] * decides_outer + column[None, :] * decides_inner
            z = tl.load(at, mask=inside, other=0.0).to(tl.float32)
            if ACTIVATION == "relu":
                # no product, which would make NaN of an infinite gradient where the slope is 0
                value = tl.where(z <= 0.0, 0.0, value)
            else:
                z = tl.where(z > _STRAIGHT, _STRAIGHT, tl.where(z < -_STRAIGHT, -_STRAIGHT, z))
                _, slope = value_and_slope(z, ACTIVATION)
                value = tl.where(inside, value * slope, 0.0)
        total += value
        if d is not None:
            at = d + row[:, None] * d_stride + column[None, :]
            tl.store(at, value.to(d.dtype.element_ty), mask=inside)
    if shares is not None:
        share = tl.program_id(1).to(tl.int64) * columns + column
        tl.store(shares + share, tl.sum(total, axis=0), mask=column < columns)


def backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    preactivation: Tensor | None = None,
    *,
    activation: str,
    needs: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients for ``x``, ``weight`` and ``bias`` that ``needs`` asks for: contiguous, each rounded once.

    Arguments as in forward; ``preactivation`` from there; ``grad_y`` and ``y``: ``(..., N)``, any strides.
    """
    (columns, inners), rows = weight.shape, math.prod(x.shape[:-1])
    grad_x = contiguous_like(x) if needs[0] else None
    grad_weight = contiguous_like(weight) if needs[1] else None
    grads, matrix = grad_y.reshape(rows, columns), x.reshape(rows, inners)
    decides = preactivation if activation in CURVED else y if activation == "relu" else None
    multiplied = grad_x is not None or grad_weight is not None
    d, grad_bias = grads, None
    if needs[2] or (multiplied and decides is not None):
        given = None if decides is None else decides.reshape(rows, columns)
        d, shares = _factor(grads, given, activation, multiplied=multiplied, summed=needs[2])
        grad_bias = None if shares is None else summed_shares([shares], x.dtype)[0]
    if grad_x is not None:
        multiply(d, weight.T, grad_x.view(rows, inners))
    if grad_weight is not None:
        multiply(d.T, matrix.T, grad_weight)
    return grad_x, grad_weight, grad_bias


def _factor(
    grads: Tensor, decides: Tensor | None, activation: str, *, multiplied: bool, summed: bool
) -> tuple[Tensor, Tensor | None]:
    """d, ``grads`` itself where the slope is 1, and float32 shares ``(parts, N)`` of its sum over rows."""
    rows, columns = grads.shape
    how = configuration("linear_act.gradient", grads.device, columns)
    height, width = how.options["BLOCK_M"], how.options["BLOCK_N"]
    blocks = max(1, cdiv(cdiv(rows, height), _MOST_SHARES))
    parts = cdiv(rows, height * blocks)
    d = None
    if multiplied and decides is not None:
        d = grads.new_empty(rows, cdiv(columns, _ALIGNED) * _ALIGNED)[:, :columns]
    shares = grads.new_empty(parts, columns, dtype=torch.float32) if summed else None
    if rows and columns:
        launch(
            _gradient,
            (cdiv(columns, width), parts),
            grads,
            decides,
            d,
            shares,
            rows,
            columns,
            blocks,
            *grads.stride(),
            *((0, 0) if decides is None else decides.stride()),
            0 if d is None else d.stride(0),
            ACTIVATION=activation,
            **how.options,
        )
    return grads if d is None else d, shares
