"""``pack_int4`` as a formula: every nibble taken out, columns sorted or put back, and all packed again."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.errors import ArgumentValueError
from portakernel.references.int4_weights import (
    MIDDLE,
    Columns,
    layout_called,
    nibbles,
    scales_of,
    stored_zeros,
    weight_of,
    zeros_of,
)
from portakernel.references.scale_formats import write_all


def forward(
    weight: Tensor,
    scales: Tensor,
    order: Tensor,
    zeros: Tensor | None = None,
    *,
    source: str = "gptq",
    target: str = "packed_mma",
    group: int = 128,
    zero: str = "stored",
    out: tuple[Tensor, ...] | None = None,
) -> tuple[Tensor, ...]:
    """``(weight, scales, order)`` of ``target``, with ``zeros`` behind unless ``zero`` is ``none``.

    Raises:
        ArgumentValueError: order has other numbers of columns in its groups than ``group`` says, or names none;
            target has no room for a part of a word.
    """
    of_groups, K = scales_of(scales, source), order.shape[-1]
    found, q = Columns.of(order, source, group, K, of_groups), nibbles(weight, source, K)
    ids = found.groups
    if found.places is not None:
        _check_places(found.places)
        q, ids = (
            torch.empty_like(q).index_copy(0, found.places, q),
            torch.empty_like(ids).index_copy(0, found.places, ids),
        )
    _check_groups(ids, group, len(of_groups))
    made = ids.int()
    if layout_called(target).packed:
        places = ids.sort(stable=True).indices
        q = q.index_select(0, places)
        made = torch.stack([places, ids.index_select(0, places)]).int() if group == 0 else places.int()
    results = [weight_of(q, target), scales_of(of_groups, target).contiguous(), made]
    if zero != "none":
        if zeros is None:
            middle = MIDDLE - 1 if zero == "stored_plus_one" else MIDDLE
            stored = torch.full(of_groups.shape, middle, dtype=torch.uint8, device=weight.device)
        else:
            stored = stored_zeros(zeros, source)
        results.append(zeros_of(stored, target))
    return write_all(tuple(_own(result, (weight, scales, order, zeros)) for result in results), out)


def truth(
    weight: Tensor,
    scales: Tensor,
    order: Tensor,
    zeros: Tensor | None = None,
    *,
    source: str = "gptq",
    target: str = "packed_mma",
    group: int = 128,
    zero: str = "stored",
) -> tuple[Tensor, ...]:
    """The results as numbers in float64."""
    found = forward(weight, scales, order, zeros, source=source, target=target, group=group, zero=zero)
    return tuple(result.double() for result in found)


def _own(result: Tensor, given: tuple[Tensor | None, ...]) -> Tensor:
    """The result in memory of its own."""
    shared = any(tensor is not None and tensor.data_ptr() == result.data_ptr() for tensor in given)
    return result.clone() if shared else result


def _check_places(places: Tensor) -> None:
    """Nothing, when each column comes from another place."""
    columns = len(places)
    wrong = places.sort().values != torch.arange(columns, device=places.device)
    if bool(wrong.any()):
        text = f"order says where each of {columns} columns came from, each number below that once"
        raise ArgumentValueError(f"pack_int4: {text}; this has {len(set(places.tolist()))} different ones")


def _check_groups(ids: Tensor, group: int, groups: int) -> None:
    """Nothing, when each group has as many columns as ``group`` says."""
    columns = len(ids)
    if not columns:
        return
    outside = (ids < 0) | (ids >= groups)
    if bool(outside.any()):
        place = int(outside.nonzero()[0])
        text = f"order has group {int(ids[place])} for column {place}; scales has groups 0 to {groups - 1}"
        raise ArgumentValueError(f"pack_int4: {text}")
    if group == 0:
        return
    size = group if group > 0 else columns
    counts = ids.bincount(minlength=groups).tolist()
    for number, count in enumerate(counts):
        wanted = min(size, columns - number * size)
        if count != wanted:
            text = f"order has {count} columns in group {number}, where group={group} wants {wanted} of {columns}"
            raise ArgumentValueError(f"pack_int4: {text}; groups of any size are group=0")
