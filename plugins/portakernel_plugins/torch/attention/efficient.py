"""``attention`` by the memory-efficient kernels that PyTorch has from xFormers (CUTLASS), from AOTriton on AMD.

Called below ``scaled_dot_product_attention``, in the contract's own layout, and with a causal mask that ends at the
last key. It has no grouped heads: the heads of a group become the queries of one head where each has one query, as in
decoding; elsewhere keys and values are repeated for them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel.authoring.tensors import is_aligned as begins_aligned
from portakernel_plugins.torch.attention.layout import (
    HIP,
    Results,
    Window,
    aligned,
    blind_queries,
    gradients,
    padded,
    returned,
)
from portakernel_plugins.torch.attention.mask import Mask, added_once
from portakernel_plugins.torch.attention.scale import above_zero
from portakernel_plugins.torch.operators import operator

_forward = operator("_efficient_attention_forward")
# What calls it for a mask that ends at the last key too is not traced: the shapes that PyTorch 2.11 to 2.13 gives its
# results are those of other arguments.
_backward_to_last_key = operator("_efficient_attention_backward")
_backward = operator("_scaled_dot_product_efficient_attention_backward")

_NO_MASK, _FROM_FIRST_KEY, _TO_LAST_KEY = 0, 1, 2
# Rows of a mask are read, and those of lse written, so many elements at a time.
_MASK_STEP, _LSE_STEP = 16, 32


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
    window: Window,
    return_lse: bool,
    out: Results | None = None,
    save: bool = False,
) -> Results:
    """``softmax(scale * q @ k.T + bias) @ v``; q: (B, S, H, D), k: (B, T, G, D), v: (B, T, G, E), all of one dtype."""
    (B, S, H, _), (G, E), wanted = q.shape, v.shape[2:], return_lse or save
    q, scale = above_zero(q, scale)
    blind = blind_queries(S, k.shape[1], causal=causal, window=window)
    # a row of -inf gives zeros, and an lse of 0
    mask = _mask(q, k, blind, bias, causal, window, find_blind=wanted or HIP)
    kind = _kind(S - blind, k.shape[1], causal and mask is None)
    q, added = q[:, blind:] if blind else q, None if mask is None else mask.added
    if grouped := G < H and S - blind == 1:
        q, added = q.reshape(B, G, H // G, -1).transpose(1, 2), None if added is None else added.view(B, G, H // G, -1)
    q, k, v = _rows(q, k, v)
    y, lse, *_ = _forward(q, k, v, added, None, None, None, None, 0.0, kind, wanted, scale=scale)
    y, lse = y if y.shape[-1] == E else y[..., :E], lse[:, :, : q.shape[1]] if wanted else None
    if grouped:
        y, lse = y.transpose(1, 2).reshape(B, 1, H, E), None if lse is None else lse.reshape(B, H, 1)
    if mask is not None:
        y, lse = mask.cleared(y), None if lse is None else mask.lowered(lse)
    return returned(y, lse, blind, out, return_lse=return_lse, save=save)


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
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
    """Gradients for ``q``, ``k``, ``v`` and ``bias``, where keys are many not equal from run to run."""
    del return_lse
    widths, heads, given = (q.shape[-1], k.shape[-1], v.shape[-1]), k.shape[2], scale
    q, scale = above_zero(q, scale)
    blind = blind_queries(q.shape[1], k.shape[1], causal=causal, window=window)
    traced = type(q) not in (Tensor, torch.nn.Parameter)
    mask = _mask(q, k, blind, bias, causal, window, traced=traced)
    kind = _kind(q.shape[1] - blind, k.shape[1], causal and mask is None)
    lse = logsumexp[:, :, blind:]
    lse = lse if mask is None else mask.raised(lse)
    q, k, v = _rows(q[:, blind:], k, v)
    S, T = q.shape[1], k.shape[1]
    lse = lse.contiguous() if HIP else torch.nn.functional.pad(lse, (0, -S % _LSE_STEP), value=math.inf)
    grad, out = (padded(x[:, blind:], v.shape[-1]).contiguous() for x in (grad_out, out))
    grad = grad if mask is None else mask.cleared(grad)
    grad = grad if mask is None or bias is None else mask.spread(grad)
    added, bias_needed = None if mask is None else mask.added, bias is not None and needs[3]
    nothing = q.new_empty((), dtype=torch.int64)  # the seed and offset of a dropout, which there is none of
    if kind == _TO_LAST_KEY:
        grad_q, grad_k, grad_v, grad_added = _backward_to_last_key(
            grad, q, k, v, added, out, None, None, S, T, lse, 0.0, nothing, nothing, kind, bias_needed, scale=scale
        )
    else:
        *by_head, out = (x.transpose(1, 2) for x in (grad, q, k, v, out))
        wanted, causal = [True, True, True, bias_needed], kind == _FROM_FIRST_KEY
        *found, grad_added = _backward(*by_head, added, out, lse, nothing, nothing, 0.0, wanted, causal, scale=scale)
        grad_q, grad_k, grad_v = (x.transpose(1, 2) for x in found)
    # the gradient of keys that were repeated is the sum over the heads that they were repeated for
    grad_k, grad_v = (x if heads == x.shape[2] else x.unflatten(2, (heads, -1)).sum(3) for x in (grad_k, grad_v))
    grad_bias = None
    if bias is not None and bias_needed:
        grad_bias = torch.nn.functional.pad(grad_added, (0, 0, blind, 0)).contiguous()
    return (*gradients((grad_q, grad_k, grad_v), widths, blind, needs[:3], given), grad_bias)


def _mask(
    q: Tensor,
    k: Tensor,
    blind: int,
    bias: Tensor | None,
    causal: bool,
    window: Window,
    *,
    find_blind: bool = True,
    traced: bool = False,
) -> Mask | None:
    """What the operator's causal mask cannot say of the queries from ``blind`` on; None where there is nothing.

    While backward is ``traced``, it cannot say that it ends at the last key.
    """
    (B, S, H, _), T = q.shape, k.shape[1]
    S -= blind
    to_last_key = traced and causal and 1 < S < T
    if bias is None and window[0] < 0 and (window[1] < 0 or causal) and not to_last_key:
        return None
    bias = bias[:, :, blind:] if bias is not None and blind else bias
    given: dict[str, Any] = {"causal": causal, "window": window, "bias": bias, "find_blind": find_blind}
    added, hidden = added_once(S, T, q.dtype, q.device, **given)
    return Mask(_stepped(added).expand(B, H, S, T), hidden)


def _stepped(added: Tensor) -> Tensor:
    """``added (..., S, T)``, or a copy, with rows that begin where the operator wants them: at multiples of a step."""
    *strides, last = added.stride()
    if last == 1 and begins_aligned(added, 16) and not any(stride % _MASK_STEP for stride in strides):
        return added
    T = added.shape[-1]
    if T % _MASK_STEP == 0:
        return added.clone(memory_format=torch.contiguous_format)
    return torch.nn.functional.pad(added.contiguous(), (0, -T % _MASK_STEP))[..., :T]


def _kind(S: int, T: int, causal: bool) -> int:
    """The operator's mask for queries of which each sees some key.

    Raises:
        CannotRun: it has none that is aligned as the contract's.
    """
    if not causal or S == 1:
        return _NO_MASK
    if S == T:
        return _FROM_FIRST_KEY
    if HIP:
        text = "its causal mask begins at the first key on AMD, and so needs S = 1 or S >= T"
        raise CannotRun(Rejection(ReasonCode.LIMIT, f"{text}; this is S = {S}, T = {T}", "S"))
    return _TO_LAST_KEY


def _rows(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in rows that it can load, keys and values once for each head."""
    repeats = q.shape[2] // k.shape[2]
    if repeats > 1:
        k, v = k.repeat_interleave(repeats, 2), v.repeat_interleave(repeats, 2)
    if HIP:
        width = max(q.shape[-1], v.shape[-1])
        q, k, v = (padded(x, width) for x in (q, k, v))
    return aligned(q), aligned(k), aligned(v)
