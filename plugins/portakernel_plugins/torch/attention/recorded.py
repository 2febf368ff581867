"""``attention`` whose gradient PyTorch records itself: nothing of its training is in Python but a look before backward.

PyTorch's attention has no second derivatives: where some are asked for, gradients are the formula's
(``formula_gradients``). Its backward reads a gradient at any address as vectors of 16 bytes, which ends the process
where that is odd, and cuDNN's one takes the gradient's layout for the result's, without a word (H200, torch 2.11).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portakernel.authoring import ReasonCode, Rejection
from portakernel.authoring.tensors import dense
from portakernel_plugins.torch.attention import cudnn
from portakernel_plugins.torch.attention import math as formula
from portakernel_plugins.torch.attention.flash_cpu import heads_first
from portakernel_plugins.torch.attention.layout import aligned
from portakernel_plugins.torch.attention.scale import above_zero
from portakernel_plugins.torch.formula_gradients import Formula, attached
from portakernel_plugins.torch.operators import operator

_SAVED = ("_saved_query", "_saved_key", "_saved_value")

_flash = operator("_flash_attention_forward")
_cudnn = operator("_scaled_dot_product_cudnn_attention")
_flash_cpu = operator("_scaled_dot_product_flash_attention_for_cpu")


def check_flash(causal: bool, S: int, T: int, D: int, E: int) -> Rejection | None:
    """Whether every query sees some key, and values are as wide as keys."""
    if causal and S > T:
        return Rejection(ReasonCode.LIMIT, f"needs S <= T where it is causal; this is S = {S}, T = {T}", "S")
    return _check_widths(D, E)


def check_cudnn(causal: bool, S: int, T: int) -> Rejection | None:
    """Whether the operator's causal mask is that of the call, and its cuDNN one whose results are right."""
    return _check_square(causal, S, T) or cudnn.check(causal)


def check_flash_cpu(causal: bool, S: int, T: int, D: int, E: int) -> Rejection | None:
    """Whether the operator's causal mask and widths are those of the call."""
    return _check_square(causal, S, T) or _check_widths(D, E)


def _check_square(causal: bool, S: int, T: int) -> Rejection | None:
    if causal and 1 < S != T:
        text = "its causal mask begins at the first key, and so needs S = T, or S = 1"
        return Rejection(ReasonCode.LIMIT, f"{text}; this is S = {S}, T = {T}", "S")
    return None


def _check_widths(D: int, E: int) -> Rejection | None:
    if D != E:
        return Rejection(ReasonCode.LIMIT, f"needs values as wide as keys; this is D = {D}, E = {E}", "E")
    return None


def flash(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float | None, out: Tensor | None = None) -> Tensor:
    """``softmax(scale * q @ k.T) @ v``; q: (B, S, H, D), k: (B, T, G, D), v: (B, T, G, D) in 16 bits."""
    q, scale = _above_zero(q, scale)
    masked = causal and q.shape[1] > 1
    q, k, v = aligned(q), aligned(k), aligned(v)
    y, *_ = _flash(q, k, v, None, None, q.shape[1], k.shape[1], 0.0, masked, False, scale=scale)
    y = attached(y, (q, k, v), Formula(partial(_formula, 2, masked, scale), _SAVED, dense_rows))
    return y if out is None else out.copy_(y)


def cudnn_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float | None, out: Tensor | None = None
) -> Tensor:
    """``softmax(scale * q @ k.T) @ v``; q: (B, S, H, D), k: (B, T, G, D), v: (B, T, G, E) in 16 bits."""
    q, scale = _above_zero(q, scale)
    square = causal and q.shape[1] > 1
    # all with heads behind queries, as its backward computes the layout of all from that of q
    q, k, v = cudnn.rowwise(q), cudnn.rowwise(k), cudnn.rowwise(v)
    y, *_ = _cudnn(q, k, v, None, True, 0.0, square, False, scale=scale)
    known = Formula(partial(_formula, 1, square, scale), _SAVED, dense_rows_behind_heads)
    y = attached(y, (q, k, v), known).transpose(1, 2)
    return y.contiguous() if out is None else out.copy_(y)


def flash_cpu(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float | None, out: Tensor | None = None
) -> Tensor:
    """``softmax(scale * q @ k.T) @ v``; q: (B, S, H, D), k: (B, T, G, D), v: (B, T, G, D) in float32."""
    q, scale = _above_zero(q, scale)
    square = causal and q.shape[1] > 1
    q, k, v = heads_first(q), heads_first(k), heads_first(v)
    y, _ = _flash_cpu(q, k, v, 0.0, square, scale=scale)
    y = attached(y, (q, k, v), Formula(partial(_formula, 1, square, scale), _SAVED)).transpose(1, 2)
    return y.contiguous() if out is None else out.copy_(y)


def _above_zero(q: Tensor, scale: float | None) -> tuple[Tensor, float | None]:
    """As ``above_zero``, with queries that are made of ``q`` for autograd too where nothing of it is kept."""
    if scale is None:
        return q, None
    made, scale = above_zero(q, scale)
    if q.requires_grad and not made.requires_grad:
        made = torch.where(torch.zeros((), dtype=torch.bool, device=q.device), q, made)
    return made, scale


def dense_rows(grad: Tensor) -> Tensor:
    """``grad (B, S, H, D)``, or a copy where it has gaps, or vector loads could not read it."""
    return dense(grad, 16)


def dense_rows_behind_heads(grad: Tensor) -> Tensor:
    """The same of ``grad (B, H, S, D)``, where a query's heads are to lie side by side."""
    rows = grad.transpose(1, 2)
    made = dense(rows, 16)
    return grad if made is rows else made.transpose(1, 2)


def _formula(heads: int, causal: bool, scale: float | None, *given: Tensor) -> Tensor:
    """What the operator computes of its queries, keys and values; ``heads`` is its dimension of heads, here 2."""
    more: dict[str, Any] = dict.fromkeys(("alibi_slopes", "bias", "sinks"))
    more |= {"window": (-1, -1), "softcap": 0.0, "return_lse": False}
    inputs = (x.transpose(heads, 2) for x in given)
    y: Any = formula.attention(*inputs, causal=causal, scale=scale, **more)
    laid: Tensor = y.transpose(heads, 2)
    return laid
