"""Arguments that a kernel writes: they lie apart from all others, and autograd notices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

from portakernel.contract import Contract
from portakernel.errors import ArgumentValueError
from portakernel.tensors.layout import disjoint, mark_written, overlaps_itself


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

    Raises:
        ArgumentValueError: one shares memory with another argument, or with itself; says with which.
    """
    # most tensors have no gaps, and then two addresses tell; the rest is looked at closely
    spans = list[tuple[int, int]]()
    for tensor in given.values():
        if tensor is not None and tensor.numel():
            if not tensor.is_contiguous():
                _check_closely(op, given, mutated)
                return
            begin = tensor.data_ptr()
            spans.append((begin, begin + tensor.nbytes))
    if any(begin < end for (_, end), (begin, _) in pairwise(sorted(spans))):
        _check_closely(op, given, mutated)


def _check_closely(op: str, given: Mapping[str, Tensor | None], mutated: Sequence[str]) -> None:
    for name in mutated:
        tensor = given.get(name)
        if tensor is None or not tensor.numel():
            continue
        if overlaps_itself(tensor):
            text = f"{op}: several elements of {name}, which is written, share memory, as after expand()"
            raise ArgumentValueError(f"{text}; give a tensor of its own (clone())")
        for other, neighbour in given.items():
            if other == name or neighbour is None or not neighbour.numel() or disjoint(tensor, neighbour):
                continue
            text = f"{op}: {name} is written, and shares memory with {other}"
            raise ArgumentValueError(f"{text}; give tensors that lie apart ({other}.clone())")
