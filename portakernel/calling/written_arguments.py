"""Arguments that a kernel writes: they lie apart from all others, and autograd notices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from portakernel.contract import Contract
from portakernel.errors import ArgumentValueError
from portakernel.tensors.layout import Lie, disjoint, mark_written, overlaps_itself, span_bytes


def writing(contract: Contract, kernel: Callable[..., Any]) -> Callable[..., None]:
    """``kernel``, which writes into some of its arguments, with what has to be seen to before and after that."""
    op, mutated = contract.op, contract.mutated
    positional = [tensor.name for tensor in contract.tensors if not tensor.keyword]
    keyword = [tensor.name for tensor in contract.tensors if tensor.keyword]

    @functools.wraps(kernel)
    def written(*tensors: Any, **others: Any) -> None:
        given = dict(zip(positional, tensors, strict=False))
        given |= {name: others[name] for name in keyword if name in others}
        check_apart(op, given, mutated)
        kernel(*tensors, **others)
        for name in mutated:
            if given.get(name) is not None:
                mark_written(given[name])

    return written


def check_apart(op: str, given: Mapping[str, Tensor | None], mutated: Sequence[str]) -> None:
    """Nothing, when no element of a mutated argument is another element's memory too.

    Views that interleave, such as both caches in one tensor, are apart.

    Raises:
        ArgumentValueError: one shares memory with another argument, or with itself; says with which.
    """
    placed = list[tuple[int, int, str]]()
    for name, tensor in given.items():
        if tensor is None or tensor.is_meta or not tensor.numel():
            continue
        begin = tensor.data_ptr()
        if tensor.is_contiguous():  # which most are; the rest is looked at more closely
            placed.append((begin, begin + tensor.nbytes, name))
            continue
        if name in mutated and overlaps_itself(tensor):
            text = f"{op}: several elements of {name}, which is written, share memory, as after expand()"
            raise ArgumentValueError(f"{text}; give a tensor of its own (clone())")
        placed.append((begin, begin + span_bytes(Lie.of(tensor)), name))
    placed.sort()
    for place, (_, end, name) in enumerate(placed, 1):
        for begin, _, other in placed[place:]:
            if begin >= end:
                break
            _check_pair(op, name, other, given, mutated)


def _check_pair(op: str, name: str, other: str, given: Mapping[str, Any], mutated: Sequence[str]) -> None:
    """What ``check_apart`` says of two arguments the second of which begins before the first one ends."""
    written, neighbour = (name, other) if name in mutated else (other, name)
    if written in mutated and not disjoint(given[written], given[neighbour]):
        text = f"{op}: {written} is written, and shares memory with {neighbour}"
        raise ArgumentValueError(f"{text}; give tensors that lie apart ({neighbour}.clone())")
