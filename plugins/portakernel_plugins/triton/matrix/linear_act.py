"""``linear_act`` in Triton: ``activation(x @ weight.T + bias)``; its gradients are in ``linear_act_backward.py``.

A tile of the product stays in registers until bias and activation are applied to it, and is rounded once. Where
backward needs the preactivation, the same tile is written before the activation too.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import delivered
from portakernel_plugins.triton.gates.activations import activated
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.matrix.products import (
    form_of,
    halves,
    is_described,
    launch_tiles,
    operand,
    part_of_tile,
    result,
    shared_steps,
    tile_corner,
    tile_product,
    tiles_of,
    write_block,
)

# The activations that backward needs the preactivation for.
CURVED = ("gelu", "gelu_tanh", "silu")


@triton.jit(do_not_specialize=["rows", "steps", "splits", "share"])
def _product(
    a: tl.tensor,
    b: tl.tensor,
    bias: tl.tensor,  # (columns,). None: 0
    y: tl.tensor,  # (rows, columns), contiguous
    preactivation: tl.tensor,  # the same. None: not wanted
    parts: tl.tensor,  # (splits, tiles, BLOCK_M * BLOCK_N) float32. None: one split
    counters: tl.tensor,
    bias_stride: tl.tensor,
    splits: tl.tensor,
    share: tl.tensor,  # steps of a split
    rows: tl.tensor,
    columns: tl.tensor,
    inners: tl.tensor,
    steps: tl.tensor,
    a_outer: tl.tensor,
    a_inner: tl.tensor,
    b_outer: tl.tensor,
    b_inner: tl.tensor,
    ACTIVATION: tl.constexpr,
    FORM_Y: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    FLATTEN: tl.constexpr,
    FORM_A: tl.constexpr,
    FORM_B: tl.constexpr,
    EVEN: tl.constexpr,
    WIDEN: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    left = operand(a, rows, inners, a_outer, a_inner, BLOCK_M, BLOCK_K, FORM_A)
    right = operand(b, columns, inners, b_outer, b_inner, BLOCK_N, BLOCK_K, FORM_B)
    into = result(y, rows, columns, BLOCK_M, BLOCK_N // 2, FORM_Y)
    kept = into
    if preactivation is not None:
        kept = result(preactivation, rows, columns, BLOCK_M, BLOCK_N // 2, FORM_Y)
    tiles = tl.cdiv(rows, BLOCK_M) * tl.cdiv(columns, BLOCK_N)
    for item in tl.range(tl.program_id(0), tiles * splits, tl.num_programs(0), flatten=FLATTEN):
        tile, split = item % tiles, item // tiles
        first_row, first_column = tile_corner(tile, rows, columns, BLOCK_M, BLOCK_N, GROUP)
        z = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
        if SPLIT:
            here = tl.minimum(share, steps - split * share)
            z = tile_product(
                z, left, right, first_row, first_column, here, BLOCK_K, FORM_A, FORM_B, EVEN, WIDEN, PRECISION,
                split * share,
            )  # fmt: skip
            z, last = part_of_tile(z, parts, counters, tile, tiles, split, splits, first_row, rows)
            if last:
                _write(
                    z,
                    into,
                    kept,
                    bias,
                    bias_stride,
                    preactivation,
                    first_row,
                    first_column,
                    rows,
                    columns,
                    ACTIVATION,
                    FORM_Y,
                )
        else:
            z = tile_product(
                z, left, right, first_row, first_column, steps, BLOCK_K, FORM_A, FORM_B, EVEN, WIDEN, PRECISION
            )  # fmt: skip
            _write(
                z,
                into,
                kept,
                bias,
                bias_stride,
                preactivation,
                first_row,
                first_column,
                rows,
                columns,
                ACTIVATION,
                FORM_Y,
            )


@triton.jit
def _write(
    z,
    into,
    kept,
    bias,
    bias_stride,
    preactivation,
    first_row,
    first_column,
    rows,
    columns,
    ACTIVATION: tl.constexpr,
    FORM_Y: tl.constexpr,
):
    """What follows a tile's product, a half after the other."""
    WIDTH: tl.constexpr = z.shape[1] // 2
    sides = halves(z)
    for side in tl.static_range(2):
        first = first_column + side * WIDTH
        value = sides[side]
        if bias is not None:
            column = (first + tl.arange(0, WIDTH)).to(tl.int64)
            added = tl.load(bias + column * bias_stride, mask=column < columns, other=0.0)
            value += added.to(tl.float32)[None, :]
        if preactivation is not None:
            write_block(kept, first_row, first, rows, columns, value, FORM_Y)
        write_block(into, first_row, first, rows, columns, activated(value, ACTIVATION), FORM_Y)


def multiply(
    a: Tensor,
    b: Tensor,
    y: Tensor,
    bias: Tensor | None = None,
    preactivation: Tensor | None = None,
    activation: str = "none",
) -> None:
    """Write ``activation(a @ b.T + bias)`` into ``y``, contiguous, and what the activation is applied to.

    ``a``: ``(R, I)``, ``b``: ``(C, I)``, ``bias``: ``(C,)``, any strides; ``y`` and ``preactivation``: ``(R, C)``.
    """
    if not y.numel():
        return
    if a.dtype is torch.float32:
        how = configuration("linear_act.float32", a.device, a.shape[1])
    else:
        how, a, b = tiles_of("linear_act", a, b, a.shape[1])
    described = is_described(how) and (preactivation is None or form_of(preactivation, True) == "inner")
    stride = 0 if bias is None else bias.stride(0)
    shared = shared_steps(how, a.shape[0], b.shape[0], a.shape[1], a.device)
    meta: dict[str, Any] = {"ACTIVATION": activation, "FORM_Y": form_of(y, described), "SPLIT": shared.splits > 1}
    given = bias, y, preactivation, shared.parts, shared.counters, stride, shared.splits, shared.share
    launch_tiles(_product, how, a, b, *given, splits=shared.splits, **meta)


def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str,
    out: Tensor | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """``activation(x @ weight.T + bias)``, and with ``save`` its preactivation where the activation is no line.

    ``x``: ``(..., K)``, ``weight``: ``(N, K)``, ``bias``: ``(N,)``, of one dtype: float32, float16 or bfloat16; all
    with any strides. ``out``: ``(..., N)``, any strides.
    """
    columns, inners = weight.shape
    rows = math.prod(x.shape[:-1])
    shape = (*x.shape[:-1], columns)
    y = out if out is not None and out.is_contiguous() else x.new_empty(shape)
    z = x.new_empty(shape) if save and activation in CURVED else None
    kept = None if z is None else z.view(rows, columns)
    multiply(x.reshape(rows, inners), weight, y.view(rows, columns), bias, kept, activation)
    found = delivered(y, out)
    if not save:
        return found
    return (found,) if z is None else (found, z)
