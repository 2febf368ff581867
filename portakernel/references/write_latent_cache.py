"""``write_latent_cache`` as a formula: ``cache[slot // P, slot % P] = x / scale``, for latents and rotary keys."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from portakernel.references.paged_writes import Places, check_scales, clamped, held, places, put, stored

OP = "write_latent_cache"
Kind = Literal["none", "tensor"]
WANTED = {"tensor": ("scale",)}


def _write(x: Tensor, cache: Tensor, where: Places, scale: Tensor | None) -> None:
    x = x[where.tokens]
    put(cache, where, stored(x if scale is None else x.float() / scale, cache.dtype))


def forward(
    latent: Tensor,
    rope: Tensor,
    latent_cache: Tensor,
    rope_cache: Tensor,
    slot_mapping: Tensor,
    *,
    scale: Tensor | None = None,
    kv_scales: Kind = "none",
) -> None:
    """Writes ``latent: (T, C)`` and ``rope: (T, R)`` to the slots ``(T,)`` of caches ``(NP, P, C or R)``.

    ``scale: ()`` divides both, in float32, for ``tensor``.

    Raises:
        ArgumentValueError: the scale does not go with ``kv_scales``.
        IndexOutOfRangeError: a slot is not in the caches (on the CPU).
    """
    check_scales(OP, kv_scales, WANTED, {"scale": scale})
    where = places(OP, slot_mapping, latent_cache)
    _write(latent, latent_cache, where, scale)
    _write(rope, rope_cache, where, scale)


def _truth(x: Tensor, cache: Tensor, where: Places, scale: Tensor | None) -> Tensor:
    x = x[where.tokens].double()
    return held(cache, where, clamped(x if scale is None else x / scale.double(), cache.dtype))


def truth(
    latent: Tensor,
    rope: Tensor,
    latent_cache: Tensor,
    rope_cache: Tensor,
    slot_mapping: Tensor,
    *,
    scale: Tensor | None = None,
    kv_scales: Kind = "none",
) -> tuple[Tensor, Tensor]:
    """What the caches hold then, in float64: elements clamped but not rounded."""
    check_scales(OP, kv_scales, WANTED, {"scale": scale})
    where = places(OP, slot_mapping, latent_cache)
    return _truth(latent, latent_cache, where, scale), _truth(rope, rope_cache, where, scale)
