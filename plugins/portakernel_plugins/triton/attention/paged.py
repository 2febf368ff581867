"""``paged_attention`` in Triton: few queries of a sequence by ``paged_decode.py``, more by a kernel for many.

In a call that may have both, both are launched, and each leaves out the other's sequences: nothing is read on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from portakernel_plugins.triton.attention.forward import Window, launch_forward
from portakernel_plugins.triton.attention.paged_decode import launch_decode, most_queries
from portakernel_plugins.triton.attention.pages import Pages
from portakernel_plugins.triton.attention.results import Results, Written
from portakernel_plugins.triton.attention.scores import Scoring, scoring
from portakernel_plugins.triton.attention.sequences import Sequences
from portakernel_plugins.triton.attention.shares import MOST_SEQUENCES


@dataclass(frozen=True, slots=True)
class Prefill:
    """What a kernel for sequences with more than ``few`` queries is launched with, ``longest`` at most.

    It may write anything for those with fewer, which are decoded after it.
    """

    q: Tensor
    pages: Pages
    starts: Tensor
    slopes: Tensor | None
    sinks: Tensor | None
    written: Written
    how: Scoring
    longest: int
    few: int


def attention_with(prefill: Callable[[Prefill], None]) -> Callable[..., Results]:
    """``paged_attention``, with ``prefill`` for sequences that have more queries than are decoded."""

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
        pages = Pages.of(key_cache, value_cache, block_table, seq_lens, k_scale, v_scale, kv_scales, max_seqlen_k)
        (S, H, _), (_, _, G, E), B = q.shape, value_cache.shape, len(seq_lens)
        longest = S if max_seqlen_q is None else min(S, max_seqlen_q)
        how = scoring(q.unsqueeze(0), key_cache, causal, scale, window, softcap, (longest, pages.longest))
        written = Written.of(q, (S, H, E), (H, S), out, return_lse, save=False)
        if not (S and B):
            return written.results()
        starts = query_start_loc.contiguous()
        few = most_queries(H // G) if B <= MOST_SEQUENCES else 0
        if longest > few:
            prefill(Prefill(q, pages, starts, alibi_slopes, sinks, written, how, longest, few))
        if few:
            launch_decode(q, pages, starts, alibi_slopes, sinks, written, how, min(few, longest))
        return written.results()

    return paged_attention


def from_pages(call: Prefill) -> None:
    """By ``attention``'s kernel, which reads keys and values where they are."""
    pages, sequences = call.pages, Sequences(call.starts, call.starts, (call.longest, call.pages.longest))
    q = call.q.unsqueeze(0)
    rest = (call.slopes, None, call.sinks, call.written, call.how, sequences, pages, call.few)
    launch_forward(q, pages.keys, pages.values, *rest)


paged_attention = attention_with(from_pages)
