"""``write_kv_cache`` as a formula: ``cache[slot // P, slot % P] = x / scale``, for keys and for values."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from portakernel.references.paged_writes import Places, check_scales, clamped, held, name_of, places, put, stored
from portakernel.references.scale_formats import LARGEST, block_maxima, largest_scale

OP = "write_kv_cache"
Kind = Literal["none", "tensor", "head", "token_head"]
# The scales that a kind asks for; it computes those of token_head, and writes them.
WANTED = {
    "tensor": ("k_scale", "v_scale"),
    "head": ("k_scale", "v_scale"),
    "token_head": ("key_scales", "value_scales"),
}


def _check(
    kind: Kind, k_scale: Tensor | None, v_scale: Tensor | None, key_scales: Tensor | None, value_scales: Tensor | None
) -> None:
    given = {"k_scale": k_scale, "v_scale": v_scale, "key_scales": key_scales, "value_scales": value_scales}
    check_scales(OP, kind, WANTED, given)


def _computed_scale(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``(T, G, 1)``: what each token's head is divided by, so that its largest magnitude is the dtype's."""
    return largest_scale(block_maxima(x, "row"), LARGEST[name_of(dtype)])


def _write(x: Tensor, cache: Tensor, where: Places, scale: Tensor | None, scales: Tensor | None) -> None:
    """Writes one of both caches, divided by ``scale: ()`` or ``(G,)``, or by scales that go into ``scales``."""
    x = x[where.tokens]
    if scales is not None:
        computed = _computed_scale(x.float(), cache.dtype)
        put(scales, where, computed.squeeze(-1))
        x = x.float() / computed
    elif scale is not None:
        x = x.float() / scale.unsqueeze(-1)
    put(cache, where, stored(x, cache.dtype))


def forward(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    kv_scales: Kind = "none",
) -> None:
    """Writes ``key: (T, G, D)`` and ``value: (T, G, E)`` to the slots ``(T,)`` of caches ``(NP, P, G, D or E)``.

    ``k_scale`` and ``v_scale``: ``()`` for ``tensor``, ``(G,)`` for ``head``; ``key_scales`` and ``value_scales``:
    ``(NP, P, G)``, written for ``token_head``. Divisions are in float32.

    Raises:
        ArgumentValueError: these scales do not go with ``kv_scales``.
        IndexOutOfRangeError: a slot is not in the caches (on the CPU).
    """
    _check(kv_scales, k_scale, v_scale, key_scales, value_scales)
    where = places(OP, slot_mapping, key_cache)
    _write(key, key_cache, where, k_scale, key_scales)
    _write(value, value_cache, where, v_scale, value_scales)


def _truth(
    x: Tensor, cache: Tensor, where: Places, scale: Tensor | None, scales: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    x, written = x[where.tokens].double(), None
    if scales is not None:
        computed = _computed_scale(x, cache.dtype)
        written = held(scales, where, computed.squeeze(-1))
        x = x / computed.float().double()
    elif scale is not None:
        x = x / scale.double().unsqueeze(-1)
    return held(cache, where, clamped(x, cache.dtype)), written


def truth(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    kv_scales: Kind = "none",
) -> tuple[Tensor, ...]:
    """What the written arguments hold then, in float64: elements clamped but not rounded, of scales in float32."""
    _check(kv_scales, k_scale, v_scale, key_scales, value_scales)
    where = places(OP, slot_mapping, key_cache)
    keys, of_keys = _truth(key, key_cache, where, k_scale, key_scales)
    values, of_values = _truth(value, value_cache, where, v_scale, value_scales)
    return (keys, values, *(scales for scales in (of_keys, of_values) if scales is not None))
