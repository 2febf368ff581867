"""``attention_varlen`` by the memory-efficient kernels that PyTorch has from xFormers (CUTLASS); without a gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel_plugins.torch.attention.layout import aligned
from portakernel_plugins.torch.attention.scale import above_zero
from portakernel_plugins.torch.operators import operator

_forward = operator("_efficient_attention_forward")

_NO_MASK, _TO_LAST_KEY = 0, 2


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    causal: bool,
    scale: float | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    out: Tensor | None = None,
) -> Tensor:
    """``softmax(scale * q @ k.T) @ v`` in each sequence; q: (S, H, D), k: (T, G, D), v: (T, G, E), all of one dtype."""
    (S, H, _), T = q.shape, k.shape[0]
    q, scale = above_zero(q, scale)
    blind = _blind(cu_seqlens_q, cu_seqlens_k, S, causal)
    repeats = H // k.shape[1]
    if repeats > 1:
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    rows = (aligned(x).unsqueeze(0) for x in (q, k, v))
    ends = (cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous())
    longest = (S if max_seqlen_q is None else max_seqlen_q, T if max_seqlen_k is None else max_seqlen_k)
    kind = _TO_LAST_KEY if causal else _NO_MASK
    y = _forward(*rows, None, *ends, *longest, 0.0, kind, False, scale=scale)[0].squeeze(0)
    # what it gives for a query without keys is a quotient of zeros
    y = y.masked_fill(blind[:, None, None], 0.0)
    return y if out is None else out.copy_(y)


def _blind(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, S: int, causal: bool) -> Tensor:
    """Which queries ``(S,)`` see no key, found on the device."""
    ends, query = cu_seqlens_q[1:].contiguous(), torch.arange(S, dtype=torch.int32, device=cu_seqlens_q.device)
    # no more than the last, for what belongs to no sequence
    sequence = torch.searchsorted(ends, query, right=True).clamp(max=len(ends) - 1)
    keys = cu_seqlens_k.diff()[sequence]
    # under a causal mask the last query, with one to go, stands at the last key
    return ends[sequence] - query > keys if causal else keys == 0
