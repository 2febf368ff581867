"""The dimensions along which the ranks of a device mesh may split a call, derived from the op's contract.

No torch here: the page ``docs/sharding.md`` is made from the same rules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from portakernel.contract import Contract
from portakernel.contract.parts import Shape
from portakernel.contract.sizes import names_in, parse_size

# Dimensions besides the leading ones along which a call falls apart into smaller calls of the same op. Shapes do not
# say so: N is independent in a matrix product's results, and is what a norm sums over. Names in one group are split
# together: a rank needs the key heads of its own query heads. Every result must have a name of the group.
_INDEPENDENT: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "attention": (("B",), ("H", "G")),
    "attention_varlen": (("H", "G"),),
    "block_sparse_attention": (("B",), ("H", "G")),
    "embedding_bag": (("N",),),
    "grouped_mm": (("N",),),
    "int4_mm": (("N",),),
    "linear_act": (("N",),),
    "moe_mlp": (("T",),),
    "merge_attention": (("S",), ("H",)),
    "merge_attentions": (("S",), ("H",)),
    "mla_decode": (("H",),),
    "paged_attention": (("H", "G"),),
    "rotary_embedding": (("H", "G"),),
    "scaled_mm": (("M",), ("N",)),
}


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension along which parts of a call are calls of their own, and where each tensor has it.

    ``arguments`` and ``outputs`` hold its place in each tensor's shape: from the front in leading dimensions, negative
    in others. An argument without a place has to be whole on every rank, and its gradient is the sum of the ranks';
    outputs all have one. ``even``: each rank's share has to be of one size.
    """

    name: str
    arguments: tuple[int | None, ...]
    outputs: tuple[int, ...]
    even: bool = False


def axes(contract: Contract, leading: int, present: Collection[str]) -> tuple[Axis, ...]:
    """The axes along which a call with so many leading dimensions and these arguments present can be split.

    ``contract`` has no choice left open.
    """
    of_rows = (_row_axis(contract, place, leading, present) for place in range(leading))
    of_names = (_named_axis(contract, names, present) for names in _INDEPENDENT.get(contract.op, ()))
    return tuple(axis for axis in (*of_rows, *of_names) if axis is not None)


def row_name(contract: Contract) -> str | None:
    """The name of the product of the leading dimensions, where the op has them."""
    return next((tensor.leading for tensor in contract.tensors if tensor.leading is not None), None)


def _row_axis(contract: Contract, place: int, leading: int, present: Collection[str]) -> Axis | None:
    """The leading dimension at ``place``, unless a part of its rows would give something else than among all."""
    name = row_name(contract)
    shapes = {tensor.name: tensor.sizes for tensor in contract.tensors}
    results = [_sizes(output.shape) for output in contract.outputs]
    if not all(sizes[:1] == (f"*{name}",) for sizes in results):
        return None
    # a size over the product of the rows, such as that of scales for blocks of 128, does not split as they do
    if any(_over(text) == name for sizes in (*shapes.values(), *results) for text in sizes if not text.startswith("*")):
        return None
    # without positions, rows have them by their place in the last leading dimension
    placed = any(tensor.leading is not None and tensor.name not in present for tensor in contract.tensors)
    if placed and place == leading - 1:
        return None
    arguments = tuple(
        place if tensor.leading is not None and tensor.name in present else None for tensor in contract.tensors
    )
    return Axis(f"*{name}", arguments, (place,) * len(results))


def _named_axis(contract: Contract, names: tuple[str, ...], present: Collection[str]) -> Axis | None:
    shapes = [tensor.sizes for tensor in contract.tensors]
    results = [_sizes(output.shape) for output in contract.outputs]
    if any(_over(text) in names and text not in names for sizes in (*shapes, *results) for text in sizes):
        return None
    arguments = tuple(_place(tensor.sizes, names) if tensor.name in present else None for tensor in contract.tensors)
    outputs = [_place(sizes, names) for sizes in results]
    whole = [place for place in outputs if place is not None]
    return (
        Axis(" and ".join(names), arguments, tuple(whole), even=len(names) > 1) if len(whole) == len(outputs) else None
    )


def _place(sizes: Shape, names: tuple[str, ...]) -> int | None:
    return next((place - len(sizes) for place, text in enumerate(sizes) if text in names), None)


def _over(text: str) -> str | None:
    if names_in(text) is not None or "|" in text:
        return None
    return parse_size(text.lstrip("*")).name


def _sizes(shape: object) -> Shape:
    if not isinstance(shape, tuple):
        raise TypeError(f"the shape {shape} leaves a choice open; ask contract.at(values)")
    return shape
