"""``moe_sort`` in Triton: a counting sort in two launches, or in one of few assignments.

Each program has a chunk of the assignments. The first launch counts how many of a chunk each expert has, into a table;
in the second, a program adds up the table: where an expert's places begin follows from all chunks' counts, and where
those of this chunk begin from the earlier chunks'. It then sorts pieces of its chunk by expert and number, whose
places are consecutive for each expert. What nobody has a place for is shared by all programs.

Nothing is added atomically in an order that could be told, no program waits for another, and there is one result:
equal calls give equal bits. Whatever the experts are, as much is launched: a captured graph sorts others.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel.authoring.tensors import delivered
from portakernel.authoring.triton import Held, cdiv, per_device, prepared
from portakernel_plugins.triton.launching.configurations import configuration

# A program has a number for each expert in its registers.
_MOST_EXPERTS = 1024
# Assignments, and their places, are numbered in 32 bits.
_MOST_ASSIGNMENTS = 1 << 30


@triton.jit
def _experts_of(experts, i, count, num_experts):
    """The experts of assignments ``i``; ``num_experts`` of those that are left out, and where there is none."""
    found = tl.load(experts + i, mask=i < count, other=-1).to(tl.int64)
    return tl.where((found >= 0) & (found < num_experts), found, num_experts).to(tl.int32)


@triton.jit
def _fill(into, begin, end, value, BLOCK: tl.constexpr):
    """Fills ``into[begin:end]``, which all programs share."""
    for first in range(begin + tl.program_id(0) * BLOCK, end, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(into + at, tl.zeros_like(at) + value, mask=at < end)


@triton.jit
def _sorted_piece(experts, first, count, num_experts, BLOCK: tl.constexpr, EXPERTS: tl.constexpr):
    """How many of ``BLOCK`` assignments each expert has, and their keys in order: expert · BLOCK + number."""
    lane = tl.arange(0, BLOCK)
    found = _experts_of(experts, first + lane, count, num_experts)
    return tl.histogram(found, EXPERTS, mask=found < num_experts), tl.sort(found * BLOCK + lane)


@triton.jit(do_not_specialize=["count", "num_experts", "rounds"])
def _count(
    experts,  # (count,)
    table,  # (chunks, EXPERTS) int32
    count,
    num_experts,
    rounds,  # pieces of a chunk
    BLOCK: tl.constexpr,
    EXPERTS: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    if OVERLAP:
        gdc_launch_dependents()
    chunk = tl.program_id(0)
    sizes = tl.zeros((EXPERTS,), tl.int32)
    for piece in range(chunk * rounds, (chunk + 1) * rounds):
        found = _experts_of(experts, piece * BLOCK + tl.arange(0, BLOCK), count, num_experts)
        sizes += tl.histogram(found, EXPERTS, mask=found < num_experts)
    tl.store(table + chunk * EXPERTS + tl.arange(0, EXPERTS), sizes)


@triton.jit
def _place_piece(sizes, keys, at, order, inverse, first, count, num_experts, BLOCK: tl.constexpr):
    """Writes the places of a sorted piece, in which each expert's go from ``at`` on."""
    expert, i = keys // BLOCK, first + keys % BLOCK
    is_placed = expert < num_experts
    base = at - (tl.cumsum(sizes, axis=0) - sizes)
    place = tl.gather(base, tl.minimum(expert, sizes.shape[0] - 1), axis=0) + tl.arange(0, BLOCK)
    tl.store(order + place, i, mask=is_placed)
    tl.store(inverse + i, tl.where(is_placed, place, -1), mask=i < count)


