"""``paged_attention`` by FlashInfer's wrappers for caches in pages, whose plans are made on the host (``plans``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel.authoring.tensors import delivered, dense, room
from portakernel_plugins.flashinfer.plans import Backend, Form, Told, planned

Results: TypeAlias = Tensor | tuple[Tensor, ...]

_WIDE = 16  # bytes that are read at once
# Smaller scales are zero to kernels that flush subnormal numbers.
_LEAST = 2.0**-126
_LN2 = math.log(2.0)


def _attention_by(backend: Backend) -> Callable[..., Results]:
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
        return_lse: bool = False,
        out: Results | None = None,
    ) -> Results:
        """``attention`` of each sequence over its pages; ``q``: (S, H, D), caches (NP, P, G, D), 16-bit ``q``.

        Raises:
            CannotRun: rows of a cache do not begin where 16 bytes are read at once, or, for fa3, the caches' differ.
        """
        del max_seqlen_q, max_seqlen_k  # the lengths themselves are read
        to_y, to_lse = (*out, None)[:2] if isinstance(out, tuple) else (out, None)
        alike = key_cache.stride() == value_cache.stride()
        _check_rows(key_cache, value_cache, alike or backend == "fa2")
        (S, H, D), (_, P, G, _) = q.shape, key_cache.shape
        queries, factor = above_zero(q, scale)
        form = Form(backend, H, G, D, P, causal, factor, softcap, q.dtype, key_cache.dtype, alike)
        wrapper, rows = planned(form, Told(block_table, seq_lens, query_start_loc), S)
        lse = q.new_full((H, S), -math.inf, dtype=torch.float32) if return_lse else None
        if wrapper is not None and rows is None:
            y = room(q, to_y, _WIDE)
            _run(wrapper, dense(queries, _WIDE), (key_cache, value_cache), y, lse)
        else:
            y = q.new_zeros(q.shape)
            if rows is not None:
                asked = queries[rows]
                sums = None if lse is None else lse.new_empty((H, len(rows)))
                _run(wrapper, asked, (key_cache, value_cache), found := torch.empty_like(asked), sums)
                y[rows] = found
                if lse is not None and sums is not None:
                    lse[:, rows] = sums
        y = delivered(y, to_y)
        return y if lse is None else (y, delivered(lse, to_lse))

    return paged_attention


paged_attention = _attention_by("fa2")
paged_attention_fa3 = _attention_by("fa3")


def above_zero(q: Tensor, scale: float | None) -> tuple[Tensor, float]:
    """Queries (..., D) and a scale above zero with the scores of ``q`` and ``scale``; None is 1/sqrt(D).

    FlashInfer looks for the largest score before it multiplies by the scale, and hides keys before.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    if not factor < _LEAST:  # NaN too stays what it is
        return q, factor
    return (-q, -factor) if factor <= -_LEAST else (q.new_zeros(q.shape), 1.0)


def _run(wrapper: Any, q: Tensor, caches: tuple[Tensor, Tensor], y: Tensor, lse: Tensor | None) -> None:
    """Writes ``y`` and, where it is wanted, lse (H, S): FlashInfer's is (S, H) and to base 2."""
    found = wrapper.run(q, caches, out=y, return_lse=lse is not None)
    if lse is not None:
        torch.mul(found[1].t(), _LN2, out=lse)


def _check_rows(key_cache: Tensor, value_cache: Tensor, alike: bool) -> None:
    """That each row of a cache begins where 16 bytes are read at once: a cache is not copied for a call."""
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        step = _WIDE // cache.element_size()
        if any(stride % step for stride, size in zip(cache.stride(), cache.shape[:-1], strict=False) if size > 1):
            text = f"needs strides of {name} that {step} divides but the last, whose rows are read 16 bytes at once"
            raise CannotRun(Rejection(ReasonCode.LAYOUT, f"{text}; these are {tuple(cache.stride())}", name))
    if not alike:
        found = f"{tuple(key_cache.stride())} and {tuple(value_cache.stride())}"
        text = f"needs the same strides of key_cache and value_cache, which fa3 computes once; these are {found}"
        raise CannotRun(Rejection(ReasonCode.LAYOUT, text, "value_cache"))
