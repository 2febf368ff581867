"""``attention`` composed of PyTorch's matrix products and softmax, with all scores in memory at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel_plugins.torch.attention.layout import Results, Window, returned
from portakernel_plugins.torch.attention.mask import hidden_keys, key_distances, may_be_blind

# Scores of one call; they take 8 GiB in float32, a few times over. What needs more is left to kernels in pieces.
_MOST_SCORES = 1 << 31
# Longer heads no model has; their scores are sums of so many terms that a rounding of one makes another softmax.
_LONG = 256


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alibi_slopes: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    causal: bool,
    scale: float | None,
    window: Window,
    softcap: float,
    return_lse: bool,
    out: Results | None = None,
) -> Results:
    """The contract's formula; q: (B, S, H, D), k: (B, T, G, D), v: (B, T, G, E).

    Scores are rounded to q's dtype, unless their lse is returned or heads are so long that scores are large; the
    softmax is float32, its weights rounded.
    """
    (B, S, H, D), (_, T, G, E) = q.shape, v.shape
    if B * H * S * T > _MOST_SCORES:
        text = f"holds all scores at once: {B * H * S * T} of them, more than {_MOST_SCORES}"
        raise CannotRun(Rejection(ReasonCode.WORKSPACE, text, "S"))
    # the queries of the heads that share a key, one after the other: no key is repeated
    queries = q.reshape(B, S, G, H // G, D).permute(0, 2, 3, 1, 4).reshape(B, G, H // G * S, D)
    keys, values = k.permute(0, 2, 3, 1), v.transpose(1, 2)
    if return_lse or D > _LONG:
        queries, keys = queries.float(), keys.float()
    scores = (queries @ keys).float().reshape(B, H, S, T) * (1.0 / math.sqrt(D) if scale is None else scale)
    if softcap != 0.0:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.detach()[:, None, None] * key_distances(S, T, q.device).abs()
    if bias is not None:
        scores = scores + bias
    hidden = hidden_keys(S, T, causal=causal, window=window, device=q.device)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[:, None, None].expand(B, H, S, 1)], -1)
    # a softmax over nothing is NaN, and would be in gradients even where it is replaced afterwards
    blind = None
    if bias is not None or may_be_blind(S, T, causal=causal, window=window):
        blind = scores.isneginf().all(-1, keepdim=True)
        scores = scores.masked_fill(blind, 0.0)
    weights = torch.softmax(scores, -1)
    if blind is not None:
        weights = weights.masked_fill(blind, 0.0)
    weights = weights[..., :T].to(q.dtype).reshape(B, G, H // G * S, T)
    y = (weights @ values).reshape(B, H, S, E).transpose(1, 2)
    lse = None
    if return_lse:
        lse = torch.logsumexp(scores.detach(), -1)
        lse = lse if blind is None else lse.masked_fill(blind.squeeze(-1), -math.inf)
    return returned(y, lse, 0, out, return_lse=return_lse, save=False)
