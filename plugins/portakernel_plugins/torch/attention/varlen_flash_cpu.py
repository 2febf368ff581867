"""``attention_varlen`` by PyTorch's FlashAttention for CPUs, one sequence after the other."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from portakernel.authoring.tensors import sequence_ends
from portakernel_plugins.torch.attention.flash_cpu import attention as one_sequence
from portakernel_plugins.torch.attention.layout import Results, Window, written


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    alibi_slopes: Tensor | None,
    causal: bool,
    scale: float | None,
    window: Window,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    return_lse: bool = False,
    out: Results | None = None,
) -> Results:
    """``attention`` of each sequence; q: (S, H, D), k: (T, G, D), v: (T, G, E)."""
    del max_seqlen_q, max_seqlen_k
    (S, H, _), E = q.shape, v.shape[-1]
    y, lse = q.new_zeros((S, H, E)), q.new_full((H, S), -torch.inf, dtype=torch.float32)
    of_queries = sequence_ends("attention_varlen", "cu_seqlens_q", cu_seqlens_q, S, "S")
    of_keys = sequence_ends("attention_varlen", "cu_seqlens_k", cu_seqlens_k, k.shape[0], "T")
    for (a, b), (c, d) in zip(pairwise(of_queries), pairwise(of_keys), strict=True):
        if a < b and c < d:
            one_sequence(
                q[None, a:b],
                k[None, c:d],
                v[None, c:d],
                alibi_slopes=alibi_slopes,
                bias=None,
                causal=causal,
                scale=scale,
                window=window,
                return_lse=True,
                out=(y[None, a:b], lse[None, :, a:b]),
            )
    return written(y, lse if return_lse else None, out, twice=False)
