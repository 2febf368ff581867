"""``attention`` by the FlashAttention-2 that PyTorch ships, from AOTriton on AMD.

Called below ``scaled_dot_product_attention``, where it keeps its own layout, which is the contract's, and its own
causal mask, which ends at the last key. AOTriton's begins at the first. PyTorch's CUDA wheels are built without its
ALiBi.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
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
from portakernel_plugins.torch.attention.scale import above_zero
from portakernel_plugins.torch.operators import operator

_forward = operator("_flash_attention_forward")
_backward = operator("_flash_attention_backward")


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    scale: float | None,
    window: Window = (-1, -1),
    return_lse: bool = False,
    out: Results | None = None,
    save: bool = False,
) -> Results:
    """``softmax(scale * q @ k.T) @ v``; q: (B, S, H, D), k: (B, T, G, D), v: (B, T, G, E) in 16 bits."""
    blind = blind_queries(q.shape[1], k.shape[1], causal=causal, window=window)
    masks = _masks(q.shape[1] - blind, k.shape[1], causal, window)
    q, scale = above_zero(q, scale)
    width, E = _width(q, v), v.shape[-1]
    q, k, v = (aligned(padded(x, width)) for x in (q[:, blind:] if blind else q, k, v))
    S, T = q.shape[1], k.shape[1]
    y, lse, *_ = _forward(q, k, v, None, None, S, T, 0.0, masks[0], False, scale=scale, **masks[1])
    return returned(y if width == E else y[..., :E], lse, blind, out, return_lse=return_lse, save=save)


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    *,
    causal: bool,
    scale: float | None,
    window: Window = (-1, -1),
    return_lse: bool = False,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients for ``q``, ``k`` and ``v``, those of q added up by atomics."""
    del return_lse
    blind = blind_queries(q.shape[1], k.shape[1], causal=causal, window=window)
    given, masks = scale, _masks(q.shape[1] - blind, k.shape[1], causal, window)
    q, scale = above_zero(q, scale)
    widths, width = (q.shape[-1], k.shape[-1], v.shape[-1]), _width(q, v)
    if blind:
        q, grad_out, out, logsumexp = q[:, blind:], grad_out[:, blind:], out[:, blind:], logsumexp[:, :, blind:]
    q, k, v = aligned(padded(q, width)), aligned(padded(k, width)), aligned(padded(v, width))
    grad, out, lse = padded(grad_out, width).contiguous(), padded(out, width).contiguous(), logsumexp.contiguous()
    S, T = q.shape[1], k.shape[1]
    found = _backward(grad, q, k, v, out, lse, None, None, S, T, 0.0, masks[0], *no_dropout(q), scale=scale, **masks[1])
    return gradients(found, widths, blind, needs, given)


def no_dropout(q: Tensor) -> tuple[Tensor, Tensor]:
    """The state of a random number generator that backward takes, and does not read where nothing is dropped."""
    if HIP:
        zero = torch.zeros((), dtype=torch.int64, device=q.device)
        return zero, zero
    state = q.new_empty(2, dtype=torch.uint64)
    return state, state


def _width(q: Tensor, v: Tensor) -> int:
    """The one head dimension that queries, keys and values are brought to."""
    width = max(q.shape[-1], v.shape[-1])
    # backward refuses what lies between on everything but sm_80, sm_90 and sm_100
    return 256 if 192 < width < 256 else width


def _masks(S: int, T: int, causal: bool, window: Window) -> tuple[bool, dict[str, int]]:
    """The operator's causal flag and window for queries of which each sees some key.

    Raises:
        CannotRun: its masks are not those of the contract here.
    """
    if causal and HIP and 1 < S < T:
        text = "its causal mask begins at the first key on AMD, and so needs S = 1 or S >= T"
        raise CannotRun(Rejection(ReasonCode.LIMIT, f"{text}; this is S = {S}, T = {T}", "S"))
    flag = causal and S > 1
    left, right = window[0], 0 if causal else window[1]
    # a window without an end is taken for one of T keys after the query
    if 0 <= left < T and not 0 <= right < T and S > T + 1:
        text = "a window that is open to the right needs S <= T + 1, because it ends T keys after the query"
        raise CannotRun(Rejection(ReasonCode.LIMIT, f"{text}; this is S = {S}, T = {T}", "window"))
    # and one that ends as far away, or further, for one without an end
    if not 0 <= left < T and T <= right < S - 1:
        text = "a window that ends T keys after the query, or later, needs S <= its end + 1"
        raise CannotRun(Rejection(ReasonCode.LIMIT, f"{text}; this is S = {S}, T = {T}, {right} keys after", "window"))
    return flag, {"window_size_left": left, "window_size_right": right} if left >= 0 or window[1] >= 0 else {}
