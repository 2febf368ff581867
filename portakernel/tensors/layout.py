"""How tensors lie in memory: the facts that manifests limit, and whether an output may be written over an input."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from portakernel.tensors.torch_internals import is_dense
from portakernel.words.symbols import known, left_to_the_run

MAX_ALIGNMENT = 16


def flat_rows(tensor: Tensor) -> bool:
    """Whether all dimensions but the last collapse into one with a single stride."""
    if tensor.dim() <= 2 or tensor.numel() == 0:
        return True
    rows = [(size, stride) for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True) if size != 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(rows))


def stride_last(tensor: Tensor) -> int:
    """Elements between neighbours in the last dimension; 1 where there are none, as in every contiguous tensor."""
    return 1 if tensor.numel() == 0 or tensor.dim() == 0 or tensor.shape[-1] <= 1 else tensor.stride()[-1]


def alignment(tensor: Tensor) -> int:
    """The largest power of two, up to 16, that divides the address in bytes.

    Where there is no address to see (while tracing, in transforms, in subclasses), only the element's own is sure.
    """
    if tensor.numel() == 0:
        return MAX_ALIGNMENT
    if type(tensor) is not Tensor and type(tensor) is not Parameter:
        return min(tensor.element_size(), MAX_ALIGNMENT)
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a transform's tensor has the plain type and no storage
        address = 0
    return min(address & -address, MAX_ALIGNMENT) if address else min(tensor.element_size(), MAX_ALIGNMENT)


def layout_facts(name: str, tensor: Tensor) -> dict[str, int]:
    """Every layout fact of a tensor argument."""
    if any(left_to_the_run(size) for size in (*tensor.shape, *tensor.stride())):
        return _surely(name, tensor)
    return {
        f"{name}.contiguous": tensor.is_contiguous(),
        f"{name}.flat_rows": flat_rows(tensor),
        f"{name}.stride_last": stride_last(tensor),
        f"{name}.alignment": alignment(tensor),
    }


def _surely(name: str, tensor: Tensor) -> dict[str, int]:
    """The layout facts that hold whatever the sizes are that only the run can tell."""
    expected: list[int] = [1]
    for size in reversed(tensor.shape[1:]):
        expected.insert(0, expected[0] * size)
    pairs = list(zip(tensor.shape, tensor.stride(), strict=True))
    rows = [(size, stride) for size, stride in pairs[:-1] if not known(size == 1)]
    single = not pairs or known(tensor.shape[-1] <= 1)
    return {
        f"{name}.contiguous": all(
            known(size == 1) or known(stride == wanted) for (size, stride), wanted in zip(pairs, expected, strict=False)
        ),
        f"{name}.flat_rows": all(known(outer[1] == inner[0] * inner[1]) for outer, inner in pairwise(rows)),
        f"{name}.stride_last": 1 if single else tensor.stride()[-1],
        f"{name}.alignment": min(tensor.element_size(), MAX_ALIGNMENT),
    }


class Lie(NamedTuple):
    """How a tensor of one element and more lies in memory, wherever that is."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(cls, tensor: Tensor) -> Lie:
        """That of ``tensor``."""
        return cls(tensor.shape, tensor.stride(), tensor.element_size())


@lru_cache(maxsize=1 << 12)
def span_bytes(lie: Lie) -> int:
    """The bytes from the first to the last element, these too."""
    last = sum((size - 1) * stride for size, stride in zip(lie.shape, lie.strides, strict=True))
    return (last + 1) * lie.itemsize


def _inner_block(lie: Lie) -> tuple[int, list[int]]:
    """The bytes of the innermost run without gaps, and the strides in bytes of the dimensions around it."""
    block, outer = 1, list[int]()
    for size, stride in sorted(zip(lie.shape, lie.strides, strict=True), key=lambda pair: pair[1]):
        if size == 1:
            continue
        if stride == block and not outer:
            block *= size
        else:
            outer.append(stride * lie.itemsize)
    return block * lie.itemsize, outer


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether several elements may share memory, as after ``expand()``."""
    if tensor.is_contiguous():
        return False
    left = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    span = 1
    while left:
        nearest = left[0]
        for pair in left:  # by comparing, because of sizes that a trace leaves open it can only compare
            if pair[0] < nearest[0]:
                nearest = pair
        if nearest[0] < span:
            return True
        span += (nearest[1] - 1) * nearest[0]
        left.remove(nearest)
    return False


@lru_cache(maxsize=1 << 12)
def interleave(a: Lie, b: Lie, distance: int) -> bool:
    """Whether tensors that lie so, ``b`` so many bytes behind ``a``, surely share no byte though their spans overlap.

    Such as two column ranges of one matrix: they are told apart by their place in the common period of their strides.
    """
    (a_bytes, a_strides), (b_bytes, b_strides) = _inner_block(a), _inner_block(b)
    period = math.gcd(*a_strides, *b_strides)
    apart = distance % period if period else 0
    return apart >= a_bytes and apart + b_bytes <= period


def disjoint(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors surely share no byte; by address, because separate storages can lie in one buffer."""
    a_lie, b_lie, a_first, b_first = Lie.of(a), Lie.of(b), a.data_ptr(), b.data_ptr()
    if a_first + span_bytes(a_lie) <= b_first or b_first + span_bytes(b_lie) <= a_first:
        return True
    return interleave(a_lie, b_lie, b_first - a_first)


def has_plain_memory(tensor: Tensor) -> bool:
    """Whether the tensor's memory holds its numbers as they are: no subclass, no wrapper, nothing lazy."""
    return (type(tensor) is Tensor or type(tensor) is Parameter) and is_dense(tensor)


def mark_written(out: Tensor) -> None:
    """Lets autograd notice that a kernel wrote into ``out``'s memory."""
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)
