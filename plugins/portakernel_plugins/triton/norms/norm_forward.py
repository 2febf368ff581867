"""Normalised rows: what ``rms_norm``, ``layer_norm`` and both after an addition have in common, in Triton.

Of each row, with ``s = x + residual`` rounded to its dtype, or ``s = x`` where nothing is added:

    mean = mean(s), or 0 where the norm does not centre
    rstd = 1 / sqrt(mean((s - mean)**2) + eps)
    y    = activation((s - mean) * rstd * (weight + weight_offset) + bias)

Everything is computed in float32 and rounded once, when it is stored. A row stays in registers, in one block or
several, while the configuration says so: several, because a power of two may be much more than a row has. A longer one
is read twice, block by block: for its statistics, where each lane keeps those of its own columns, and, from the end,
because its end is what caches still hold, for its results.
"""
# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
# What branches of compile-time values bind, Triton sees bound. Tuples grow by concatenation, the one way it knows.
# mypy: disable-error-code="assignment, misc, unreachable, var-annotated"

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import with_row_stride
from portakernel.authoring.triton import Held, cdiv, grid_of, in_graphs, per_device, prepared, processor, program_index
from portakernel_plugins.triton.gates.activations import activated
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.launching.row_blocks import (
    held_shape,
    in_units,
    is_long,
    load_blocks,
    load_parameters,
    looped_shape,
    parameter_of,
    store_block,
    sum_blocks,
    unit_of,
    unwidened,
)

# Few rows leave registers to spare, and multiprocessors without work. They are as many elements of a multiprocessor at
# most, four long rows of it; short ones, several of which are one warp's, are fewer elements.
_FEW_ELEMENTS, _FEW_LONG, _FEW_SHORT_ELEMENTS = 14336, 4, 2048
# Blocks of a row that is read twice whose parameters wait in registers.
_MOST_EARLY = 4
# Bytes that a thread reads at once.
_ACCESS = 16


@triton.jit
def reciprocal_root(mean_square, eps):
    """``1 / sqrt(mean_square + eps)``."""
    # Correctly rounded root and quotient: one per row costs nothing, and the vendors' approximations differ.
    return tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps))


# ``rows`` is not specialised: M being 1, or divisible by 16, must neither recompile the kernel nor change its layout.
@triton.jit(do_not_specialize=["rows"])
def _forward(
    x: tl.tensor,
    residual: tl.tensor,  # None: nothing is added
    weight: tl.tensor,
    bias: tl.tensor,  # None: nothing is added
    y: tl.tensor,
    summed: tl.tensor,  # None where nothing is added
    mean: tl.tensor,  # None: not wanted
    rstd: tl.tensor,  # None: not wanted
    rows: tl.tensor,
    columns: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    weight_stride: tl.tensor,
    bias_stride: tl.tensor,
    y_stride: tl.tensor,
    summed_stride: tl.tensor,
    eps: tl.tensor,
    weight_offset: tl.tensor,  # None: nothing is added
    CENTRED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,  # of BLOCK_N columns, in a row
    UNIT: tl.constexpr,  # divides the length of rows, and their strides
    EARLY: tl.constexpr,  # weights and biases are read before anything waits for sums
    NARROW: tl.constexpr = False,  # the compiler is kept from holding them wide
) -> None:
    columns, x_stride, y_stride = in_units(columns, UNIT), in_units(x_stride, UNIT), in_units(y_stride, UNIT)
    if residual is not None:
        residual_stride, summed_stride = in_units(residual_stride, UNIT), in_units(summed_stride, UNIT)
    eps = tl.cast(eps, tl.float32)  # Inductor passes numbers in float64
    if weight_offset is not None:
        weight_offset = tl.cast(weight_offset, tl.float32)
    row = program_index() * BLOCK_M + tl.arange(0, BLOCK_M)
    lane = tl.arange(0, BLOCK_N)

    # All is read before anything is written: ``y`` may be ``x``, and ``summed`` ``residual``. What waits is as narrow
    # as it is in memory.
    parts = load_blocks(x, row, x_stride, rows, lane, columns, BLOCK_N, BLOCKS)
    if residual is not None:
        added = load_blocks(residual, row, residual_stride, rows, lane, columns, BLOCK_N, BLOCKS)
        parts = sum_blocks(parts, added, summed, BLOCKS)
    weights = ()
    biases = ()
    if EARLY:
        weights = load_parameters(weight, weight_stride, lane, columns, BLOCK_N, BLOCKS, UNIT)
        biases = load_parameters(bias, bias_stride, lane, columns, BLOCK_N, BLOCKS, UNIT)
    if residual is not None:
        for i in tl.static_range(BLOCKS):
            store_block(summed, row, summed_stride, rows, i * BLOCK_N + lane, columns, parts[i])

    if CENTRED:
        total = parts[0].to(tl.float32)
        for i in tl.static_range(1, BLOCKS):
            total += parts[i].to(tl.float32)
        # rounded as IEEE says, so that a row of equal numbers has their mean, and no deviation
        m = tl.div_rn(tl.sum(total, axis=1), 1.0 * columns)
        if NARROW:
            parts = unwidened(parts, BLOCKS)
    squares = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    for i in tl.static_range(BLOCKS):
        s = parts[i].to(tl.float32)
        if CENTRED:
            s = tl.where((i * BLOCK_N + lane < columns)[None, :], s - m[:, None], 0.0)
        squares += s * s
    r = reciprocal_root(tl.sum(squares, axis=1) / columns, eps)
    if NARROW:
        parts = unwidened(parts, BLOCKS)

    for i in tl.static_range(BLOCKS):
        column = i * BLOCK_N + lane
        s = parts[i].to(tl.float32)
        if CENTRED:
            s = s - m[:, None]
        w = parameter_of(EARLY, weights, i, weight, weight_stride, column, columns, UNIT)
        if weight_offset is not None:
            w = w + weight_offset
        z = s * r[:, None] * w[None, :]
        if bias is not None:
            z += parameter_of(EARLY, biases, i, bias, bias_stride, column, columns, UNIT)[None, :]
        store_block(y, row, y_stride, rows, column, columns, activated(z, ACTIVATION))
    if rstd is not None:
        tl.store(rstd + row, r, mask=row < rows)
    if mean is not None:
        tl.store(mean + row, m, mask=row < rows)


