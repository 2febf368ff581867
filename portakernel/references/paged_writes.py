"""Rows of tokens in the pages of caches, as the references of ops that write caches share them.

Slot ``s`` is row ``s % P`` of page ``s // P``; a negative one is nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from portakernel.errors import ArgumentValueError
from portakernel.references.scale_formats import LARGEST, float8
from portakernel.tensors.dense import as_bytes
from portakernel.tensors.index_values import check_indices


class Places(NamedTuple):
    """Which tokens are written, to which pages, and to which rows of them."""

    tokens: Tensor
    pages: Tensor
    rows: Tensor


def places(op: str, slot_mapping: Tensor, cache: Tensor) -> Places:
    """Where the slots are in ``cache: (NP, P, ...)``.

    Raises:
        IndexOutOfRangeError: a slot is not in the cache; asked on the CPU alone, elsewhere the answer would have to be
            waited for.
    """
    slots = slot_mapping.long()
    tokens = (slots >= 0).nonzero().squeeze(-1)
    slots, page = slots[tokens], cache.shape[1]
    if slots.device.type == "cpu":
        check_indices(op, "slot_mapping", slots, cache.shape[0] * page, "NP*P")
    return Places(tokens, slots // page, slots % page)


def put(cache: Tensor, where: Places, elements: Tensor) -> None:
    """Writes ``elements``, one for each token that is written, in the dtype of ``cache``."""
    # as bytes where there are no others: not every operator knows the 8-bit floats
    as_bytes(cache)[where.pages, where.rows] = as_bytes(elements)


def held(cache: Tensor, where: Places, elements: Tensor) -> Tensor:
    """What ``cache`` holds after that, in float64."""
    whole = cache.double()
    whole[where.pages, where.rows] = elements.double()
    return whole


def stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in the dtype of a cache: as it is, or rounded to the nearest float8 and clamped to the largest."""
    return x if x.dtype is dtype else float8(x.float(), name_of(dtype))


def clamped(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x``, float64, no larger than a float8 cache's largest number; not rounded."""
    largest = LARGEST.get(name_of(dtype))
    return x if largest is None else x.clamp(-largest, largest)


def name_of(dtype: torch.dtype) -> str:
    """The dtype's name."""
    return str(dtype).removeprefix("torch.")


def check_scales(op: str, kind: str, wanted: Mapping[str, tuple[str, ...]], given: Mapping[str, Tensor | None]) -> None:
    """Nothing, when those scales are given that ``kv_scales=kind`` asks for: ``wanted[kind]``, and no others.

    Raises:
        ArgumentValueError: one is missing, or is there and would not be used.
    """
    asked = wanted.get(kind, ())
    for name, tensor in given.items():
        if tensor is None and name in asked:
            raise ArgumentValueError(f"{op}: kv_scales={kind!r} needs {' and '.join(asked)}; {name} is missing")
        if tensor is not None and name not in asked:
            kinds = " or ".join(f"kv_scales={other!r}" for other, names in wanted.items() if name in names)
            text = f"{name} goes with {kinds}; this is {kind!r}. Say which scales are meant, or leave {name} away"
            raise ArgumentValueError(f"{op}: {text}")
