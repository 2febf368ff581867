"""``attention_varlen`` and its gradient: ``attention``'s formulas for one sequence after the other.

Reading the lengths waits for the device.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from portakernel.references import attention
from portakernel.tensors.index_values import sequence_ends

Window = tuple[int, int]


def _sequences(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, q: Tensor, k: Tensor) -> list[tuple[slice, slice]]:
    """Where each sequence has its queries and its keys."""
    of_queries = sequence_ends("attention_varlen", "cu_seqlens_q", cu_seqlens_q, q.shape[0], "S")
    of_keys = sequence_ends("attention_varlen", "cu_seqlens_k", cu_seqlens_k, k.shape[0], "T")
    ends = zip(pairwise(of_queries), pairwise(of_keys), strict=True)
    return [(slice(*queries), slice(*keys)) for queries, keys in ends]


def _batch(tensor: Tensor, tokens: slice) -> Tensor:
    """One sequence as a batch of one."""
    return tensor[tokens].unsqueeze(0)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: Window = (-1, -1),
    softcap: float = 0.0,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    out: Tensor | tuple[Tensor, ...] | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """``out (S, H, E)``, rounded once; ``lse (H, S)`` too where it is returned, and once more when ``save``."""
    del max_seqlen_q, max_seqlen_k
    (S, H, _), E = q.shape, v.shape[-1]
    given = out if isinstance(out, tuple) else (out,)
    y = q.new_zeros((S, H, E)) if given[0] is None else given[0]
    lse = (
        given[1]
        if return_lse and len(given) > 1
        else q.new_zeros((H, S), dtype=torch.promote_types(q.dtype, torch.float32))
    )
    for queries, keys in _sequences(cu_seqlens_q, cu_seqlens_k, q, k):
        attention.forward(
            _batch(q, queries),
            _batch(k, keys),
            _batch(v, keys),
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            causal=causal,
            scale=scale,
            window=window,
            softcap=softcap,
            return_lse=True,
            out=(_batch(y, queries), lse[:, queries].unsqueeze(0)),
        )
    if save:
        return (y, lse, lse.clone()) if return_lse else (y, lse)
    fresh = (y, lse) if return_lse else y
    return fresh if out is None else out


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
    lse: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: Window = (-1, -1),
    softcap: float = 0.0,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    needs: tuple[bool, ...] = (True,) * 7,
) -> tuple[Tensor | None, ...]:
    """Gradients for ``q``, ``k``, ``v`` and ``sinks`` from that of ``out``; None for the other arguments."""
    del max_seqlen_q, max_seqlen_k, return_lse
    grad_q, grad_k, grad_v = (
        tensor.new_zeros(tensor.shape) if needed else None for tensor, needed in zip((q, k, v), needs, strict=False)
    )
    # a sum over sequences: kept wide, and rounded once at the end
    wide_sinks = None if sinks is None else sinks.to(torch.promote_types(sinks.dtype, torch.float32))
    grad_sinks = torch.zeros_like(wide_sinks) if wide_sinks is not None and needs[6] else None
    for queries, keys in _sequences(cu_seqlens_q, cu_seqlens_k, q, k):
        found = attention.backward(
            _batch(grad_out, queries),
            _batch(q, queries),
            _batch(k, keys),
            _batch(v, keys),
            alibi_slopes,
            None,
            wide_sinks,
            _batch(out, queries),
            lse[:, queries].unsqueeze(0),
            causal=causal,
            scale=scale,
            window=window,
            softcap=softcap,
            needs=(*needs[:3], False, False, needs[6]),
        )
        for gradient, tokens, part in ((grad_q, queries, found[0]), (grad_k, keys, found[1]), (grad_v, keys, found[2])):
            if gradient is not None and part is not None:
                gradient[tokens] = part.squeeze(0)
        if grad_sinks is not None and found[5] is not None:
            grad_sinks = grad_sinks + found[5]
    rounded = None if grad_sinks is None or sinks is None else grad_sinks.to(sinks.dtype)
    return grad_q, grad_k, grad_v, None, None, None, rounded


def gradient_roundings(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    out: Tensor,
    lse: Tensor,
    *,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    **more: Any,
) -> tuple[Tensor | None, ...]:
    """``attention.gradient_roundings`` for each sequence."""
    del max_seqlen_q, max_seqlen_k
    of_q, of_k, of_v = (torch.zeros_like(x, dtype=torch.float64) for x in (q, k, v))
    of_sinks = None if sinks is None else torch.zeros_like(sinks, dtype=torch.float64)
    for queries, keys in _sequences(cu_seqlens_q, cu_seqlens_k, q, k):
        found = attention.gradient_roundings(
            _batch(grad_out, queries),
            _batch(q, queries),
            _batch(k, keys),
            _batch(v, keys),
            alibi_slopes,
            None,
            sinks,
            _batch(out, queries),
            lse[:, queries].unsqueeze(0),
            **more,
        )
        for whole, tokens, part in ((of_q, queries, found[0]), (of_k, keys, found[1]), (of_v, keys, found[2])):
            if part is not None:
                whole[tokens] = part.squeeze(0)
        if of_sinks is not None and found[5] is not None:
            of_sinks = torch.hypot(of_sinks, found[5])
    return of_q, of_k, of_v, None, None, None, of_sinks


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    **more: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """``attention.plain`` for each sequence."""
    del max_seqlen_q, max_seqlen_k
    # of no sequences at all too, the results are ones that autograd knows
    sequences = _sequences(cu_seqlens_q, cu_seqlens_k, q, k) or [(slice(0, 0), slice(0, 0))]
    found = [
        attention.plain(_batch(q, queries), _batch(k, keys), _batch(v, keys), return_lse=True, **more)
        for queries, keys in sequences
    ]
    y = torch.cat([part for part, _ in found], 1).squeeze(0)
    return (y, torch.cat([part for _, part in found], 2).squeeze(0)) if return_lse else y


def output_magnitudes(*tensors: Tensor, return_lse: bool = False, **more: Any) -> tuple[Tensor, ...]:
    """For ``out`` and, where it is returned, ``lse`` what float32's rounding errors are in proportion to."""
    return _magnitudes(*tensors, **more)[: 1 + return_lse]


def saved_magnitudes(*tensors: Tensor, return_lse: bool = False, **more: Any) -> tuple[Tensor]:
    """That for ``lse``."""
    del return_lse
    return (_magnitudes(*tensors, **more)[1],)


def _magnitudes(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **more: Any
) -> tuple[Tensor, Tensor]:
    """Those of ``attention`` for each sequence: of ``out (S, H, E)`` and ``lse (H, S)``."""
    lengths = ("max_seqlen_q", "max_seqlen_k")
    more = {name: value for name, value in more.items() if name not in lengths}
    of_out = q.new_zeros((*q.shape[:2], v.shape[-1]), dtype=torch.float64)
    of_lse = q.new_ones((q.shape[1], q.shape[0]), dtype=torch.float64)
    for queries, keys in _sequences(cu_seqlens_q, cu_seqlens_k, q, k):
        tensors = _batch(q, queries), _batch(k, keys), _batch(v, keys)
        out, lse = attention.output_magnitudes(*tensors, return_lse=True, **more)
        of_out[queries], of_lse[:, queries] = out.squeeze(0), lse.squeeze(0)
    return of_out, of_lse
