"""``paged_attention`` by FlashAttention-4, which reads the table and the lengths on the device, and splits no keys."""

from __future__ import annotations

import math

from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel.authoring.tensors import delivered
from portakernel_plugins.flash_attn.calls import Pages, Results, forward

_WIDE = 16  # bytes that are loaded at once


def paged_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    causal: bool,
    scale: float | None,
    softcap: float = 0.0,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    out: Results | None = None,
) -> Results:
    """``attention`` of each sequence over its pages; q: (S, H, D), caches (NP, P, G, D) in the 16 bits of ``q``.

    Raises:
        CannotRun: rows of a cache do not begin where 16 bytes are loaded at once; FlashAttention would copy it.
    """
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        _check_rows(name, cache)
    if not (q.numel() and block_table.numel()):
        return _without_keys(q, sinks, return_lse, out)
    pages = Pages(query_start_loc, block_table, seq_lens, max_seqlen_q, max_seqlen_k)
    return forward(
        q,
        key_cache,
        value_cache,
        scale=scale,
        causal=causal,
        window=(-1, -1),
        softcap=softcap,
        sinks=sinks,
        return_lse=return_lse,
        out=out,
        save=False,
        sequences=pages,
    )


def _check_rows(name: str, cache: Tensor) -> None:
    """That each row of a cache begins where 16 bytes are loaded at once."""
    step = _WIDE // cache.element_size()
    if any(stride % step for stride, size in zip(cache.stride(), cache.shape[:-1], strict=False) if size > 1):
        text = f"needs strides of {name} that {step} divides but the last, whose rows are loaded 16 bytes at once"
        raise CannotRun(Rejection(ReasonCode.LAYOUT, f"{text}; these are {tuple(cache.stride())}", name))


def _without_keys(q: Tensor, sinks: Tensor | None, return_lse: bool, out: Results | None) -> Results:
    """What queries give for which no sequence has a page: zeros, and lse -inf or their sink."""
    to_y, to_lse = (*out, None)[:2] if isinstance(out, tuple) else (out, None)
    y = delivered(q.new_zeros(q.shape), to_y)
    if not return_lse:
        return y
    lse = q.new_full((q.shape[1], q.shape[0]), -math.inf).float()
    return y, delivered(lse if sinks is None else lse.copy_(sinks[:, None]), to_lse)
