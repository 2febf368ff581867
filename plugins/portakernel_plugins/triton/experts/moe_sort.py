"""``moe_sort`` in Triton: a program for each expert, and none that waits for another.

A program counts the assignments to lower experts, which is where its own begin, and then goes through all assignments
again and places its own in their order: nothing is added atomically, and equal calls give equal bits. Whatever the
experts are, as much is launched: a captured graph sorts others. One more program has the assignments that are left out,
and what of the buffers nobody fills.

Padded to blocks, where an expert begins depends on the sizes of all lower ones, which a launch before counts.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import delivered
from portakernel.authoring.triton import Held, per_device, prepared
from portakernel_plugins.triton.launching.configurations import configuration


@triton.jit
def _experts_of(experts, i, count, num_experts):
    """The experts of assignments ``i``, those that are left out being ``num_experts``; -1 where there is none."""
    found = tl.load(experts + i, mask=i < count, other=0).to(tl.int64)
    found = tl.where((found >= 0) & (found < num_experts), found, num_experts).to(tl.int32)
    return tl.where(i < count, found, -1)


@triton.jit
def _fill(into, begin, end, value, BLOCK: tl.constexpr):
    """Fills ``into[begin:end]``."""
    for first in range(begin, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(into + at, tl.zeros_like(at) + value, mask=at < end)


@triton.jit(do_not_specialize=["count", "num_experts"])
def _count(
    experts,  # (count,)
    sizes,  # (num_experts,) int32
    count,
    num_experts,
    BLOCK: tl.constexpr,
) -> None:
    expert = tl.program_id(0)
    found = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, count, BLOCK):
        found += (_experts_of(experts, first + tl.arange(0, BLOCK), count, num_experts) == expert).to(tl.int32)
    tl.store(sizes + expert, tl.sum(found))


@triton.jit(do_not_specialize=["count", "num_experts", "capacity", "block"])
def _sort(
    experts,  # (count,)
    sizes,  # (num_experts,): how many assignments each has. None: they are not padded
    order,  # (capacity,)
    offsets,  # (num_experts + 1,)
    inverse,  # (count,)
    block_experts,  # (capacity / block,), and total (1,). None: they are not padded
    total,
    count,
    num_experts,
    capacity,
    block,
    BLOCK: tl.constexpr,
    EXPERTS: tl.constexpr,  # a power of two from num_experts on
) -> None:
    expert = tl.program_id(0)
    is_last = expert == num_experts
    lane = tl.arange(0, BLOCK)
    if sizes is None:
        lower = tl.zeros((BLOCK,), tl.int32)
        for first in range(0, count, BLOCK):
            found = _experts_of(experts, first + lane, count, num_experts)
            lower += ((found >= 0) & (found < expert)).to(tl.int32)
        begin = tl.sum(lower)
    else:
        every = tl.arange(0, EXPERTS)
        padded = tl.cdiv(tl.load(sizes + every, mask=every < expert, other=0), block) * block
        begin = tl.sum(padded)
    tl.store(offsets + expert, begin)

    place = begin
    for first in range(0, count, BLOCK):
        i = first + lane
        mine = _experts_of(experts, i, count, num_experts) == expert
        at = place + tl.cumsum(mine.to(tl.int32), axis=0) - 1
        tl.store(order + at, i, mask=mine & (not is_last))
        tl.store(inverse + i, tl.where(is_last, -1, at), mask=mine)
        place += tl.sum(mine.to(tl.int32))

    if is_last:
        _fill(order, begin, capacity, count, BLOCK)
        if sizes is not None:
            _fill(block_experts, begin // block, tl.cdiv(capacity, block), -1, BLOCK)
            tl.store(total, begin)
    elif sizes is not None:
        end = begin + tl.cdiv(place - begin, block) * block
        _fill(order, place, end, count, BLOCK)
        _fill(block_experts, begin // block, end // block, expert, BLOCK)


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()


@per_device
def _plan(kernel: str, device: torch.device, assignments: int, experts: int) -> Held:
    """What is launched for so many ``assignments``, a power of two, and ``experts``, one too."""
    how = configuration(kernel, device, assignments)
    block = min(how.elements, max(assignments, 32 * how.warps))
    if kernel == "moe_sort.count":
        return prepared(_count, {"BLOCK": block, **how.options})
    return prepared(_sort, {"BLOCK": block, "EXPERTS": experts, **how.options})


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
    """
    shapes: list[tuple[int, ...]] = [(capacity,), (num_experts + 1,), tuple(experts.shape)]
    shapes += [(-(-capacity // block),), (1,)] if block else []
    given = (None,) * len(shapes) if out is None else out
    found = [
        into if into is not None and into.is_contiguous() else experts.new_empty(shape, dtype=torch.int32)
        for into, shape in zip(given, shapes, strict=True)
    ]
    flat, count = experts.contiguous(), experts.numel()
    size, lanes = _power(max(count, 1)), _power(num_experts)
    sizes = None
    if block:
        sizes = experts.new_empty(num_experts, dtype=torch.int32)
        _plan("moe_sort.count", flat.device, size, lanes).launch((num_experts, 1), flat, sizes, count, num_experts)
    of_blocks = found[3:] if block else [None, None]
    _plan("moe_sort", flat.device, size, lanes).launch(
        (num_experts + 1, 1), flat, sizes, *found[:3], *of_blocks, count, num_experts, capacity, block
    )
    return tuple(delivered(one, into) for one, into in zip(found, given, strict=True))
