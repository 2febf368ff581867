"""``attention`` whose gradient PyTorch records itself: nothing of its training is in Python but a look before backward.

PyTorch's attention has no second derivatives. Where some are asked for (``create_graph=True``), a hook on the
operator's node gives the gradients of the formula in their place, which has all derivatives. It makes them of what
the node saved, so that memory is freed as the operator alone would have it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from portakernel.authoring import ReasonCode, Rejection
from portakernel.authoring.tensors import dense, node_in_backward, saved_tensor_hooks
from portakernel_plugins.torch.attention import cudnn
from portakernel_plugins.torch.attention import math as formula
from portakernel_plugins.torch.attention.flash_cpu import heads_first
from portakernel_plugins.torch.attention.layout import aligned
from portakernel_plugins.torch.attention.scale import above_zero

_flash = torch.ops.aten._flash_attention_forward.default
_cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention.default
_flash_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


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
    y = _record(y, (q, k, v), _Call(2, masked, scale, dense_rows))
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
    y = _record(y, (q, k, v), _Call(1, square, scale, dense_rows_behind_heads)).transpose(1, 2)
    return y.contiguous() if out is None else out.copy_(y)


def flash_cpu(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float | None, out: Tensor | None = None
) -> Tensor:
    """``softmax(scale * q @ k.T) @ v``; q: (B, S, H, D), k: (B, T, G, D), v: (B, T, G, D) in float32."""
    q, scale = _above_zero(q, scale)
    square = causal and q.shape[1] > 1
    q, k, v = heads_first(q), heads_first(k), heads_first(v)
    y, _ = _flash_cpu(q, k, v, 0.0, square, scale=scale)
    y = _record(y, (q, k, v), _Call(1, square, scale)).transpose(1, 2)
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


class _Call(NamedTuple):
    """What a recorded call had beside its tensors."""

    heads: int  # the operator's dimension of heads, which is 2 in the contract
    causal: bool
    scale: float | None
    readable: Callable[[Tensor], Tensor] | None = None  # the gradient as the operator's backward can read it

    def gradients(self, given: tuple[Tensor, ...], needs: tuple[bool, ...], grad: Tensor) -> tuple[Tensor | None, ...]:
        """Those of the formula for ``given``, the operator's queries, keys and values; they can be differentiated."""
        more: dict[str, Any] = dict.fromkeys(("alibi_slopes", "bias", "sinks"))
        more |= {"window": (-1, -1), "softcap": 0.0, "return_lse": False}
        inputs = (x.transpose(self.heads, 2) for x in given)
        y = formula.attention(*inputs, causal=self.causal, scale=self.scale, **more)
        asked = [x for x, needed in zip(given, needs, strict=True) if needed]
        made = iter(torch.autograd.grad(y, asked, grad.transpose(self.heads, 2), create_graph=True))
        return tuple(next(made) if needed else None for needed in needs)


def _record(y: Tensor, given: tuple[Tensor, ...], call: _Call) -> Tensor:
    """``y``, whose node looks before backward whether its gradients have to be others; ``given`` is what it saved."""
    if (node := y.grad_fn) is None:
        return y
    if saved_tensor_hooks():
        apply: Callable[..., Tensor] = _Formula.apply
        return apply(call, y, *given)
    node.register_prehook(partial(_before_backward, call))
    return y


def _before_backward(call: _Call, grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...] | None:
    """The gradient as the operator reads it; where gradients are to be differentiated, has others take their place."""
    if torch.is_grad_enabled():
        node = node_in_backward()
        if not node.metadata.get(__name__):
            node.metadata[__name__] = node.register_hook(partial(_instead, call))
    first = grads[0]
    if call.readable is None or first is None:
        return None
    readable = call.readable(first)
    return None if readable is first else (readable, *grads[1:])


def _instead(
    call: _Call, found: tuple[Tensor | None, ...], grads: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...] | None:
    """In the place of the gradients that the operator's node found, those of the formula; None leaves them."""
    needs = tuple(gradient is not None for gradient in found)
    if not torch.is_grad_enabled() or not any(needs):
        return None
    node = node_in_backward()
    return call.gradients((node._saved_query, node._saved_key, node._saved_value), needs, grads[0])


class _Formula(torch.autograd.Function):
    """Chooses between the operator's gradients and the formula's where hooks for saved tensors are in force.

    Checkpoints unpack what they packed but once, and the operator's node does that itself: here it does not run where
    the formula does.
    """

    @staticmethod
    def forward(ctx: Any, call: _Call, y: Tensor, *given: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(*given)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        if not torch.is_grad_enabled():
            return None, grad, None, None, None
        return None, None, *ctx.call.gradients(ctx.saved_tensors, ctx.needs_input_grad[2:], grad)
