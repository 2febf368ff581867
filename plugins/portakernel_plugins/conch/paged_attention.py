"""``paged_attention`` by vLLM's unified kernel, as Conch carries it: the published Triton kernel, of two dimensions."""
# pyright: reportMissingImports=false
# Conch is an optional requirement.

from __future__ import annotations

from conch.third_party.vllm.unified_attention import unified_attention
from torch import Tensor

from portakernel.authoring import ReasonCode, Rejection
from portakernel.authoring.tensors import delivered, dense, room


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
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    out: Tensor | None = None,
) -> Tensor:
    """``attention`` of each sequence over its pages, causal; q: (S, H, D), caches (NP, P, G, D) of any strides."""
    y = room(q, out)
    if y.numel() and len(seq_lens):
        tokens, room_of_keys = q.shape[0], block_table.shape[1] * key_cache.shape[1]
        unified_attention(
            dense(q),
            key_cache,
            value_cache,
            y,
            query_start_loc.contiguous(),
            tokens if max_seqlen_q is None else max_seqlen_q,
            seq_lens.contiguous(),
            room_of_keys if max_seqlen_k is None else max_seqlen_k,
            q.shape[-1] ** -0.5 if scale is None else scale,
            causal,
            (-1, -1),
            dense(block_table),
            0.0,
            None,
            None,
            None,
        )
    return delivered(y, out)


def check(D: int, E: int, H: int, G: int) -> Rejection | None:
    """Whether keys and values are of one width, and the queries of a key head a part of a block of 16."""
    if D != E:
        return Rejection(ReasonCode.LIMIT, f"needs D = E; this is D = {D}, E = {E}", "E")
    if (group := H // max(G, 1)) not in (1, 2, 4, 8, 16):
        return Rejection(ReasonCode.LIMIT, f"needs H / G of 1, 2, 4, 8 or 16, parts of a block; this is {group}", "H")
    return None
