"""``write_latent_cache`` in Triton: see ``paged_rows``; a token has one head of each."""

from __future__ import annotations

from torch import Tensor

from portakernel_plugins.triton.cache.paged_rows import Part, check_scales, put

_OP = "write_latent_cache"


def write_latent_cache(
    latent: Tensor,
    rope: Tensor,
    latent_cache: Tensor,
    rope_cache: Tensor,
    slot_mapping: Tensor,
    *,
    scale: Tensor | None = None,
    kv_scales: str = "none",
) -> None:
    """Writes ``latent: (T, C)`` and ``rope: (T, R)`` to the slots ``(T,)`` of caches ``(NP, P, C or R)``.

    Any strides; caches of the dtype of ``latent`` or float8. ``scale``: ``()``, for ``tensor``.

    Raises:
        ArgumentValueError: the scale does not go with ``kv_scales``.
    """
    check_scales(_OP, kv_scales, {"tensor": ("scale",)}, {"scale": scale})
    latents = Part(latent.unsqueeze(1), latent_cache.unsqueeze(2), scale)
    ropes = Part(rope.unsqueeze(1), rope_cache.unsqueeze(2), scale)
    put(_OP, latents, ropes, slot_mapping, kv_scales)
