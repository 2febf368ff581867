"""The gradients of ``block_sparse_attention`` in Triton: ``attention``'s two kernels over lists of blocks.

What is summed over keys goes through forward's lists (``block_sparse_gradient_of_queries.py``), what is summed over
queries through the same turned round (``block_sparse_gradient_of_keys.py``).
"""

from __future__ import annotations

from torch import Tensor

from portakernel.authoring import masks
from portakernel.authoring.tensors import contiguous_like
from portakernel.authoring.triton import cdiv
from portakernel_plugins.triton.attention.block_lists import Lists
from portakernel_plugins.triton.attention.block_sparse import OP, Sparse
from portakernel_plugins.triton.attention.block_sparse_gradient_of_keys import launch_of_keys
from portakernel_plugins.triton.attention.block_sparse_gradient_of_queries import launch_of_queries
from portakernel_plugins.triton.attention.masks import Masking
from portakernel_plugins.triton.attention.row_terms import row_terms
from portakernel_plugins.triton.attention.scores import scoring

_Pair = tuple[Tensor, Tensor]


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    partial_count: Tensor,
    partial_index: Tensor,
    full_count: Tensor | None,
    full_index: Tensor | None,
    query_ids: Tensor | None,
    key_ids: Tensor | None,
    prefix: Tensor | None,
    sinks: Tensor | None,
    q_partial_count: Tensor | None,
    q_partial_index: Tensor | None,
    q_full_count: Tensor | None,
    q_full_index: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    *,
    mask: str,
    window: tuple[int, int],
    block: str,
    scale: float | None,
    softcap: float,
    return_lse: bool,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """The gradients for ``q``, ``k``, ``v`` and ``sinks`` that are asked for: contiguous, each rounded once.

    Arguments as in forward; ``grad_out`` and ``out``: (B, S, H, E), any strides; ``logsumexp``: (B, H, S) float32.
    Lists by keys are made where they are not given.
    """
    del return_lse
    grad_q, grad_k, grad_v = (
        contiguous_like(x) if needed else None for x, needed in zip((q, k, v), needs[:3], strict=True)
    )
    sunken = sinks if needs[10] else None
    grad_sinks = None if sunken is None else sunken.new_zeros(sunken.shape)
    (B, S), T = q.shape[:2], k.shape[1]
    if B and S:
        masking = Masking.of(OP, mask, query_ids, key_ids, prefix)
        how = scoring(q, k, masking.is_causal, scale, window, softcap)
        terms = row_terms(grad_out, q, k, v, None, None, sunken, out, logsumexp, how)
        sizes, full = masks.BLOCKS[block], masks.paired(OP, "full", full_count, full_index)
        if grad_q is not None:
            lists = Lists.of((partial_count, partial_index)), Lists.of(full)
            launch_of_queries(terms, Sparse(*lists, masking, how, sizes), grad_q)
        if (grad_k is not None or grad_v is not None) and T:
            blocks = cdiv(T, sizes[1])
            by_keys = masks.paired(OP, "q_partial", q_partial_count, q_partial_index)
            turned = _by_keys((partial_count, partial_index), by_keys, blocks)
            turned_full = _by_keys(full, masks.paired(OP, "q_full", q_full_count, q_full_index), blocks)
            launch_of_keys(terms, Sparse(turned, turned_full, masking, how, sizes), grad_k, grad_v)
        if sunken is not None and terms.sunk is not None:
            grad_sinks = terms.sunk.sum((0, 2)).to(sunken.dtype)
    else:
        for gradient in (grad_k, grad_v):
            if gradient is not None:
                gradient.zero_()
    return (grad_q, grad_k, grad_v, *(None,) * 7, grad_sinks, *(None,) * 4)


def _by_keys(lists: _Pair | None, by_keys: _Pair | None, blocks: int) -> Lists | None:
    """Lists by blocks of keys: those given, else the others turned round."""
    if lists is None:
        return None
    return Lists.of(masks.turned(*lists, blocks) if by_keys is None else by_keys)
