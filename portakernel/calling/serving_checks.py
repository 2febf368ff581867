"""What ``PORTAKERNEL_CHECKS=1`` looks at in what serving ops are given: lengths, page tables, slots, experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from portakernel.contract.value_rules import Experts, Lengths, Pages, ServingRule, Slots
from portakernel.errors import ArgumentValueError, IndexOutOfRangeError
from portakernel.tensors.index_values import element, outside

_NO_SLOT = -1
_NO_EXPERT = -1


def check_serving(
    op: str, name: str, numbers: Tensor, rule: ServingRule, sizes: Mapping[str, int], tensors: Mapping[str, Tensor]
) -> None:
    """Nothing, when the numbers of the argument ``name`` are such as ``rule`` says.

    ``sizes`` has the dimensions, and the parameters' values as ``$name``; ``tensors`` the other arguments that can be
    read. Lengths are to be looked at before the pages that they reach.

    Raises:
        IndexOutOfRangeError: a page, slot or expert that there is not.
        ArgumentValueError: a length that there is no room for, or a slot that is written twice.
    """
    match rule:
        case Lengths(most):
            _check_lengths(op, name, numbers.detach().long(), most, _size(most, sizes))
        case Pages(below, lengths, page):
            if (held := tensors.get(lengths)) is not None:
                _check_pages(op, name, numbers, (lengths, held.detach().long()), below, page, sizes)
        case Slots(below):
            _check_slots(op, name, numbers, below, _size(below, sizes))
        case Experts(below, absent):
            size = _size(below, sizes)
            if (place := _first(outside(numbers.detach(), size, _NO_EXPERT if absent else None))) is not None:
                text = f"{_found(op, name, numbers, place)}; it must be {_range(below, size)}"
                advice = ": a row of padding needs one too; give it any, with weight 0"
                raise IndexOutOfRangeError(text + (", or -1 for one that is not here" if absent else advice))


def check_most(op: str, name: str, lengths: Tensor, parameter: str, most: int) -> None:
    """Nothing, when the parameter that bounds ``lengths`` is as large as the largest of them.

    Raises:
        ArgumentValueError: it is not; names the first that is beyond it.
    """
    if (place := _first(lengths.detach().long() > most)) is not None:
        text = f"{op}: {parameter} is {most}, but {element(name, place)} is {int(lengths[tuple(place)])}"
        raise ArgumentValueError(f"{text}; it must be at least that, or None")


def _check_lengths(op: str, name: str, found: Tensor, most: str, size: int) -> None:
    if (place := _first((found < 0) | (found > size))) is not None:
        text = f"{_found(op, name, found, place)}; it must be in [0, {most.replace('$', '')}]{_with(most, size)}"
        below = int(found[tuple(place)]) < 0
        advice = "a sequence without tokens has length 0" if below else "there is room for no more tokens"
        raise ArgumentValueError(f"{text}: {advice}")


def _check_pages(
    op: str, name: str, table: Tensor, lengths: tuple[str, Tensor], below: str, page: str, sizes: Mapping[str, int]
) -> None:
    of, held = lengths
    tokens, pages = max(_size(page, sizes), 1), _size(below, sizes)
    needed = -(-held // tokens)
    reached = torch.arange(table.shape[-1], device=table.device) < needed.to(table.device)[..., None]
    if (place := _first(reached & outside(table.detach(), pages))) is None:
        return
    row = place[:-1]
    text = f"{_found(op, name, table, place)}; it must be {_range(below, pages)}, because {element(of, row)}"
    reach = f"{int(held[tuple(row)])}, which reaches {int(needed[tuple(row)])} pages of {page} = {tokens}"
    raise IndexOutOfRangeError(f"{text} is {reach}: give the page that holds the tokens, or a smaller length")


def _check_slots(op: str, name: str, numbers: Tensor, below: str, size: int) -> None:
    found = numbers.detach().long()
    if (place := _first(outside(found, size, _NO_SLOT))) is not None:
        text = f"{_found(op, name, found, place)}; it must be {_range(below, size)}"
        raise IndexOutOfRangeError(f"{text}, or -1 for a token that is not written")
    flat = found.reshape(-1)
    taken = (flat != _NO_SLOT).nonzero()[:, 0]
    slots, order = flat[taken].sort(stable=True)
    again = taken[order[1:][slots[1:] == slots[:-1]]]
    if again.numel():
        second = int(again.min())
        first = int((flat == flat[second]).nonzero()[0])
        twice = [element(name, _unravelled(at, found.shape)) for at in (second, first)]
        text = f"{op}: {twice[0]} is {int(flat[second])}, and so is {twice[1]}; each slot is written once"
        raise ArgumentValueError(f"{text}: give one of them another, or -1 for a token that is not written")


def _first(wrong: Tensor) -> list[int] | None:
    """Where the first element is that is true."""
    if not bool(wrong.any()):
        return None
    place: list[int] = wrong.nonzero()[0].tolist()
    return place


def _unravelled(at: int, shape: torch.Size) -> list[int]:
    return [int(place) for place in torch.unravel_index(torch.tensor(at), shape)]


def _found(op: str, name: str, numbers: Tensor, place: list[int]) -> str:
    return f"{op}: {element(name, place)} is {int(numbers[tuple(place)])}"


def _range(below: str, size: int) -> str:
    return f"in [0, {below.replace('$', '')}){_with(below, size)}"


def _with(text: str, size: int) -> str:
    """What a size comes to, as an addition to its name."""
    return f" with {text.replace('$', '')} = {size}"


def _size(text: str, sizes: Mapping[str, Any]) -> int:
    return math.prod(sizes[factor] for factor in text.split("*"))
