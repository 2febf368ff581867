"""``attention`` by PyTorch's FlashAttention for CPUs, which computes in float32 and takes float32 masks."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel_plugins.torch.attention.layout import (
    Results,
    Window,
    blind_queries,
    gradients,
    padded,
    returned,
)
from portakernel_plugins.torch.attention.mask import Mask, make_mask
from portakernel_plugins.torch.attention.scale import above_zero
from portakernel_plugins.torch.operators import operator

_forward = operator("_scaled_dot_product_flash_attention_for_cpu")
_backward = operator("_scaled_dot_product_flash_attention_for_cpu_backward")


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alibi_slopes: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
    window: Window,
    return_lse: bool,
    out: Results | None = None,
    save: bool = False,
) -> Results:
    """``softmax(scale * q @ k.T - alibi + bias) @ v``; q: (B, S, H, D), k: (B, T, G, D), v: (B, T, G, E)."""
    (_, S, _, _), (_, T, _, width), (q, scale) = q.shape, v.shape, above_zero(q, scale)
    blind = blind_queries(S, T, causal=causal, window=window)
    mask = _mask(q, k, blind, alibi_slopes, bias, causal, window)
    # the operator's own causal mask begins at the first key
    square = causal and mask is None and S - blind > 1
    q, k, v = _rows(q[:, blind:] if blind else q, k, v)
    y, lse = _forward(q, k, v, 0.0, square, attn_mask=None if mask is None else mask.added, scale=scale)
    y = y.transpose(1, 2)
    if y.shape[-1] > width:
        y = y[..., :width]
    if mask is not None:
        y, lse = mask.cleared(y), mask.lowered(lse)
    return returned(y, lse, blind, out, return_lse=return_lse, save=save)


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alibi_slopes: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    *,
    causal: bool,
    scale: float | None,
    window: Window,
    return_lse: bool,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients for ``q``, ``k``, ``v`` and ``bias``; None for ``alibi_slopes``.

    Of 16-bit inputs in float32: the operator rounds those of keys and values each time it adds to them, once for every
    block of queries and every head, and takes up to 20 times as long for float16 (torch 2.13, an EPYC, 2026-11-23).
    """
    del return_lse
    dtype = q.dtype
    given, widths, (q, scale) = scale, (q.shape[-1], k.shape[-1], v.shape[-1]), above_zero(q, scale)
    blind = blind_queries(q.shape[1], k.shape[1], causal=causal, window=window)
    mask = _mask(q, k, blind, alibi_slopes, bias, causal, window)
    square = causal and mask is None and q.shape[1] - blind > 1
    lse = logsumexp[:, :, blind:]
    lse = (lse if mask is None else mask.raised(lse)).contiguous()
    q, k, v = _rows(q[:, blind:].float(), k.float(), v.float())
    width = q.shape[-1]
    grad_out = grad_out[:, blind:] if bias is None or mask is None else mask.spread(grad_out[:, blind:])
    grad, out = (padded(x.float(), width).contiguous().transpose(1, 2) for x in (grad_out, out[:, blind:]))
    added = None if mask is None else mask.added
    found = _backward(grad, q, k, v, out, lse, 0.0, square, attn_mask=added, scale=scale)
    found = gradients(tuple(part.transpose(1, 2).to(dtype) for part in found), widths, blind, needs[:3], given)
    grad_bias = None
    if bias is not None and needs[4] and mask is not None:
        grad_bias = bias.new_zeros(bias.shape)
        grad_bias[:, :, blind:] = _score_gradient(grad, q, k, v, out, lse, mask, scale)
    return (*found, None, grad_bias)


def _mask(
    q: Tensor,
    k: Tensor,
    blind: int,
    alibi_slopes: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    window: Window,
) -> Mask | None:
    """What the operator's causal mask cannot say of the queries from ``blind`` on; None where there is nothing."""
    (B, S, H, _), T = q.shape, k.shape[1]
    S -= blind
    limited = window[0] >= 0 or (window[1] >= 0 and not causal)
    if alibi_slopes is None and bias is None and not limited and not (causal and 1 < S < T):
        return None
    return make_mask(
        (B, H, S, T),
        torch.float32,
        q.device,
        causal=causal,
        window=window,
        bias=None if bias is None else bias[:, :, blind:],
        alibi_slopes=alibi_slopes,
    )


def _rows(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """As (B, H, S, D), all equally wide."""
    widths = q.shape[-1], v.shape[-1]
    if widths[0] != widths[1]:
        q, k, v = (padded(x, max(widths)) for x in (q, k, v))
    return heads_first(q), heads_first(k), heads_first(v)


def heads_first(x: Tensor) -> Tensor:
    """``x (B, S, H, D)`` as ``(B, H, S, D)``; the operator takes the last dimension for dense, whether it is or not."""
    return (x if x.stride(-1) == 1 else x.contiguous()).transpose(1, 2)


def _score_gradient(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Mask, scale: float
) -> Tensor:
    """The gradient of the scores ``(B, H, S, T)``, and so of the bias; the operator keeps it to itself."""
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = torch.add(mask.added, q @ k.transpose(-1, -2), alpha=scale)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return weights * (grad @ v.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True))
