"""Masks in kernels: functions of positions, inlined into the loops that go through what a mask cuts.

``none``, ``causal`` and a window are said by which positions are too far (``scores.sees``); all others by a function.
"""
# Tuples grow by concatenation, the one way that Triton knows.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring import CannotRun, masks
from portakernel_plugins.triton.attention.mask_names import check


@triton.jit
def _document(b, h, q, k, query_id, key_id):
    return query_id == key_id


@triton.jit
def _prefix(b, h, q, k, prefix):
    return (k <= q) | (k < prefix)


_BUILT_IN: Mapping[str, Any] = {"none": None, "causal": None, "document": _document, "prefix": _prefix}


@triton.jit
def ids_of(ids, at, inside):
    """The numbers of what stands there, 0 outside; None where there are none."""
    found = None
    if ids is not None:
        found = tl.load(ids + at, mask=inside, other=None if inside is None else 0)
    return found


@triton.jit
def allows(MASK: tl.constexpr, batch, head, queries, keys, query_ids, key_ids, prefix, KEYS: tl.constexpr):
    """Where a mask's function holds in a tile of queries and keys, of which the axis ``KEYS`` are keys.

    Of what it may read beside positions, it is given what there is.
    """
    aux = ()
    if query_ids is not None:
        aux = aux + (tl.expand_dims(query_ids, KEYS),)
    if key_ids is not None:
        aux = aux + (tl.expand_dims(key_ids, 1 - KEYS),)
    if prefix is not None:
        aux = aux + (prefix,)
    query, key = tl.expand_dims(queries, KEYS), tl.expand_dims(keys, 1 - KEYS)
    return MASK(tl.cast(batch, tl.int32), head, query, key, *aux)


@dataclass(frozen=True, slots=True)
class Masking:
    """A call's mask: its function, None where positions say all; and what it reads, contiguous.

    ``query_ids (B, S)``, ``key_ids (B, T)``, ``prefix (B,)``, each None where the mask does not read it.
    """

    function: Any
    is_causal: bool
    query_ids: Tensor | None
    key_ids: Tensor | None
    prefix: Tensor | None

    @classmethod
    def of(cls, op: str, name: str, query_ids: Tensor | None, key_ids: Tensor | None, prefix: Tensor | None) -> Masking:
        """The mask of this name.

        Raises:
            ArgumentValueError: it reads what is not given, or does not read what is.
            CannotRun: nothing says it to Triton.
        """
        aux = {"query_ids": query_ids, "key_ids": key_ids, "prefix": prefix}
        mask = masks.found_for(op, name, aux)
        if (rejection := check(name)) is not None:
            raise CannotRun(rejection)
        read = (None if x is None else x.contiguous() for x in aux.values())
        return cls(_BUILT_IN.get(name, mask.triton), name == "causal", *read)

    @property
    def arguments(self) -> tuple[Tensor | None, ...]:
        """As kernels take them."""
        return self.query_ids, self.key_ids, self.prefix
