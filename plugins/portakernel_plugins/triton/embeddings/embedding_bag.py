"""``embedding_bag`` in Triton.

    y[b] = sum(weight[indices[i]] * samples[i] for i in bag b), divided by the bag's size for mean

A bag is a run of ``indices``. Its rows are added in their order, in float32, and the sum is rounded once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring import ArgumentValueError
from portakernel.authoring.tensors import delivered
from portakernel.authoring.triton import cdiv, grid_of, launch, processor, program_index
from portakernel_plugins.triton.launching.configurations import Configuration, configuration

# The widest access of a thread, in bytes.
_ACCESS = 16

# Rows of a run are to be added up within a thread. Of two dimensions that are not contiguous in memory, Triton deals
# the later one out to threads first; before 3.7, the earlier one.
_LATER_FIRST = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 7)
_DEPTH_AXIS: tl.constexpr = tl.constexpr(0 if _LATER_FIRST else 1)
_RUN_AXIS: tl.constexpr = tl.constexpr(1 if _LATER_FIRST else 0)


@triton.jit
def add_rows(
    total,  # (RUNS, BLOCK_N) float32
    table,
    table_rows,
    table_stride,
    places,  # which row stands where. None: the row of the same number
    samples,  # what a row is multiplied by. None: 1
    first,  # (RUNS,) int64
    last,
    column,
    in_row,
    DEPTH: tl.constexpr,  # rows of each run that are on their way at once
):
    """``total``, and to each of its rows the rows of ``table`` from ``first`` to before ``last``."""
    # 32 bits within a run: registers are what bounds how many rows are on their way
    size = tl.expand_dims((last - first).to(tl.int32), _DEPTH_AXIS)
    begin = tl.expand_dims(first, _DEPTH_AXIS)
    step = tl.expand_dims(tl.arange(0, DEPTH), _RUN_AXIS)
    row = begin + step
    if places is not None:
        row = tl.load(places + begin + step, mask=step < size, other=0)
    for start in range(0, tl.max(last - first, axis=0).to(tl.int32), DEPTH):
        # Numbers of rows that there are none of add nothing, and read nothing elsewhere.
        inside = (start + step < size) & (row >= 0) & (row < table_rows)
        source = table + (row.to(tl.int64) * table_stride)[:, :, None] + column[None, None, :]
        if places is not None:  # read while these rows are on their way
            following = start + DEPTH + step
            row = tl.load(places + begin + following, mask=following < size, other=0)
        else:
            row += DEPTH
        block = tl.load(source, mask=inside[:, :, None] & in_row[None, None, :], other=0.0).to(tl.float32)
        if samples is not None:
            sample = tl.load(samples + begin + (start + step), mask=inside, other=0.0)
            block *= sample.to(tl.float32)[:, :, None]
        total += tl.sum(block, axis=_DEPTH_AXIS)
    return total


@triton.jit(do_not_specialize=["indices_count", "table_rows", "stride_packs", "bags", "row_packs"])
def _forward(
    weight: tl.tensor,
    indices: tl.tensor,
    offsets: tl.tensor,
    samples: tl.tensor,  # None: not weighted
    y: tl.tensor,
    indices_count: tl.tensor,
    table_rows: tl.tensor,
    stride_packs: tl.tensor,
    bags: tl.tensor,
    row_packs: tl.tensor,
    MEAN: tl.constexpr,
    BAGS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PACK: tl.constexpr,  # divides rows and what lies between them, for wide accesses
) -> None:
    columns = row_packs * PACK
    blocks = tl.cdiv(columns, BLOCK_N)
    program = program_index()
    bag = program // blocks * BAGS + tl.arange(0, BAGS)
    column = (program % blocks).to(tl.int32) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_row = column < columns
    first = tl.load(offsets + bag, mask=bag < bags, other=0).to(tl.int64)
    last = tl.load(offsets + bag + 1, mask=bag + 1 < bags, other=0).to(tl.int64)
    last = tl.where(bag + 1 == bags, indices_count, last)

    total = tl.full((BAGS, BLOCK_N), 0.0, tl.float32)
    stride = tl.cast(stride_packs, tl.int64) * PACK
    total = add_rows(total, weight, table_rows, stride, indices, samples, first, last, column, in_row, DEPTH)
    if MEAN:
        total = total / tl.maximum(last - first, 1).to(tl.float32)[:, None]
    mask = (bag < bags)[:, None] & in_row[None, :]
    tl.store(y + bag[:, None] * columns + column[None, :], total.to(y.dtype.element_ty), mask=mask)


def pack_of(columns: int, stride: int) -> int:
    """The largest power of two, up to 16, that divides rows and what lies between them."""
    either = columns | stride | 16
    return either & -either


def tile_of(how: Configuration, table: Tensor) -> tuple[int, int, int]:
    """Runs, rows of each at once, and columns of a program: a thread reads as many rows as ``how.elements`` admits.

    A step over all threads is one access of each; it covers as much of a row as there is, and then several runs.
    """
    step = how.warps * processor(table.device).warp_size * _ACCESS // table.element_size()
    block = min(how.columns, step)
    return step // block, max(1, how.elements // step), block


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None = None,
    *,
    mode: str,
    out: Tensor | None = None,
) -> Tensor:
    """The sum or mean of each bag's rows, rounded once to the dtype of ``weight``.

    ``weight``: ``(V, N)`` with contiguous rows at any stride; float32, float16 or bfloat16. ``indices``: ``(I,)``,
    ``offsets``: ``(B,)``, int64 or int32; ``per_sample_weights``: ``(I,)`` of the dtype of ``weight``; any strides.
    ``out``: ``(B, N)``, any strides.
    """
    if per_sample_weights is not None:
        if mode != "sum":
            raise ArgumentValueError(f"embedding_bag: per_sample_weights need mode='sum'; this is {mode!r}")
        per_sample_weights = per_sample_weights.contiguous()
    bags, n = offsets.numel(), weight.shape[1]
    if out is not None and out.is_contiguous():
        y = out
    else:
        y = torch.empty(bags, n, dtype=weight.dtype, device=weight.device)
    if bags and n:
        how = configuration("embedding_bag.forward", weight.device, n)
        runs, depth, block = tile_of(how, weight)
        stride = weight.stride(0)
        pack = pack_of(n, stride)
        launch(
            _forward,
            grid_of(cdiv(bags, runs) * cdiv(n, block)),
            weight,
            indices.contiguous(),
            offsets.contiguous(),
            per_sample_weights,
            y,
            indices.numel(),
            weight.shape[0],
            stride // pack,
            bags,
            n // pack,
            MEAN=mode == "mean",
            BAGS=runs,
            DEPTH=depth,
            BLOCK_N=block,
            PACK=pack,
            parameter="N",
            **how.options,
        )
    return delivered(y, out)
