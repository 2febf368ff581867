"""``attention`` of few short sequences, whose gradient PyTorch records itself: nothing of its training is in Python.

PyTorch's attention has no second derivatives. Where some are asked for (``create_graph=True``), a hook on the
operator's node gives the gradients of the formula in their place, which has all derivatives. The hook holds the
arguments as long as the graph lives, and the node itself only until backward: the kernels here are for small ones.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portakernel.authoring import ReasonCode, Rejection
from portakernel_plugins.torch.attention import math as formula
from portakernel_plugins.torch.attention.flash_cpu import heads_first
from portakernel_plugins.torch.attention.layout import blind_queries
from portakernel_plugins.torch.attention.scale import above_zero

_flash_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def check(causal: bool, S: int, T: int, D: int, E: int) -> Rejection | None:
    """Whether the operator's causal mask and widths are those of the call."""
    if causal and (1 < S != T or blind_queries(S, T, causal=True)):
        text = "its causal mask begins at the first key, and so needs S = T, or S = 1 and some key"
        return Rejection(ReasonCode.LIMIT, f"{text}; this is S = {S}, T = {T}", "S")
    if D != E:
        return Rejection(ReasonCode.LIMIT, f"needs values as wide as keys; this is D = {D}, E = {E}", "E")
    return None


def flash_cpu(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float | None, out: Tensor | None = None
) -> Tensor:
    """``softmax(scale * q @ k.T) @ v``; q: (B, S, H, D), k: (B, T, G, D), v: (B, T, G, D) in float32."""
    if scale is not None:
        q, scale = _above_zero(q, scale)
    square = causal and q.shape[1] > 1
    q, k, v = heads_first(q), heads_first(k), heads_first(v)
    y, _ = _flash_cpu(q, k, v, 0.0, square, scale=scale)
    if (node := y.grad_fn) is not None:
        node.register_hook(partial(_gradients, (q, k, v), square, scale))
    y = y.transpose(1, 2)
    return y.contiguous() if out is None else out.copy_(y)


def _above_zero(q: Tensor, scale: float) -> tuple[Tensor, float]:
    """As ``above_zero``, with queries that are made of ``q`` for autograd too where nothing of it is kept."""
    made, scale = above_zero(q, scale)
    if q.requires_grad and not made.requires_grad:
        made = torch.where(torch.zeros((), dtype=torch.bool, device=q.device), q, made)
    return made, scale


def _gradients(
    given: tuple[Tensor, ...],
    causal: bool,
    scale: float | None,
    found: tuple[Tensor | None, ...],
    grads: tuple[Tensor, ...],
) -> tuple[Tensor | None, ...] | None:
    """In the place of the gradients that the operator's node found, those of the formula; None leaves them."""
    if not torch.is_grad_enabled() or all(gradient is None for gradient in found):
        return None
    more: dict[str, Any] = dict.fromkeys(("alibi_slopes", "bias", "sinks"))
    more |= {"window": (-1, -1), "softcap": 0.0, "return_lse": False}
    y = formula.attention(*(x.transpose(1, 2) for x in given), causal=causal, scale=scale, **more)
    asked = [x for x in given if x.requires_grad]
    made = iter(torch.autograd.grad(y, asked, grads[0].transpose(1, 2), create_graph=True))
    return tuple(next(made) if x.requires_grad else None for x in given)
