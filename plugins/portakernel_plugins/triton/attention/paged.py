"""``paged_attention`` in Triton: few queries of a sequence by ``paged_decode.py``, more by ``attention``'s kernel.

In a call that may have both, both are launched, and each leaves out the other's sequences: nothing is read on the host.
"""

from __future__ import annotations

from torch import Tensor

from portakernel_plugins.triton.attention.forward import Window, launch_forward
from portakernel_plugins.triton.attention.paged_decode import MOST_SEQUENCES, launch_decode, most_queries
from portakernel_plugins.triton.attention.pages import Pages
from portakernel_plugins.triton.attention.results import Results, Written
from portakernel_plugins.triton.attention.scores import scoring
from portakernel_plugins.triton.attention.sequences import Sequences


def paged_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    kv_scales: str,
    causal: bool,
    scale: float | None,
    window: Window,
    softcap: float,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    return_lse: bool,
    out: Results | None = None,
) -> Results:
    """The contract's formula; ``q``: (S, H, D), caches (NP, P, G, D) and (NP, P, G, E) of any strides."""
    (S, H, _), (_, _, G, E) = q.shape, value_cache.shape
    written = Written.of(q, (S, H, E), (H, S), out, return_lse, save=False)
    B = len(seq_lens)
    if not (S and B):
        return written.results()
    pages = Pages.of(key_cache, value_cache, block_table, seq_lens, k_scale, v_scale, kv_scales, max_seqlen_k)
    longest = S if max_seqlen_q is None else min(S, max_seqlen_q)
    starts = query_start_loc.contiguous()
    how = scoring(q.unsqueeze(0), key_cache, causal, scale, window, softcap, (longest, pages.longest))
    few = most_queries(H // G) if B <= MOST_SEQUENCES else 0
    if few:
        launch_decode(q, pages, starts, alibi_slopes, sinks, written, how, min(few, longest))
    if longest > few:
        sequences = Sequences(starts, starts, (longest, pages.longest))
        launch_forward(
            q.unsqueeze(0), pages.keys, pages.values, alibi_slopes, None, sinks, written, how, sequences, pages, few
        )
    return written.results()
