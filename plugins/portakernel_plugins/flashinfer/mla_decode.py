"""``mla_decode`` by FlashInfer's wrapper for latent caches in pages, whose plans are made on the host (``plans``)."""
# pyright: reportMissingImports=false
# FlashInfer is an optional requirement.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from flashinfer.mla import BatchMLAPagedAttentionWrapper, MLAPlanMetadata
from torch import Tensor

from portakernel.authoring.tensors import announce_once
from portakernel_plugins.flashinfer.pages import Results, above_zero, answered, check_rows
from portakernel_plugins.flashinfer.plans import Seeing, Told, planned

Backend: TypeAlias = Literal["fa2", "fa3"]


class _Form(NamedTuple):
    """What a plan is made for beside lengths."""

    backend: Backend
    H: int
    C: int
    R: int
    P: int
    causal: bool
    scale: float
    dtype: torch.dtype
    return_lse: bool
    op: str = "mla_decode"

    def wrapper(self, seeing: Seeing, workspace: Tensor) -> Any:
        """FlashInfer's, with a plan for queries and caches in two parts each."""
        announce_once("FlashInfer's latent attention", self.backend, self.dtype)
        made = BatchMLAPagedAttentionWrapper(workspace, backend=self.backend)
        made.plan(
            metadata=MLAPlanMetadata.csr(*seeing),
            num_heads=self.H,
            head_dim_ckv=self.C,
            head_dim_kpe=self.R,
            page_size=self.P,
            causal=self.causal,
            sm_scale=self.scale,
            q_data_type=self.dtype,
            kv_data_type=self.dtype,
            query_layout="split",
            kv_cache_layout="split",
            lse_mode="basee" if self.return_lse else "none",
        )
        return made


def _attention_by(backend: Backend) -> Callable[..., Results]:
    def mla_decode(
        q_latent: Tensor,
        q_rope: Tensor,
        latent_cache: Tensor,
        rope_cache: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        query_start_loc: Tensor,
        *,
        scale: float,
        causal: bool,
        max_seqlen_q: int | None,
        max_seqlen_k: int | None,
        return_lse: bool = False,
        out: Results | None = None,
    ) -> Results:
        """Attention over latents that are key and value; ``q_latent``: (S, H, C), caches (NP, P, C or R), 16 bits.

        Raises:
            CannotRun: rows of a cache do not begin where 16 bytes are read at once.
        """
        del max_seqlen_q, max_seqlen_k  # the lengths themselves are read
        check_rows(latent_cache=latent_cache, rope_cache=rope_cache)
        latent, factor = above_zero(q_latent, scale)
        rope, _ = above_zero(q_rope, scale)
        (S, H, C), (_, P, R) = q_latent.shape, rope_cache.shape
        form = _Form(backend, H, C, R, P, causal, factor, q_latent.dtype, return_lse)
        plan = planned(form, Told(block_table, seq_lens, query_start_loc), S)

        def run(asked: tuple[Tensor, ...], y: Tensor, lse: Tensor | None) -> None:
            caches = latent_cache, rope_cache
            if lse is None:
                plan.wrapper.run(query=asked, kv_cache=caches, out=y)
            else:  # FlashInfer's is (S, H)
                named = {"return_lse": True, "return_lse_base_on_e": True}
                lse.copy_(plan.wrapper.run(query=asked, kv_cache=caches, out=y, **named)[1].t())

        return answered(plan, run, (latent, rope), return_lse=return_lse, out=out)

    return mla_decode


mla_decode = _attention_by("fa2")
mla_decode_fa3 = _attention_by("fa3")
