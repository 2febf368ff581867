"""``attention`` by PyTorch's kernels for Apple GPUs; without a gradient."""

from __future__ import annotations

from torch import Tensor

from portakernel_plugins.torch.attention.layout import Results, Window, blind_queries, returned
from portakernel_plugins.torch.attention.mask import first_to_last
from portakernel_plugins.torch.attention.scale import above_zero
from portakernel_plugins.torch.operators import operator

_forward = operator("_scaled_dot_product_attention_math_for_mps")


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
    repeats = q.shape[2] // k.shape[2]
    if repeats > 1:
        k, v = k.repeat_interleave(repeats, 2), v.repeat_interleave(repeats, 2)
    rows = (x.contiguous().transpose(1, 2) for x in (q[:, blind:], k, v))
    y, _ = _forward(*rows, mask, 0.0, square, None, scale=scale)
    return returned(y.transpose(1, 2), None, blind, out, return_lse=False, save=False)
