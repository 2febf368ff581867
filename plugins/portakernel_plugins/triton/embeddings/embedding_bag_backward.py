"""The gradients of ``embedding_bag`` in Triton.

    grad_weight[v]  = sum(grad_y[bag of i] * share[i] for i with indices[i] == v)     share: samples[i], or 1 / size
    grad_samples[i] = sum(grad_y[bag of i] * weight[indices[i]])

Sorted stably, a row's indices are one run, and its gradient is a bag of rows of ``grad_y``. A popular row's run is
long: the sorted indices are cut in pieces of one length, those that lie in one run are added up first, and then runs by
pieces. Where indices and rows are few, a row looks through all indices instead, in one launch. Everything is in float32
and rounded once; no atomics.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import with_row_stride
from portakernel.authoring.triton import cdiv, grid_of, launch, program_index
from portakernel_plugins.triton.embeddings.embedding_bag import add_rows, pack_of, tile_of
from portakernel_plugins.triton.launching.configurations import configuration

# Sorted indices of a piece. A run of n takes n / _PIECE partial sums, and as many rows as two pieces beside them.
_PIECE = 64
# So few indices, with so few columns and rows, are not sorted: that takes several launches, which an H200's host needs
# 80 us for and its GPU 28, and one launch 13 and 16 to 21. Of more the GPU's time grows.
_FEW, _FEW_READ, _FEW_IN_ALL, _LOOKED_THROUGH = 1024, 1 << 18, 1 << 27, 64


@triton.jit
def _bag_of(i, offsets, bags, search_steps):
    """The last bag to begin at or before each ``i``, in a binary search of ``search_steps``."""
    found = tl.zeros_like(i)
    behind = found + bags
    for _ in range(search_steps):
        middle = (found + behind) // 2
        before = tl.load(offsets + middle).to(tl.int64) <= i
        found = tl.where(before, middle, found)
        behind = tl.where(before, behind, middle)
    return found


@triton.jit
def _share_of_mean(bag, offsets, bags, count):
    """One over the size of each ``bag``, which holds something."""
    first = tl.load(offsets + bag).to(tl.int64)
    last = tl.load(offsets + bag + 1, mask=bag + 1 < bags, other=0).to(tl.int64)
    last = tl.where(bag + 1 == bags, count, last)
    return tl.div_rn(1.0, tl.maximum(last - first, 1).to(tl.float32))


@triton.jit(do_not_specialize=["count", "table_rows", "bags", "search_steps"])
def _plan(
    keys: tl.tensor,  # the indices, sorted
    order: tl.tensor,  # where they stood
    offsets: tl.tensor,
    samples: tl.tensor,  # None: not weighted
    bag_at: tl.tensor,  # out: the bag of each sorted index
    share_at: tl.tensor,  # out: what its gradient is multiplied by, float32. None: 1
    runs: tl.tensor,  # out: (2, V), where the run of each row of the table begins and ends, if it has one
    count: tl.tensor,
    table_rows: tl.tensor,
    bags: tl.tensor,
    search_steps: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    place = program_index() * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    i = tl.load(order + place, mask=inside, other=0)
    bag = _bag_of(i, offsets, bags, search_steps)
    tl.store(bag_at + place, bag.to(bag_at.dtype.element_ty), mask=inside)
    if share_at is not None:
        if samples is not None:
            share = tl.load(samples + i, mask=inside, other=0.0).to(tl.float32)
        else:
            share = _share_of_mean(bag, offsets, bags, count)
        tl.store(share_at + place, share, mask=inside)

    key = tl.load(keys + place, mask=inside, other=-1).to(tl.int64)
    before = tl.load(keys + place - 1, mask=inside & (place > 0), other=-1).to(tl.int64)
    behind = tl.load(keys + place + 1, mask=place + 1 < count, other=-1).to(tl.int64)
    inside &= (key >= 0) & (key < table_rows)
    kind = runs.dtype.element_ty
    tl.store(runs + key, place.to(kind), mask=inside & (key != before))
    tl.store(runs + table_rows + key, (place + 1).to(kind), mask=inside & (key != behind))


@triton.jit(do_not_specialize=["pieces", "bags", "stride_packs", "row_packs"])
def _pieces_sums(
    grad_y: tl.tensor,
    keys: tl.tensor,
    bag_at: tl.tensor,
    share_at: tl.tensor,
    partial: tl.tensor,  # out: (pieces, N) float32, for each piece that lies in one run
    pieces: tl.tensor,
    bags: tl.tensor,
    stride_packs: tl.tensor,
    row_packs: tl.tensor,
    LENGTH: tl.constexpr,
    RUNS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PACK: tl.constexpr,
) -> None:
    columns = row_packs * PACK
    blocks = tl.cdiv(columns, BLOCK_N)
    program = program_index()
    piece = program // blocks * RUNS + tl.arange(0, RUNS)
    column = (program % blocks).to(tl.int32) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_row = column < columns
    first = piece * LENGTH
    # Sorted, what is between two equal ones equals them.
    one = tl.load(keys + first, mask=piece < pieces, other=0)
    other = tl.load(keys + first + (LENGTH - 1), mask=piece < pieces, other=1)
    whole = (piece < pieces) & (one == other)
    last = tl.where(whole, first + LENGTH, first)
    total = tl.full((RUNS, BLOCK_N), 0.0, tl.float32)
    stride = tl.cast(stride_packs, tl.int64) * PACK
    total = add_rows(total, grad_y, bags, stride, bag_at, share_at, first, last, column, in_row, DEPTH)
    tl.store(partial + piece[:, None] * columns + column[None, :], total, mask=whole[:, None] & in_row[None, :])


@triton.jit(do_not_specialize=["count", "table_rows", "pieces", "bags", "stride_packs", "row_packs"])
def _grad_weight(
    grad_y: tl.tensor,
    keys: tl.tensor,
    bag_at: tl.tensor,
    share_at: tl.tensor,
    runs: tl.tensor,
    partial: tl.tensor,  # None: there is no whole piece
    grad: tl.tensor,  # out; zeros before, where programs go by places
    count: tl.tensor,
    table_rows: tl.tensor,
    pieces: tl.tensor,
    bags: tl.tensor,
    stride_packs: tl.tensor,
    row_packs: tl.tensor,
    BY_PLACE: tl.constexpr,  # programs are for sorted indices, and add up the runs that begin there; else for rows
    LENGTH: tl.constexpr,
    RUNS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PACK: tl.constexpr,
) -> None:
    columns = row_packs * PACK
    blocks = tl.cdiv(columns, BLOCK_N)
    program = program_index()
    item = program // blocks * RUNS + tl.arange(0, RUNS)
    column = (program % blocks).to(tl.int32) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_row = column < columns
    if BY_PLACE:
        row = tl.load(keys + item, mask=item < count, other=-1).to(tl.int64)
        before = tl.load(keys + item - 1, mask=(item > 0) & (item < count), other=-1).to(tl.int64)
        wanted = (row != before) & (row >= 0) & (row < table_rows)
        first = item
        last = tl.load(runs + table_rows + row, mask=wanted, other=0).to(tl.int64)
        last = tl.where(wanted, last, first)
    else:
        row = item
        wanted = row < table_rows
        first = tl.load(runs + row, mask=wanted, other=0).to(tl.int64)
        last = tl.load(runs + table_rows + row, mask=wanted, other=0).to(tl.int64)

    total = tl.full((RUNS, BLOCK_N), 0.0, tl.float32)
    stride = tl.cast(stride_packs, tl.int64) * PACK
    if partial is None:
        total = add_rows(total, grad_y, bags, stride, bag_at, share_at, first, last, column, in_row, DEPTH)
    else:
        # What comes before a run's whole pieces, their sums, and what comes behind; without any, all comes before.
        from_piece = (first + (LENGTH - 1)) // LENGTH
        to_piece = tl.maximum(last // LENGTH, from_piece)
        some = to_piece > from_piece
        head_last = tl.where(some, from_piece * LENGTH, last)
        tail_first = tl.where(some, to_piece * LENGTH, last)
        total = add_rows(total, grad_y, bags, stride, bag_at, share_at, first, head_last, column, in_row, DEPTH)
        total = add_rows(total, partial, pieces, columns, None, None, from_piece, to_piece, column, in_row, DEPTH)
        total = add_rows(total, grad_y, bags, stride, bag_at, share_at, tail_first, last, column, in_row, DEPTH)
    mask = wanted[:, None] & in_row[None, :]
    tl.store(grad + row[:, None] * columns + column[None, :], total.to(grad.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["count", "bags", "search_steps", "stride_packs", "row_packs"])
def _grad_weight_of_few(
    grad_y: tl.tensor,
    indices: tl.tensor,
    offsets: tl.tensor,
    samples: tl.tensor,  # None: not weighted
    grad: tl.tensor,  # out
    count: tl.tensor,
    bags: tl.tensor,
    search_steps: tl.tensor,
    stride_packs: tl.tensor,
    row_packs: tl.tensor,
    MEAN: tl.constexpr,
    ITEMS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PACK: tl.constexpr,
) -> None:
    columns = row_packs * PACK
    blocks = tl.cdiv(columns, BLOCK_N)
    program = program_index()
    row = program // blocks
    column = (program % blocks).to(tl.int32) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_row = column < columns
    stride = tl.cast(stride_packs, tl.int64) * PACK
    total = tl.full((BLOCK_N,), 0.0, tl.float32)
    for start in range(0, count, ITEMS):
        i = start + tl.arange(0, ITEMS)
        mine = tl.load(indices + i, mask=i < count, other=-1).to(tl.int64) == row
        if tl.max(mine.to(tl.int32), axis=0) > 0:
            bag = _bag_of(i, offsets, bags, search_steps)
            source = grad_y + bag.to(tl.int64)[:, None] * stride + column[None, :]
            block = tl.load(source, mask=mine[:, None] & in_row[None, :], other=0.0).to(tl.float32)
            if samples is not None:
                block *= tl.load(samples + i, mask=mine, other=0.0).to(tl.float32)[:, None]
            if MEAN:
                block *= _share_of_mean(bag, offsets, bags, count)[:, None]
            total += tl.sum(block, axis=0)
    tl.store(grad + row * columns + column, total.to(grad.dtype.element_ty), mask=in_row)


@triton.jit(
    do_not_specialize=["count", "table_rows", "bags", "search_steps", "stride_packs", "table_packs", "row_packs"]
)
def _grad_samples(
    grad_y: tl.tensor,
    weight: tl.tensor,
    indices: tl.tensor,
    offsets: tl.tensor,
    grad: tl.tensor,
    count: tl.tensor,
    table_rows: tl.tensor,
    bags: tl.tensor,
    search_steps: tl.tensor,
    stride_packs: tl.tensor,
    table_packs: tl.tensor,
    row_packs: tl.tensor,
    ITEMS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PACK: tl.constexpr,
) -> None:
    columns = row_packs * PACK
    i = program_index() * ITEMS + tl.arange(0, ITEMS)
    row = tl.load(indices + i, mask=i < count, other=-1).to(tl.int64)
    inside = (row >= 0) & (row < table_rows)
    g = grad_y + _bag_of(i, offsets, bags, search_steps)[:, None] * (tl.cast(stride_packs, tl.int64) * PACK)
    w = weight + row[:, None] * (tl.cast(table_packs, tl.int64) * PACK)
    total = tl.full((ITEMS, BLOCK_N), 0.0, tl.float32)
    for start in range(0, columns, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)[None, :]
        mask = inside[:, None] & (column < columns)
        g_block = tl.load(g + column, mask=mask, other=0.0).to(tl.float32)
        total += g_block * tl.load(w + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(grad + i, tl.sum(total, axis=1).to(grad.dtype.element_ty), mask=i < count)


def backward(
    grad_y: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None = None,
    *,
    mode: str,
    needs: tuple[bool, bool, bool, bool],
) -> tuple[Tensor | None, None, None, Tensor | None]:
    """Gradients for ``weight``, dense, and for ``per_sample_weights``.

    Arguments as in forward; ``grad_y``: any strides.

    How the gradient of a row is grouped depends on where its run begins among the sorted indices. Equal calls on one
    device give equal bits.
    """
    indices, offsets = indices.contiguous(), offsets.contiguous()
    grad_y, stride = with_row_stride(grad_y)
    samples = None if per_sample_weights is None else per_sample_weights.contiguous()
    grad_weight = grad_samples = None
    if needs[0]:
        grad_weight = _weight_gradient(grad_y, stride, weight, indices, offsets, samples, mode == "mean")
    if needs[3] and samples is not None:
        grad_samples = _samples_gradient(grad_y, stride, weight, indices, offsets, samples)
    return grad_weight, None, None, grad_samples


def _weight_gradient(
    grad_y: Tensor,
    stride: int,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    samples: Tensor | None,
    mean: bool,
) -> Tensor:
    (v, n), count, bags, device = weight.shape, indices.numel(), offsets.numel(), weight.device
    if not (count and n):
        return torch.zeros(v, n, dtype=weight.dtype, device=device)
    if count <= _FEW and count * n <= _FEW_READ and count * n * v <= _FEW_IN_ALL:
        return _weight_gradient_of_few(grad_y, stride, weight, indices, offsets, samples, mean)
    # 32 bits where they reach: half the passes of a radix sort
    keys, order = torch.sort(indices.int() if v < 1 << 31 else indices, stable=True)
    narrow = torch.int32 if max(count, bags) < 1 << 31 else torch.int64
    bag_at = torch.empty(count, dtype=narrow, device=device)
    share_at = torch.empty(count, dtype=torch.float32, device=device) if mean or samples is not None else None
    # A large table's gradient is mostly zeros: these are written first, and then the runs that there are.
    by_place = count < v
    runs = (torch.empty if by_place else torch.zeros)(2, v, dtype=narrow, device=device)
    how = configuration("embedding_bag.plan", device, count)
    launch(
        _plan,
        grid_of(cdiv(count, how.elements)),
        keys,
        order,
        offsets,
        samples,
        bag_at,
        share_at,
        runs,
        count,
        v,
        bags,
        (bags - 1).bit_length(),
        BLOCK=how.elements,
        **how.options,
    )

    how, pack = configuration("embedding_bag.backward", device, n), pack_of(n, stride)
    width, depth, block = tile_of(how, grad_y)
    blocks, pieces, partial = cdiv(n, block), count // _PIECE, None
    shape = {"LENGTH": _PIECE, "BLOCK_N": block, "PACK": pack, **how.options}
    if pieces:
        partial = torch.empty(pieces, n, dtype=torch.float32, device=device)
        launch(
            _pieces_sums,
            grid_of(cdiv(pieces, width) * blocks),
            grad_y,
            keys,
            bag_at,
            share_at,
            partial,
            pieces,
            bags,
            stride // pack,
            n // pack,
            RUNS=width,
            DEPTH=depth,
            parameter="N",
            **shape,
        )
    grad = (torch.zeros if by_place else torch.empty)(v, n, dtype=weight.dtype, device=device)
    # Where runs are short, rather more of them at once than more of each.
    shallow = min(depth, 1 << max(count // v, 1).bit_length())
    width *= depth // shallow
    launch(
        _grad_weight,
        grid_of(cdiv(count if by_place else v, width) * blocks),
        grad_y,
        keys,
        bag_at,
        share_at,
        runs,
        partial,
        grad,
        count,
        v,
        pieces,
        bags,
        stride // pack,
        n // pack,
        BY_PLACE=by_place,
        RUNS=width,
        DEPTH=shallow,
        parameter="N",
        **shape,
    )
    return grad


def _weight_gradient_of_few(
    grad_y: Tensor,
    stride: int,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    samples: Tensor | None,
    mean: bool,
) -> Tensor:
    (v, n), bags = weight.shape, offsets.numel()
    grad = torch.empty(v, n, dtype=weight.dtype, device=weight.device)
    how, pack = configuration("embedding_bag.backward_of_few", weight.device, n), pack_of(n, stride)
    block = min(how.columns, how.elements // _LOOKED_THROUGH)
    launch(
        _grad_weight_of_few,
        grid_of(v * cdiv(n, block)),
        grad_y,
        indices,
        offsets,
        samples,
        grad,
        indices.numel(),
        bags,
        (bags - 1).bit_length(),
        stride // pack,
        n // pack,
        MEAN=mean,
        ITEMS=_LOOKED_THROUGH,
        BLOCK_N=block,
        PACK=pack,
        parameter="N",
        **how.options,
    )
    return grad


def _samples_gradient(
    grad_y: Tensor, stride: int, weight: Tensor, indices: Tensor, offsets: Tensor, samples: Tensor
) -> Tensor:
    grad, n = torch.empty_like(samples), weight.shape[1]
    if samples.numel():
        how = configuration("embedding_bag.samples", weight.device, n)
        block = min(how.columns, how.elements)
        pack = pack_of(n, stride | weight.stride(0))
        launch(
            _grad_samples,
            grid_of(cdiv(samples.numel(), how.elements // block)),
            grad_y,
            weight,
            indices,
            offsets,
            grad,
            samples.numel(),
            weight.shape[0],
            offsets.numel(),
            (offsets.numel() - 1).bit_length(),
            stride // pack,
            weight.stride(0) // pack,
            n // pack,
            ITEMS=how.elements // block,
            BLOCK_N=block,
            PACK=pack,
            parameter="N",
            **how.options,
        )
    return grad
