"""``attention_varlen`` in Triton: ``attention``'s kernels over a batch of one, whose tiles are sequences' own."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.authoring.tensors import delivered
from portakernel_plugins.triton.attention.forward import Results, Window, launch_forward
from portakernel_plugins.triton.attention.scores import scoring
from portakernel_plugins.triton.attention.sequences import Sequences


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
    given = out if isinstance(out, tuple) else (out,)
    y = q.new_empty(S, H, E) if given[0] is None else given[0]
    lse = q.new_empty(H, S, dtype=torch.float32) if return_lse else None
    logsumexp = q.new_empty(H, S, dtype=torch.float32) if save else None
    if S:
        sequences = Sequences.of(q, k, cu_seqlens_q, cu_seqlens_k, (max_seqlen_q, max_seqlen_k))
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
        how = scoring(q, k, causal, scale, window, softcap, sequences.longest)
        launch_forward(q, k, v, alibi_slopes, None, sinks, y.unsqueeze(0), lse, logsumexp, how, sequences)
    if logsumexp is not None:
        return (y, logsumexp) if lse is None else (y, lse, logsumexp)
    if lse is None:
        return y
    return (y, delivered(lse, given[1] if len(given) > 1 else None))
