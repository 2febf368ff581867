"""``attention_varlen`` in Triton: ``attention``'s kernels over a batch of one, whose tiles are sequences' own."""

from __future__ import annotations

from torch import Tensor

from portakernel.authoring.tensors import contiguous_like
from portakernel_plugins.triton.attention.forward import Window, launch_forward
from portakernel_plugins.triton.attention.gradient_of_keys import launch_gradient_of_keys
from portakernel_plugins.triton.attention.gradient_of_queries import launch_gradient_of_queries
from portakernel_plugins.triton.attention.results import Results, Written
from portakernel_plugins.triton.attention.row_terms import row_terms
from portakernel_plugins.triton.attention.scores import scoring
from portakernel_plugins.triton.attention.sequences import Sequences

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None, Tensor | None]


def attention(
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

    ``q``: (S, H, D), ``k``: (T, G, D), ``v``: (T, G, E), of one dtype and any strides.
    """
    (S, H, _), E = q.shape, v.shape[2]
    written = Written.of(q, (S, H, E), (H, S), out, return_lse, save)
    if S:
        sequences = Sequences.of(q, k, cu_seqlens_q, cu_seqlens_k, (max_seqlen_q, max_seqlen_k))
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
        how = scoring(q, k, causal, scale, window, softcap, sequences.longest)
        launch_forward(q, k, v, alibi_slopes, None, sinks, written, how, sequences)
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
) -> Gradients:
    """The gradients for ``q``, ``k``, ``v`` and ``sinks`` that are asked for: contiguous, each rounded once.

    Arguments as in forward; ``grad_out`` and ``out``: (S, H, E), any strides; ``logsumexp``: (H, S) float32.
    """
    del return_lse
    grad_q, grad_k, grad_v = (
        contiguous_like(x) if needed else None for x, needed in zip((q, k, v), needs[:3], strict=True)
    )
    sunken = sinks if needs[6] else None
    if not len(q):
        for gradient in (grad_k, grad_v):
            if gradient is not None:
                gradient.zero_()
        return grad_q, grad_k, grad_v, None, None, None, None if sunken is None else sunken.new_zeros(sunken.shape)
    sequences = Sequences.of(q, k, cu_seqlens_q, cu_seqlens_k, (max_seqlen_q, max_seqlen_k))
    q, k, v, grad, out = (x.unsqueeze(0) for x in (q, k, v, grad_out, out))
    how = scoring(q, k, causal, scale, window, softcap, sequences.longest)
    terms = row_terms(grad, q, k, v, alibi_slopes, None, sunken, out, logsumexp, how, sequences)
    if (grad_k is not None or grad_v is not None) and k.shape[1]:
        launch_gradient_of_keys(terms, grad_k, grad_v)
    if grad_q is not None:
        launch_gradient_of_queries(terms, grad_q, None)
    grad_sinks = None if sunken is None or terms.sunk is None else terms.sunk.sum((0, 2)).to(sunken.dtype)
    return grad_q, grad_k, grad_v, None, None, None, grad_sinks
