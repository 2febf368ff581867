"""Normalised rows in float8: what ``rms_norm_quantize`` and ``add_rms_norm_quantize`` have in common, in Triton.

Of each row, with ``s = x + residual`` rounded to its dtype, or ``s = x`` where nothing is added:

    rstd  = 1 / sqrt(mean(s**2) + eps)
    y     = s * (weight + weight_offset) * rstd
    scale = amax(abs(y)) / max(dtype)               of the row, or of each 128 elements; 1 below 2**-100
    q     = y / scale                               rounded to nearest, ties to even

Everything is computed in float32. ``rstd`` comes last in ``y``: a rounded product with it keeps the order, so
that the largest ``y`` is known from the largest ``s * (weight + weight_offset)``. A row stays in registers, in one
block or several, while the configuration says so. A longer one is read twice, block by block: for its sum and its
largest number and, from the end, because its end is what caches still hold, for its results.
"""
# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
# What branches of compile-time values bind, Triton sees bound. Tuples grow by concatenation, the one way it knows.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc, unreachable, var-annotated"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import as_bytes, delivered, with_row_stride
from portakernel.authoring.triton import cdiv, grid_of, launch, program_index
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.launching.row_blocks import held_shape, is_long, load_blocks, store_block, sum_blocks
from portakernel_plugins.triton.norms.norm_forward import reciprocal_root
from portakernel_plugins.triton.quantize.float8 import (
    conversion,
    divided,
    largest_number,
    largest_scale,
    magnitude,
    memory,
    narrowed,
    quantized,
)

_BLOCK = 128


@triton.jit
def _weights(weight, column, stride, offset, inside):
    return tl.load(weight + column.to(tl.int64) * stride, mask=inside, other=0.0).to(tl.float32) + offset


@triton.jit
def _summed(s, residual, place, summed, summed_place, inside):
    """``s + residual`` as it is rounded and stored, in float32; ``s`` where nothing is added."""
    if residual is not None:
        s += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
        rounded = s.to(summed.dtype.element_ty)
        tl.store(summed + summed_place, rounded, mask=inside)
        s = rounded.to(tl.float32)
    return s


@triton.jit
def _row_scale(largest, r, FORMAT: tl.constexpr):
    """The scale of rows and its reciprocal, from ``r`` and the largest magnitude of what ``r`` multiplies."""
    scale = largest_scale(magnitude(largest.to(tl.float32, bitcast=True) * r), largest_number(FORMAT))
    return scale, tl.div_rn(1.0, scale)


