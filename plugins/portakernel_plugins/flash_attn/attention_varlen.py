"""``attention_varlen`` by FlashAttention-4, which reads the sequences' ends on the device."""

from __future__ import annotations

from torch import Tensor

from portakernel_plugins.flash_attn.calls import Results, Sequences, Window, forward, gradients


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
    window: Window,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    out: Results | None = None,
    save: bool = False,
) -> Results:
    """``softmax(scale * q @ k.T) @ v`` in each sequence; q: (S, H, D), k: (T, G, D), v: (T, G, E) in 16 bits."""
    return forward(
        q,
        k,
        v,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        sinks=sinks,
        return_lse=return_lse,
        out=out,
        save=save,
        sequences=Sequences(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k),
    )


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    sinks: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    *,
    causal: bool,
    scale: float | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    window: Window,
    softcap: float = 0.0,
    return_lse: bool = False,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients for ``q``, ``k``, ``v`` and ``sinks``; sequences' ends have none."""
    del return_lse
    of_q, of_k, of_v, of_sinks = gradients(
        grad_out,
        q,
        k,
        v,
        out,
        logsumexp,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        sinks=sinks,
        needs=(*needs[:3], needs[-1]),
        sequences=Sequences(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k),
    )
    return of_q, of_k, of_v, None, None, of_sinks
