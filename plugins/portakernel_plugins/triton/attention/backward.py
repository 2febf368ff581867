"""The gradients of ``attention`` in Triton, without atomic additions: equal calls give equal bits.

What is summed over queries and what is summed over keys are kernels of their own, which both make the softmax's weights
anew, from the saved log-sum-exp: seven products where one kernel that adds to memory would need five.
"""

from __future__ import annotations

from torch import Tensor

from portakernel.authoring.tensors import contiguous_like
from portakernel_plugins.triton.attention.gradient_of_keys import launch_gradient_of_keys
from portakernel_plugins.triton.attention.gradient_of_queries import launch_gradient_of_queries
from portakernel_plugins.triton.attention.row_terms import row_terms
from portakernel_plugins.triton.attention.scores import scoring

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, None, Tensor | None, Tensor | None]


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alibi_slopes: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    *,
    causal: bool,
    scale: float | None,
    window: tuple[int, int],
    softcap: float,
    return_lse: bool,
    needs: tuple[bool, ...],
) -> Gradients:
    """The gradients for ``q``, ``k``, ``v``, ``bias`` and ``sinks`` that are asked for: contiguous, each rounded once.

    Arguments as in forward; ``grad_out`` and ``out``: (B, S, H, E), any strides; ``logsumexp``: (B, H, S) float32.
    """
    del return_lse
    grad_q, grad_k, grad_v = (
        contiguous_like(x) if needed else None for x, needed in zip((q, k, v), needs[:3], strict=True)
    )
    wants_bias, wants_sinks = bias is not None and needs[4], sinks is not None and needs[5]
    how = scoring(q, k, causal, scale, window, softcap)
    grad_bias = None
    if bias is not None and wants_bias:
        # where a window hides keys, no program comes by
        whole = how.left < 0 and how.right < 0
        grad_bias = bias.new_empty(bias.shape) if whole else bias.new_zeros(bias.shape)
    grad_sinks = sinks.new_zeros(sinks.shape) if sinks is not None and wants_sinks else None
    found = (grad_q, grad_k, grad_v, None, grad_bias, grad_sinks)
    if not q.shape[0] or not q.shape[1]:
        for gradient in (grad_k, grad_v):
            if gradient is not None:
                gradient.zero_()
        return found
    terms = row_terms(grad_out, q, k, v, alibi_slopes, bias, sinks if wants_sinks else None, out, logsumexp, how)
    if (grad_k is not None or grad_v is not None) and k.shape[1]:
        launch_gradient_of_keys(terms, grad_k, grad_v)
    if grad_q is not None or grad_bias is not None:
        launch_gradient_of_queries(terms, grad_q, grad_bias)
    if sinks is not None and terms.sunk is not None:
        return (*found[:5], terms.sunk.sum((0, 2)).to(sinks.dtype))
    return found