# ``rows`` is not specialised: M being 1, or divisible by 16, must neither recompile the kernel nor change its layout.
@triton.jit(do_not_specialize=["rows"])
def _forward(
    x: tl.tensor,
    residual: tl.tensor,  # None: nothing is added
    weight: tl.tensor,
    q: tl.tensor,
    scale: tl.tensor,
    summed: tl.tensor,  # None where nothing is added
    rows: tl.tensor,
    columns: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    weight_stride: tl.tensor,
    eps: tl.tensor,
    weight_offset: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,  # of BLOCK_N columns, in a row
    GROUP: tl.constexpr,  # the elements that share a scale; 0: all of a row
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    FUSED: tl.constexpr,
) -> None:
    eps = tl.cast(eps, tl.float32)  # Inductor passes numbers in float64
    weight_offset = tl.cast(weight_offset, tl.float32)
    row = program_index() * BLOCK_M + tl.arange(0, BLOCK_M)
    # No more columns side by side than a load of 16 bytes takes, though the store of ``q`` could take more: else the
    # weight, whose registers its own loads lay out, would have to go through shared memory.
    lane = tl.max_contiguous(tl.arange(0, BLOCK_N), 128 // x.dtype.element_ty.primitive_bitwidth)

    # All is read early, and kept as narrow as it is until it is needed.
    parts = load_blocks(x, row, x_stride, rows, lane, columns, BLOCK_N, BLOCKS)
    weights = ()
    for i in tl.static_range(BLOCKS):
        column = i * BLOCK_N + lane
        w = tl.load(weight + column.to(tl.int64) * weight_stride, mask=column < columns, other=0.0)
        weights = weights + (w,)
    if residual is not None:
        added = load_blocks(residual, row, residual_stride, rows, lane, columns, BLOCK_N, BLOCKS)
        parts = sum_blocks(parts, added, summed, BLOCKS)
        for i in tl.static_range(BLOCKS):
            store_block(summed, row, columns, rows, i * BLOCK_N + lane, columns, parts[i])
    squares = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    for i in tl.static_range(BLOCKS):
        s = parts[i].to(tl.float32)
        squares += s * s
    r = reciprocal_root(tl.sum(squares, axis=1) / columns, eps)

    if GROUP == 0:
        largest = tl.full((BLOCK_M, BLOCK_N), 0, tl.int32)
        for i in tl.static_range(BLOCKS):
            y = parts[i].to(tl.float32) * (weights[i].to(tl.float32) + weight_offset)[None, :]
            largest = tl.maximum(largest, magnitude(y))
        row_scale, reciprocal = _row_scale(tl.max(largest, axis=1), r, FORMAT)
        tl.store(scale + row, row_scale, mask=row < rows)
    else:
        GROUPS: tl.constexpr = BLOCK_N // GROUP
    for i in tl.static_range(BLOCKS):
        y = parts[i].to(tl.float32) * (weights[i].to(tl.float32) + weight_offset)[None, :] * r[:, None]
        if GROUP == 0:
            code = narrowed(divided(y, row_scale[:, None], reciprocal[:, None], FUSED), FORMAT, CAST)
        else:
            code, scales = quantized(tl.reshape(y, (BLOCK_M * GROUPS, GROUP)), FORMAT, CAST, FUSED)
            code = tl.reshape(code, (BLOCK_M, BLOCK_N))
            groups = tl.cdiv(columns, GROUP)
            group = i * GROUPS + tl.arange(0, GROUPS)
            store_block(scale, row, groups, rows, group, groups, tl.reshape(scales, (BLOCK_M, GROUPS)))
        store_block(q, row, columns, rows, i * BLOCK_N + lane, columns, code)


@triton.jit(do_not_specialize=["rows"])
def _forward_long(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    q: tl.tensor,
    scale: tl.tensor,
    summed: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    weight_stride: tl.tensor,
    eps: tl.tensor,
    weight_offset: tl.tensor,
    BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr,  # 0: all of a row
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    FUSED: tl.constexpr,
) -> None:
    eps = tl.cast(eps, tl.float32)  # Inductor passes numbers in float64
    weight_offset = tl.cast(weight_offset, tl.float32)
    row = program_index()
    if row >= rows:
        return
    lane = tl.arange(0, BLOCK_N)

    squares = tl.full((BLOCK_N,), 0.0, tl.float32)
    largest = tl.full((BLOCK_N,), 0, tl.int32)
    for start in range(0, columns, BLOCK_N):
        column = start + lane
        inside = column < columns
        s = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        s = _summed(s, residual, row * residual_stride + column, summed, row * columns + column, inside)
        squares += s * s
        if GROUP == 0:
            w = _weights(weight, column, weight_stride, weight_offset, inside)
            largest = tl.maximum(largest, magnitude(s * w))
    r = reciprocal_root(tl.sum(squares, axis=0) / columns, eps)

    # What other threads of this program stored is read again.
    tl.debug_barrier()
    if GROUP == 0:
        row_scale, reciprocal = _row_scale(tl.max(largest, axis=0), r, FORMAT)
        tl.store(scale + row, row_scale)
    blocks = tl.cdiv(columns, BLOCK_N)
    for index in range(blocks):
        start = (blocks - 1 - index) * BLOCK_N
        column = start + lane
        inside = column < columns
        if residual is not None:
            s = tl.load(summed + row * columns + column, mask=inside, other=0.0).to(tl.float32)
        else:
            s = tl.load(x + row * x_stride + column, mask=inside, other=0.0, eviction_policy="evict_first")
            s = s.to(tl.float32)
        y = s * _weights(weight, column, weight_stride, weight_offset, inside) * r
        if GROUP == 0:
            code = narrowed(divided(y, row_scale, reciprocal, FUSED), FORMAT, CAST)
        else:
            GROUPS: tl.constexpr = BLOCK_N // GROUP
            code, scales = quantized(tl.reshape(y, (GROUPS, GROUP)), FORMAT, CAST, FUSED)
            code = tl.reshape(code, (BLOCK_N,))
            group = start // GROUP + tl.arange(0, GROUPS)
            groups = tl.cdiv(columns, GROUP)
            tl.store(scale + row * groups + group, scales, mask=group < groups)
        tl.store(q + row * columns + column, code, mask=inside, eviction_policy="evict_first")


def forward(
    kernel: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    *,
    eps: float,
    weight_offset: float,
    granularity: str,
    dtype: str,
    out: tuple[Tensor, ...] | None,
) -> tuple[Tensor, ...]:
    """``(q, scale)``, and ``summed`` where there is a ``residual``, as ``kernel`` is configured.

    ``x``, ``residual``: ``(..., N)``, any strides, read where they lie if their rows are contiguous and at one stride.
    ``out``: any strides.
    """
    n = x.shape[-1]
    by_row = granularity == "row"
    forms = [
        (x.shape, getattr(torch, dtype)),
        ((*x.shape[:-1], 1 if by_row else cdiv(n, _BLOCK)), torch.float32),
        (x.shape, x.dtype),
    ][: 2 if residual is None else 3]
    outs = (None,) * len(forms) if out is None else out
    results = [memory(given, x, shape, kind) for given, (shape, kind) in zip(outs, forms, strict=True)]
    q, scale, *summed = results
    rows = math.prod(x.shape[:-1])
    if rows:
        x, x_stride = with_row_stride(x)
        residual, residual_stride = (None, 0) if residual is None else with_row_stride(residual)
        how = configuration(kernel, x.device, n)
        long = is_long(how)
        shape = {"BLOCK_N": how.elements} if long else held_shape(how, n)
        launch(
            _forward_long if long else _forward,
            grid_of(rows if long else cdiv(rows, how.rows)),
            x,
            residual,
            weight,
            as_bytes(q),
            scale,
            summed[0] if summed else None,
            rows,
            n,
            x_stride,
            residual_stride,
            weight.stride(0),
            eps,
            weight_offset,
            parameter="N",
            GROUP=0 if by_row else min(_BLOCK, shape["BLOCK_N"]),
            **shape,
            **conversion(dtype, x.device),
            **how.options,
        )
    return tuple(delivered(result, given) for result, given in zip(results, outs, strict=True))