in_graphs(_forward, NARROW=False)  # which is assembly


@triton.jit
def _observed(
    x, residual, summed, row, column, columns, x_stride, residual_stride, summed_stride, lane_mean, lane_squares, seen,
    CENTRED: tl.constexpr,
):  # fmt: skip
    """Each lane's mean and squares with its columns of this block, the ``seen``-th; where there is a sum, stores it."""
    inside = column < columns
    if residual is None:
        s = tl.load(x + row * x_stride + column, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    else:
        s = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        s += tl.load(residual + row * residual_stride + column, mask=inside, other=0.0).to(tl.float32)
        rounded = s.to(summed.dtype.element_ty)
        tl.store(summed + row * summed_stride + column, rounded, mask=inside, eviction_policy="evict_last")
        s = rounded.to(tl.float32)
    if CENTRED:  # Welford's updates, of all lanes that have a column here
        step = tl.where(inside, s - lane_mean, 0.0)
        lane_mean += step / seen
        lane_squares += step * (s - lane_mean)
    else:
        lane_squares += s * s
    return lane_mean, lane_squares


@triton.jit
def _finish(
    s_row, weights, biases, i: tl.constexpr, weight, bias, y_row, column, columns, weight_stride, bias_stride,
    weight_offset, m, r, CENTRED: tl.constexpr, ACTIVATION: tl.constexpr, UNIT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Stores ``y`` of a block of columns, the ``i``-th of ``weights`` and ``biases`` where these are read already."""
    inside = column < columns
    s = tl.load(s_row + column, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    w = parameter_of(EARLY, weights, i, weight, weight_stride, column, columns, UNIT)
    if weight_offset is not None:
        w = w + weight_offset
    if CENTRED:
        s = s - m
    z = s * r * w
    if bias is not None:
        z += parameter_of(EARLY, biases, i, bias, bias_stride, column, columns, UNIT)
    y_block = activated(z, ACTIVATION).to(y_row.dtype.element_ty)
    tl.store(y_row + column, y_block, mask=inside, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["rows"])
def _forward_long(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    summed: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    weight_stride: tl.tensor,
    bias_stride: tl.tensor,
    y_stride: tl.tensor,
    summed_stride: tl.tensor,
    eps: tl.tensor,
    weight_offset: tl.tensor,
    CENTRED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,  # of BLOCK_N columns, in a row, whose reads overlap; 0: so many that they are a loop
    UNIT: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    columns, x_stride, y_stride = in_units(columns, UNIT), in_units(x_stride, UNIT), in_units(y_stride, UNIT)
    if residual is not None:
        residual_stride, summed_stride = in_units(residual_stride, UNIT), in_units(summed_stride, UNIT)
    eps = tl.cast(eps, tl.float32)  # Inductor passes numbers in float64
    if weight_offset is not None:
        weight_offset = tl.cast(weight_offset, tl.float32)
    row = program_index()
    if row >= rows:
        return
    lane = tl.arange(0, BLOCK_N)
    weights = ()
    biases = ()
    if EARLY:
        weights = load_parameters(weight, weight_stride, lane, columns, BLOCK_N, BLOCKS, UNIT)
        biases = load_parameters(bias, bias_stride, lane, columns, BLOCK_N, BLOCKS, UNIT)

    lane_mean = tl.full((BLOCK_N,), 0.0, tl.float32)
    lane_squares = tl.full((BLOCK_N,), 0.0, tl.float32)
    if BLOCKS > 0:
        for i in tl.static_range(BLOCKS):
            lane_mean, lane_squares = _observed(
                x, residual, summed, row, i * BLOCK_N + lane, columns, x_stride, residual_stride, summed_stride,
                lane_mean, lane_squares, i + 1, CENTRED,
            )  # fmt: skip
    else:
        for start in range(0, columns, BLOCK_N):
            lane_mean, lane_squares = _observed(
                x, residual, summed, row, start + lane, columns, x_stride, residual_stride, summed_stride,
                lane_mean, lane_squares, start // BLOCK_N + 1, CENTRED,
            )  # fmt: skip

    m = 0.0
    if CENTRED:  # the lanes' statistics merged (Chan, Golub & LeVeque 1979)
        count = ((columns - lane + BLOCK_N - 1) // BLOCK_N).to(tl.float32)
        m = tl.div_rn(tl.sum(lane_mean * count, axis=0), 1.0 * columns)
        lane_squares += count * (lane_mean - m) * (lane_mean - m)
    r = reciprocal_root(tl.sum(lane_squares, axis=0) / columns, eps)

    # What other threads of this program stored is read again.
    tl.debug_barrier()
    s_row = x + row * x_stride
    if residual is not None:
        s_row = summed + row * summed_stride
    y_row = y + row * y_stride
    if BLOCKS > 0:
        for i in tl.static_range(BLOCKS):
            _finish(
                s_row, weights, biases, BLOCKS - 1 - i, weight, bias, y_row, (BLOCKS - 1 - i) * BLOCK_N + lane, columns,
                weight_stride, bias_stride, weight_offset, m, r, CENTRED, ACTIVATION, UNIT, EARLY,
            )  # fmt: skip
    else:
        blocks = tl.cdiv(columns, BLOCK_N)
        for i in range(blocks):
            _finish(
                s_row, weights, biases, 0, weight, bias, y_row, (blocks - 1 - i) * BLOCK_N + lane, columns,
                weight_stride, bias_stride, weight_offset, m, r, CENTRED, ACTIVATION, UNIT, EARLY,
            )  # fmt: skip

    if rstd is not None:
        tl.store(rstd + row, r)
    if mean is not None:
        tl.store(mean + row, m)


def forward(
    kernel: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    y: Tensor,
    summed: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    *,
    y_stride: int,
    summed_stride: int | None = None,
    eps: float,
    weight_offset: float | None = None,
    centred: bool,
    activation: str = "none",
) -> None:
    """Fill ``y``, and ``summed``, ``mean``, ``rstd`` where given, as ``kernel`` is configured.

    ``x``, ``residual``: ``(..., N)``, any strides, read where they lie if their rows are contiguous and at one stride.
    """
    n = x.shape[-1]
    rows = x.numel() // n
    if not rows:
        return
    x, x_stride = with_row_stride(x)
    residual_stride = None
    if residual is not None:
        residual, residual_stride = with_row_stride(residual)
    few, of_few, of_many = _plan(kernel, x.device, n, x.element_size(), centred, activation)
    # a graph's rows, which are unknown, are many
    held, rows_together = of_few if type(rows) is int and rows <= few else of_many
    held.launch(
        grid_of(cdiv(rows, rows_together)),
        x,
        residual,
        weight,
        bias,
        y,
        summed,
        mean,
        rstd,
        rows,
        n,
        x_stride,
        residual_stride,
        weight.stride(0),
        None if bias is None else bias.stride(0),
        y_stride,
        summed_stride,
        eps,
        weight_offset,
    )


@per_device
def _plan(
    kernel: str, device: torch.device, n: int, element_bytes: int, centred: bool, activation: str
) -> tuple[int, tuple[Held, int], tuple[Held, int]]:
    """Up to how many rows of ``n`` are few, and what ``kernel`` launches for few and for many, with a program's rows.

    The bits of a row are the same: of few the parameters are read early, and a program may be one warp of many.
    """
    here, unit = processor(device), unit_of(n)
    how = configuration(kernel, device, n, element_bytes, unit)
    meta = {"CENTRED": centred, "ACTIVATION": activation, "UNIT": unit, **how.options}
    few = min(here.multiprocessors * _FEW_LONG, here.multiprocessors * _FEW_ELEMENTS // n)
    if is_long(how):
        meta |= looped_shape(how, n)
        many = prepared(_forward_long, {**meta, "EARLY": False}, "N"), 1
        if not 0 < meta["BLOCKS"] <= _MOST_EARLY:
            return 0, many, many
        return few, (prepared(_forward_long, {**meta, "EARLY": True}, "N"), 1), many
    # two sums leave no registers for parameters that are read early, on which depends how many rows are on their way
    many = prepared(_forward, {**meta, **held_shape(how, n), "EARLY": not centred}, "N"), how.rows
    vector = _ACCESS // element_bytes
    lanes = here.warp_size * vector
    if how.warps == 1 or (how.columns <= lanes and unit >= vector):  # each row is one warp's
        how = replace(how, rows=max(1, min(how.rows, lanes // how.columns)))
        meta["num_warps"] = 1
        few = here.multiprocessors * _FEW_SHORT_ELEMENTS // how.columns
    elif not centred:
        return 0, many, many
    return few, (prepared(_forward, {**meta, **held_shape(how, n), "EARLY": True}, "N"), how.rows), many
