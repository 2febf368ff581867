"""The values of indices and of pieces' ends, looked at on the host: for kernels there, and after one has refused them.

For plugins: a kernel on the CPU calls these where that costs nothing beside its own work, so that what stands outside
is an error that names the value. Elsewhere values are not read back.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

from torch import Tensor

from portakernel.errors import ArgumentValueError, IndexOutOfRangeError
from portakernel.tensors.torch_internals import without_transforms

# Of few numbers Python's own comparison is the quicker one.
_FEW = 256


def element(name: str, place: Sequence[int]) -> str:
    """An element as one would write it; a tensor without dimensions has but one."""
    return f"{name}[{', '.join(map(str, place))}]" if place else name


def outside(indices: Tensor, below: int, ignored: int | None = None) -> Tensor:
    """Where an index is neither in [0, ``below``) nor the one that is ignored."""
    indices = indices.long()  # or else an `ignored` beyond int32 would be compared without its upper bits
    wrong = (indices < 0) | (indices >= below)
    return wrong if ignored is None else wrong & (indices != ignored)


def check_indices(op: str, name: str, indices: Tensor, below: int, size: str, ignored: int | None = None) -> None:
    """Nothing, when each index is in [0, ``below``), the size called ``size``, or is the one that is ignored.

    Raises:
        IndexOutOfRangeError: one is not; names the first.
    """
    indices = without_transforms(indices)
    wrong = outside(indices, below, ignored)
    if wrong.any():
        first = int(indices[wrong][0])
        if ignored is None:
            raise IndexOutOfRangeError(f"{op}: {name} holds {first}, which is not in [0, {size}) with {size} = {below}")
        text = f"is neither in [0, {size}) with {size} = {below} nor ignore_index = {ignored}"
        raise IndexOutOfRangeError(f"{op}: {name} {first} {text}")


def check_offsets(op: str, offsets: Tensor, end: int, size: str) -> None:
    """Nothing, when ``offsets``, where pieces of ``end`` elements begin, start at 0 and never fall.

    Raises:
        ArgumentValueError: they do not; names the first that is wrong.
    """
    if not offsets.numel() or (int(offsets[0]) == 0 and int(offsets[-1]) <= end and _never_fall(offsets)):
        return
    begins = [*offsets.tolist(), end]
    if begins[0] != 0:
        raise ArgumentValueError(f"{op}: offsets[0] is {begins[0]}; the first bag begins at 0")
    at = next(place for place, begin in enumerate(begins) if begins[place + 1] < begin)
    after = size if at + 1 == offsets.numel() else f"offsets[{at + 1}]"
    text = f"offsets[{at}] is {begins[at]} and {after} is {begins[at + 1]}; a bag cannot end before it begins"
    raise ArgumentValueError(f"{op}: {text}")


def sequence_ends(op: str, name: str, ends: Tensor, length: int, size: str) -> list[int]:
    """The numbers of ``ends``, which rise from 0 to at most ``length``, the size called ``size``.

    Rows behind the last end belong to no sequence: padding, say.

    Raises:
        ArgumentValueError: they do not; says where.
    """
    found: list[int] = ends.tolist()
    if not found or found[0] != 0 or found[-1] > length:
        ends_found = f"from {found[0]} to {found[-1]}" if found else "nowhere"
        text = f"rises from 0 to at most {size} = {length}; this goes {ends_found}"
        raise ArgumentValueError(f"{op}: {name} {text}")
    for place, (begin, end) in enumerate(itertools.pairwise(found)):
        if end < begin:
            text = f"{name}[{place}] is {begin} and {name}[{place + 1}] is {end}"
            raise ArgumentValueError(f"{op}: {text}; a sequence cannot end before it begins")
    return found


def _never_fall(numbers: Tensor) -> bool:
    if numbers.numel() > _FEW:
        return not bool((numbers[1:] < numbers[:-1]).any())
    listed = numbers.tolist()
    return all(map(operator.le, listed, listed[1:]))