@triton.jit(do_not_specialize=["count", "num_experts", "capacity", "block", "rounds"])
def _sort(
    experts,  # (count,)
    table,  # (chunks, EXPERTS). None: the first program sorts all, in one piece
    order,  # (capacity,)
    offsets,  # (num_experts + 1,)
    inverse,  # (count,)
    block_experts,  # (capacity / block,), and total (1,). None: they are not padded
    total,
    count,
    num_experts,
    capacity,
    block,
    rounds,
    BLOCK: tl.constexpr,
    EXPERTS: tl.constexpr,  # a power of two from num_experts on
    ROWS: tl.constexpr,  # of the table at once
    WHOLE: tl.constexpr,  # a chunk is one piece
    OVERLAP: tl.constexpr,  # programs begin before the table is there
) -> None:
    chunk, chunks = tl.program_id(0), tl.num_programs(0)
    lane = tl.arange(0, EXPERTS)
    sizes, keys = tl.zeros((EXPERTS,), tl.int32), tl.zeros((BLOCK,), tl.int32)
    if WHOLE:  # which needs no table
        first_piece = 0 if table is None else chunk * BLOCK
        sizes, keys = _sorted_piece(experts, first_piece, count, num_experts, BLOCK, EXPERTS)
    earlier = tl.zeros((EXPERTS,), tl.int32)
    if table is None:
        everything = sizes
    else:
        if OVERLAP:
            # until here nothing was read but experts, which were there before the counting began, and nothing written
            gdc_wait()
        everything = tl.zeros((EXPERTS,), tl.int32)
        for first in range(0, chunks, ROWS):
            row = (first + tl.arange(0, ROWS))[:, None]
            part = tl.load(table + row * EXPERTS + lane[None, :], mask=row < chunks, other=0)
            everything += tl.sum(part, axis=0)
            earlier += tl.sum(tl.where(row < chunk, part, 0), axis=0)
    padded = everything if block_experts is None else tl.cdiv(everything, block) * block
    end = tl.cumsum(padded, axis=0)
    begin = end - padded
    filled = tl.sum(padded)

    if table is None:
        if chunk == 0:
            _place_piece(sizes, keys, begin, order, inverse, 0, count, num_experts, BLOCK)
    elif WHOLE:
        _place_piece(sizes, keys, begin + earlier, order, inverse, chunk * BLOCK, count, num_experts, BLOCK)
    else:
        at = begin + earlier
        for piece in range(chunk * rounds, (chunk + 1) * rounds):
            sizes, keys = _sorted_piece(experts, piece * BLOCK, count, num_experts, BLOCK, EXPERTS)
            _place_piece(sizes, keys, at, order, inverse, piece * BLOCK, count, num_experts, BLOCK)
            at += sizes

    if chunk == 0:
        tl.store(offsets + lane, begin, mask=lane < num_experts)
        tl.store(offsets + num_experts, filled)
    _fill(order, filled, capacity, count, BLOCK)
    if block_experts is not None:
        for number in range(chunk, tl.max(padded - everything), chunks):
            at = begin + everything + number
            tl.store(order + at, tl.zeros_like(at) + count, mask=at < end)
        blocks = padded // block
        for number in range(chunk, tl.max(blocks), chunks):
            tl.store(block_experts + begin // block + number, lane, mask=number < blocks)
        _fill(block_experts, filled // block, tl.cdiv(capacity, block), -1, BLOCK)
        if chunk == 0:
            tl.store(total, filled)


# What a program has of the table in its registers at once.
_ENTRIES = 16384
# Where one program sorts, how many places a program fills, and how many help at most.
_FILLED, _MOST_FILLING = 1024, 32


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()


@per_device
def _plan(kernel: str, device: torch.device, assignments: int, lanes: int) -> tuple[Held, Held, int, int]:
    """What counts and what sorts so many ``assignments``, a power of two: how many of them at once, in how many chunks.

    ``lanes`` is a power of two from the number of experts on. One chunk is not counted first.
    """
    how = configuration(kernel, device, assignments)
    piece = min(how.elements, max(assignments, 32 * how.warps))
    meta = {"BLOCK": piece, "EXPERTS": lanes, "OVERLAP": False, **how.options}
    chunks = min(meta.pop("CHUNKS", 1), cdiv(assignments, piece))
    rows = max(1, min(_power(chunks), _ENTRIES // lanes))
    sorting = {"ROWS": rows, "WHOLE": assignments <= chunks * piece, **meta}
    if meta["OVERLAP"] and chunks > 1:
        sorting |= {"launch_pdl": True}
    return prepared(_count, meta), prepared(_sort, sorting), piece, chunks


def moe_sort(
    experts: Tensor,
    *,
    num_experts: int,
    capacity: int,
    block: int = 0,
    out: tuple[Tensor, ...] | None = None,
) -> tuple[Tensor, ...]:
    """``order``, ``offsets``, ``inverse`` and, with ``block``, ``block_experts`` and ``total``, all int32.

    ``experts``: ``(T, K)``, int32 or int64, any strides. ``out``: any strides.

    Raises:
        CannotRun: there are more experts than a program has registers for, or more assignments than 32 bits number.
    """
    if experts.numel() > _MOST_ASSIGNMENTS:
        text = f"needs T * K <= {_MOST_ASSIGNMENTS}, since assignments are numbered in 32 bits; this is"
        text = f"{text} {experts.numel()}: call it with fewer tokens at a time"
        raise CannotRun(Rejection(ReasonCode.LIMIT, text, "T"))
    if num_experts > _MOST_EXPERTS:
        text = f"num_experts is {num_experts}; a program has registers for {_MOST_EXPERTS} at most"
        raise CannotRun(Rejection(ReasonCode.LIMIT, text, "num_experts"))
    shapes: list[tuple[int, ...]] = [(capacity,), (num_experts + 1,), tuple(experts.shape)]
    shapes += [(-(-capacity // block),), (1,)] if block else []
    given = (None,) * len(shapes) if out is None else out
    found = [
        into if into is not None and into.is_contiguous() else experts.new_empty(shape, dtype=torch.int32)
        for into, shape in zip(given, shapes, strict=True)
    ]
    flat, count, lanes = experts.contiguous(), experts.numel(), _power(num_experts)
    counting, sorting, piece, chunks = _plan("moe_sort", flat.device, _power(max(count, 1)), lanes)
    of_blocks = found[3:] if block else [None, None]
    table, rounds = None, cdiv(max(count, 1), chunks * piece)
    if chunks > 1:
        table = flat.new_empty((chunks, lanes), dtype=torch.int32)
        counting.launch((chunks, 1), flat, table, count, num_experts, rounds)
    programs = chunks if chunks > 1 else min(1 + (capacity - count) // _FILLED, _MOST_FILLING)
    sorting.launch((programs, 1), flat, table, *found[:3], *of_blocks, count, num_experts, capacity, block, rounds)
    return tuple(delivered(one, into) for one, into in zip(found, given, strict=True))
