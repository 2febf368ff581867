"""``write_kv_cache`` in Triton: see ``paged_rows``."""

from __future__ import annotations

from torch import Tensor

from portakernel_plugins.triton.cache.paged_rows import Part, check_scales, put

_OP = "write_kv_cache"
_WANTED = {
    "tensor": ("k_scale", "v_scale"),
    "head": ("k_scale", "v_scale"),
    "token_head": ("key_scales", "value_scales"),
}


def write_kv_cache(
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
    kv_scales: str = "none",
) -> None:
    """Writes ``key: (T, G, D)`` and ``value: (T, G, E)`` to the slots ``(T,)`` of caches ``(NP, P, G, D or E)``.

    Any strides; caches of the dtype of ``key`` or float8. ``k_scale`` and ``v_scale``: ``()`` for ``tensor``, ``(G,)``
    for ``head``; ``key_scales`` and ``value_scales``: ``(NP, P, G)``, written for ``token_head``.

    Raises:
        ArgumentValueError: these scales do not go with ``kv_scales``.
    """
    given = {"k_scale": k_scale, "v_scale": v_scale, "key_scales": key_scales, "value_scales": value_scales}
    check_scales(_OP, kv_scales, _WANTED, given)
    keys, values = Part(key, key_cache, k_scale, key_scales), Part(value, value_cache, v_scale, value_scales)
    put(_OP, keys, values, slot_mapping, kv_scales)
