"""What ``PORTAKERNEL_CHECKS=1`` looks at in lists of blocks: how many each has, and which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from portakernel.contract.value_rules import BlockCounts, Blocks
from portakernel.errors import ArgumentValueError, IndexOutOfRangeError
from portakernel.tensors.block_lists import blocks_of, mapped
from portakernel.tensors.index_values import element, outside


def check_blocks(
    op: str,
    name: str,
    numbers: Tensor,
    rule: BlockCounts | Blocks,
    sizes: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> None:
    """Nothing, when the numbers of the argument ``name`` are such as ``rule`` says.

    ``sizes`` has the dimensions, and the parameters' values as ``$name``; ``tensors`` the other arguments that can be
    read.

    Raises:
        IndexOutOfRangeError: a block that there is not.
        ArgumentValueError: a list is longer than its room, has a block twice, or one of the row's other list.
    """
    if isinstance(rule, BlockCounts):
        if rule.room.partition("/")[0] not in sizes:  # its indices are missing, which is refused as such
            return
        room, named = _counted(rule.room, sizes)
        if (place := _first(outside(numbers, room + 1))) is not None:
            raise ArgumentValueError(f"{_found(op, name, numbers, place)}; it must be from 0 to {room}, {named}")
        return
    counts = tensors.get(rule.counts)
    if counts is None:
        return
    blocks, named = _counted(rule.below, sizes)
    found = numbers.detach().long()
    meant = torch.arange(found.shape[-1], device=found.device) < counts.detach().unsqueeze(-1)
    if (place := _first(meant & outside(found, blocks))) is not None:
        text = f"{_found(op, name, found, place)}; it must be in [0, {blocks}), {named}"
        row = place[:-1]
        raise IndexOutOfRangeError(f"{text}, because {element(rule.counts, row)} is {int(counts[tuple(row)])}")
    order = found.masked_fill(~meant, -1).sort(-1)
    again = (order.values[..., 1:] == order.values[..., :-1]) & (order.values[..., 1:] >= 0)
    if (place := _first(again)) is not None:
        *row, at = place
        twice = [element(name, [*row, int(order.indices[(*row, x)])]) for x in (at + 1, at)]
        text = f"{op}: {twice[0]} is {int(order.values[tuple(place)])}, and so is {twice[1]}"
        raise ArgumentValueError(f"{text}; a list has each block once")
    if rule.apart is None:
        return
    other_counts, other = (tensors.get(argument) for argument in rule.apart)
    if other_counts is None or other is None:
        return
    both = mapped(counts, found, blocks) & mapped(other_counts, other.long(), blocks)
    if (place := _first(both)) is not None:
        *row, block = place
        text = f"{op}: {element(name, row)} and {element(rule.apart[1], row)} both list block {block}"
        raise ArgumentValueError(f"{text}; a block is on one list of its row")


def _counted(text: str, sizes: Mapping[str, Any]) -> tuple[int, str]:
    """The size of a dimension, which a list has room for, or the number of its blocks; and what that is."""
    dimension, _, parameter = text.partition("/")
    if not parameter:
        return sizes[dimension], f"for which the list has room ({dimension})"
    blocks, _ = blocks_of(text, sizes, {parameter: sizes[f"${parameter}"]})
    return blocks, f"the blocks of {dimension} = {sizes[dimension]}"


def _first(wrong: Tensor) -> list[int] | None:
    """Where the first element is that is true."""
    if not bool(wrong.any()):
        return None
    place: list[int] = wrong.nonzero()[0].tolist()
    return place


def _found(op: str, name: str, numbers: Tensor, place: list[int]) -> str:
    return f"{op}: {element(name, place)} is {int(numbers[tuple(place)])}"
