"""``attention_varlen`` by the FlashAttention-2 that PyTorch ships, which reads the sequences' ends on the device."""

from __future__ import annotations

import math

from torch import Tensor

from portakernel_plugins.torch.attention.flash import no_dropout
from portakernel_plugins.torch.attention.layout import Results, Window, aligned, gradients, padded, written
from portakernel_plugins.torch.attention.scale import above_zero
from portakernel_plugins.torch.operators import operator

_forward = operator("_flash_attention_forward")
_backward = operator("_flash_attention_backward")


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
    window: Window = (-1, -1),
    return_lse: bool = False,
    out: Results | None = None,
    save: bool = False,
) -> Results:
    """``softmax(scale * q @ k.T) @ v`` in each sequence; q: (S, H, D), k: (T, G, D), v: (T, G, E) in 16 bits."""
    E, width = v.shape[-1], _width(q, v)
    q, scale = above_zero(q, scale)
    longest = _longest(q, k, cu_seqlens_q, max_seqlen_q, max_seqlen_k, None if causal else window)
    ends = (cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous())
    q, k, v = (aligned(padded(x, width)) for x in (q, k, v))
    y, lse, *_ = _forward(q, k, v, *ends, *longest, 0.0, causal, False, scale=scale, **_window(causal, window))
    # for queries without keys it gives inf
    lse = lse.masked_fill(lse == math.inf, -math.inf) if return_lse or save else None
    return written(y[..., :E], lse, out, twice=return_lse and save)


def inference(
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
    out: Results | None = None,
) -> Results:
    """``attention`` without lse and without a gradient: AOTriton lays lse out in its own way."""
    return attention(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        causal=causal,
        scale=scale,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        out=out,
    )


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    *,
    causal: bool,
    scale: float | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    window: Window,
    return_lse: bool,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients for ``q``, ``k`` and ``v``, those of q added up by atomics."""
    del return_lse
    given, widths, width = scale, (q.shape[-1], k.shape[-1], v.shape[-1]), _width(q, v)
    q, scale = above_zero(q, scale)
    longest = _longest(q, k, cu_seqlens_q, max_seqlen_q, max_seqlen_k, None if causal else window)
    ends = (cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous())
    # with inf the weights of queries without keys are zero
    lse = logsumexp.masked_fill(logsumexp == -math.inf, math.inf)
    q, k, v = (aligned(padded(x, width)) for x in (q, k, v))
    grad, out = (padded(x, width).contiguous() for x in (grad_out, out))
    masks = _window(causal, window)
    found = _backward(grad, q, k, v, out, lse, *ends, *longest, 0.0, causal, *no_dropout(q), scale=scale, **masks)
    return (*gradients(found, widths, 0, needs[:3], given), None, None)


def _longest(
    q: Tensor,
    k: Tensor,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    window: Window | None,
) -> tuple[int, int]:
    """Bounds of the sequences' lengths: where they are not given all tokens, which costs blocks without work."""
    queries = q.shape[0] if max_seqlen_q is None else max_seqlen_q
    # one query in each sequence is taken for exactly one, which may be none
    if queries == 1 and q.shape[0] != cu_seqlens_q.shape[0] - 1:
        queries = 2
    keys = k.shape[0] if max_seqlen_k is None else max_seqlen_k
    # a window without an end is taken for one of so many keys after the query, of which the first may stand far before
    if window is not None and window[0] >= 0 and not 0 <= window[1] < keys:
        keys = max(keys, queries)
    # and one that ends so many keys after it, or more, for one without an end
    elif window is not None and 0 <= window[1] < queries - 1:
        keys = max(keys, window[1] + 1)
    return queries, keys


def _width(q: Tensor, v: Tensor) -> int:
    """The one head dimension that queries, keys and values are brought to."""
    width = max(q.shape[-1], v.shape[-1])
    # backward refuses what lies between on everything but sm_80, sm_90 and sm_100
    return 256 if 192 < width < 256 else width


def _window(causal: bool, window: Window) -> dict[str, int]:
    left, right = window[0], 0 if causal else window[1]
    return {"window_size_left": left, "window_size_right": right} if left >= 0 or window[1] >= 0 else {}
