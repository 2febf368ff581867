"""What ``PORTAKERNEL_CHECKS=1`` looks at in the order of a 4-bit weight's columns: their places, their groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from portakernel.contract.value_rules import Groups
from portakernel.errors import IndexOutOfRangeError
from portakernel.tensors.index_values import element, outside
from portakernel.words.int4_layouts import PACKED


def check_groups(
    op: str,
    name: str,
    numbers: Tensor,
    rule: Groups,
    sizes: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> None:
    """Nothing, when the numbers of the argument ``name`` are such as ``rule`` says.

    ``sizes`` has the dimensions, and the parameters' values as ``$name``; ``tensors`` the other arguments that can be
    read.

    Raises:
        IndexOutOfRangeError: a group that has no scales, or a column that there is not.
    """
    scales, across = tensors.get(rule.scales), sizes.get(rule.across, 0)
    if scales is None or not across or not numbers.numel():
        return
    columns, groups = numbers.shape[-1], scales.numel() // across
    rows, wrong = numbers.reshape(-1, columns), torch.zeros(numbers.shape, dtype=torch.bool, device=numbers.device)
    from_places, of_groups = rows[0], rows[-1]
    packed = sizes[f"${rule.layout}"] in PACKED
    flags = wrong.reshape(-1, columns)
    if not packed or len(rows) > 1:
        flags[-1] = outside(of_groups, groups)
    if packed:
        flags[0] = outside(from_places, columns)
    if not bool(wrong.any()):
        return
    place = wrong.nonzero()[0].tolist()
    is_column = packed and (len(rows) == 1 or place[0] == 0)
    accepted = f"[0, {columns}), the columns" if is_column else f"[0, {groups}), the groups of {rule.scales}"
    found = int(numbers[tuple(place)])
    raise IndexOutOfRangeError(f"{op}: {element(name, place)} is {found}; it must be in {accepted}")
