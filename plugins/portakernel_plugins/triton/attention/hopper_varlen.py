"""``attention_varlen`` for Hopper: ``attention``'s kernels over a batch of one, whose tiles are sequences' own."""

from __future__ import annotations

from torch import Tensor

from portakernel_plugins.triton.attention.forward import Window
from portakernel_plugins.triton.attention.hopper import launch_hopper
from portakernel_plugins.triton.attention.hopper_gradients import launch_gradients
from portakernel_plugins.triton.attention.results import Results, Written
from portakernel_plugins.triton.attention.scores import scoring
from portakernel_plugins.triton.attention.sequences import Sequences


def attention_hopper(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    causal: bool,
    scale: float | None,
    window: Window,
    softcap: float,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    return_lse: bool,
    out: Results | None = None,
    save: bool = False,
) -> Results:
    """The contract's formula; with ``save`` the log-sum-exp ``(H, S)`` too.

    ``q``: (S, H, D), ``k`` and ``v``: (T, G, D), of one dtype; strides that the copy engine cannot follow are copied.
    """
    S, H, D = q.shape
    written = Written.of(q, (S, H, D), (H, S), out, return_lse, save)
    if S:
        sequences = Sequences.of(q, k, cu_seqlens_q, cu_seqlens_k, (max_seqlen_q, max_seqlen_k))
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
        how = scoring(q, k, causal, scale, window, softcap, sequences.longest)
        launch_hopper(q, k, v, alibi_slopes, sinks, written, how, sequences)
    return written.results()


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    *,
    causal: bool,
    scale: float | None,
    window: Window,
    softcap: float,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    return_lse: bool,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """The gradients for ``q``, ``k``, ``v`` and ``sinks`` that are asked for, each rounded once.

    Those for ``q`` are sums in no fixed order.

    ``grad_out`` and ``out``: (S, H, D), any strides; ``logsumexp``: (H, S) float32.
    """
    del return_lse
    sequences = Sequences.of(q, k, cu_seqlens_q, cu_seqlens_k, (max_seqlen_q, max_seqlen_k))
    q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    how = scoring(q, k, causal, scale, window, softcap, sequences.longest)
    sunken = sinks if needs[6] else None
    *of_rows, grad_sinks = launch_gradients(
        grad_out.unsqueeze(0), q, k, v, alibi_slopes, sunken, out.unsqueeze(0), logsumexp, how, needs[:3], sequences
    )
    grad_q, grad_k, grad_v = (x if x is None else x.squeeze(0) for x in of_rows)
    return grad_q, grad_k, grad_v, None, None, None, grad_sinks
