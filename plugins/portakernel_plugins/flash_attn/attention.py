"""``attention`` by FlashAttention-4."""

from __future__ import annotations

from torch import Tensor

from portakernel_plugins.flash_attn.calls import Results, Window, forward, gradients


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    scale: float | None,
    window: Window,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    out: Results | None = None,
    save: bool = False,
) -> Results:
    """``softmax(scale * q @ k.T) @ v``; q: (B, S, H, D), k: (B, T, G, D), v: (B, T, G, E) in 16 bits, sinks: (H,)."""
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
    )


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    *,
    causal: bool,
    scale: float | None,
    window: Window,
    softcap: float = 0.0,
    return_lse: bool = False,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients for ``q``, ``k``, ``v`` and ``sinks``."""
    del return_lse
    return gradients(
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
        needs=needs,
    )
