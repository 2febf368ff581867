"""``attention`` by oneDNN, as PyTorch calls it on Intel GPUs; without a gradient."""

from __future__ import annotations

from torch import Tensor

from portakernel_plugins.torch.attention.layout import Results, Window, aligned, blind_queries, returned
from portakernel_plugins.torch.attention.mask import first_to_last
from portakernel_plugins.torch.attention.scale import above_zero
from portakernel_plugins.torch.operators import operator

_forward = operator("_scaled_dot_product_fused_attention_overrideable")


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    scale: float | None,
    window: Window,
    out: Results | None = None,
) -> Results:
    """``softmax(scale * q @ k.T) @ v``; q: (B, S, H, D), k: (B, T, G, D), v: (B, T, G, E)."""
    q, scale = above_zero(q, scale)
    blind = blind_queries(q.shape[1], k.shape[1], causal=causal, window=window)
    square, mask = first_to_last(q[:, blind:], k, causal=causal, window=window)
    rows = (aligned(x).transpose(1, 2) for x in (q[:, blind:], k, v))
    y = _forward(*rows, mask, 0.0, square, False, scale=scale)[0]
    return returned(y.transpose(1, 2), None, blind, out, return_lse=False, save=False)
