"""``paged_attention`` by FlashInfer's wrappers for caches in pages, whose plans are made on the host (``plans``)."""
# pyright: reportMissingImports=false
# FlashInfer is an optional requirement.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel.authoring.tensors import announce_once
from portakernel_plugins.flashinfer.pages import Results, above_zero, answered, check_rows
from portakernel_plugins.flashinfer.plans import Seeing, Told, planned

Backend: TypeAlias = Literal["fa2", "fa3"]

_LN2 = math.log(2.0)
# Heads of so many queries each share a key head: from there on FlashInfer's matrix units are ahead of its other kernel.
_SHARED = 4


class _Form(NamedTuple):
    """What a plan is made for beside lengths; ``alike``: keys and values have the same strides."""

    backend: Backend
    H: int
    G: int
    D: int
    P: int
    causal: bool
    scale: float
    softcap: float
    q_dtype: torch.dtype
    cache_dtype: torch.dtype
    alike: bool
    op: str = "paged_attention"

    def wrapper(self, seeing: Seeing, workspace: Tensor) -> Any:
        """FlashInfer's for decoding where each sequence has one query and ``fa2`` is asked for, else that for many."""
        pages = seeing.indptr, seeing.indices, (seeing.lengths - 1) % self.P + 1
        heads = self.H, self.G, self.D, self.P
        options = {
            "sm_scale": self.scale,
            "logits_soft_cap": self.softcap,
            "q_data_type": self.q_dtype,
            "kv_data_type": self.cache_dtype,
        }
        wide = self.H // self.G >= _SHARED or self.cache_dtype is not self.q_dtype
        kind = self.backend, self.q_dtype, self.cache_dtype, self.D, self.softcap > 0, self.alike, wide
        announce_once("FlashInfer's paged attention", *kind)
        if self.backend == "fa2" and len(seeing.lengths) == int(seeing.starts[-1]):
            decode = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=wide, backend="fa2")
            decode.plan(*pages, *heads, **options)
            return decode
        prefill = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=self.backend)
        prefill.plan(seeing.starts, *pages, *heads, causal=self.causal, **options)
        return prefill


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
        check_rows(key_cache=key_cache, value_cache=value_cache)
        strides = key_cache.stride(), value_cache.stride()
        if backend == "fa3" and strides[0] != strides[1]:
            text = "needs the same strides of key_cache and value_cache, which fa3 computes once; these are"
            raise CannotRun(Rejection(ReasonCode.LAYOUT, f"{text} {strides[0]} and {strides[1]}", "value_cache"))
        (S, H, D), (_, P, G, _) = q.shape, key_cache.shape
        queries, factor = above_zero(q, scale)
        dtypes = q.dtype, key_cache.dtype
        form = _Form(backend, H, G, D, P, causal, factor, softcap, *dtypes, strides[0] == strides[1])
        plan = planned(form, Told(block_table, seq_lens, query_start_loc), S)

        def run(asked: tuple[Tensor, ...], y: Tensor, lse: Tensor | None) -> None:
            found = plan.wrapper.run(asked[0], (key_cache, value_cache), out=y, return_lse=lse is not None)
            if lse is not None:  # FlashInfer's is (S, H), and to base 2
                torch.mul(found[1].t(), _LN2, out=lse)

        return answered(plan, run, (queries,), return_lse=return_lse, out=out)

    return paged_attention


paged_attention = _attention_by("fa2")
paged_attention_fa3 = _attention_by("fa3")
