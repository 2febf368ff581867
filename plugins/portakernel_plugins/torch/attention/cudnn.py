"""``attention`` by cuDNN, as ``scaled_dot_product_attention`` calls it.

cuDNN plans each shape when it comes for the first time, which takes longer than many calls: not for decoding, where
there is one more key each time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel.authoring.tensors import is_aligned as begins_aligned
from portakernel_plugins.torch.attention.layout import (
    Results,
    aligned,
    blind_queries,
    gradients,
    returned,
)
from portakernel_plugins.torch.attention.mask import Mask, added_once, distinct
from portakernel_plugins.torch.attention.scale import above_zero
from portakernel_plugins.torch.operators import operator

_forward = operator("_scaled_dot_product_cudnn_attention")
_backward = operator("_scaled_dot_product_cudnn_attention_backward")

# The first without wrong results where a sequence is no multiple of 128 (pytorch/pytorch#169849).
_FIRST_RIGHT = 91501


def check(causal: bool) -> Rejection | None:
    """Whether the cuDNN that PyTorch found is one whose results are right."""
    del causal  # a check reads something; calls are told apart by it, so that what is refused to one is not to others
    cudnn: Any = torch.backends.cudnn
    version = cudnn.version() if cudnn.is_available() else None
    if version is None:
        return Rejection(ReasonCode.MISSING_LIBRARY, "needs cuDNN, which PyTorch does not find", "cudnn")
    if version < _FIRST_RIGHT:
        text = f"needs cuDNN {_shown(_FIRST_RIGHT)} or later; this is {_shown(version)}"
        return Rejection(ReasonCode.MISSING_LIBRARY, text, "cudnn")
    return None


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    scale: float | None,
    return_lse: bool,
    out: Results | None = None,
    save: bool = False,
) -> Results:
    """``softmax(scale * q @ k.T) @ v``; q: (B, S, H, D), k: (B, T, G, D), v: (B, T, G, E) in 16 bits."""
    blind = blind_queries(q.shape[1], k.shape[1], causal=causal)
    square = _square(q.shape[1] - blind, k.shape[1], causal)
    q, scale = above_zero(q, scale)
    q, k, v = _laid(q[:, blind:] if blind else q), _laid(k), _laid(v)
    y, lse, *_ = _forward(q, k, v, None, return_lse or save, 0.0, square, False, scale=scale)
    # one number for each query, in three dimensions or in four
    lse = lse.reshape(q.shape[:3]) if return_lse or save else None
    return returned(y.transpose(1, 2), lse, blind, out, return_lse=return_lse, save=save)


def biased(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
    return_lse: bool,
    out: Results | None = None,
    save: bool = False,
) -> Results:
    """``softmax(scale * q @ k.T + bias) @ v``; bias: (B, H, S, T) in the dtype of q."""
    if bias is None:
        return attention(q, k, v, causal=causal, scale=scale, return_lse=return_lse, out=out, save=save)
    q, scale = above_zero(q, scale)
    q, k, v = _laid(q), _laid(k), _laid(v)
    y, lse, *_ = _forward(q, k, v, _rows(bias), return_lse or save, 0.0, False, False, scale=scale)
    lse = lse.reshape(q.shape[:3]) if return_lse or save else None
    return returned(y.transpose(1, 2), lse, 0, out, return_lse=return_lse, save=save)


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
    return_lse: bool,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients for ``q``, ``k`` and ``v``, not equal from run to run."""
    del return_lse
    blind = blind_queries(q.shape[1], k.shape[1], causal=causal)
    square = _square(q.shape[1] - blind, k.shape[1], causal)
    if blind:
        grad_out, q, out, logsumexp = grad_out[:, blind:], q[:, blind:], out[:, blind:], logsumexp[:, :, blind:]
    found = _gradients((grad_out, q, k, v, out), logsumexp, None, square, scale)
    return gradients(found, (q.shape[-1], k.shape[-1], v.shape[-1]), blind, needs, scale)


def biased_backward(
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
    return_lse: bool,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients for ``q``, ``k``, ``v`` and ``bias``.

    The last is made by the formula itself, in a few float32 tensors of ``(B, H, S, T)``.
    """
    if bias is None:
        given: dict[str, Any] = {"causal": causal, "scale": scale, "return_lse": return_lse, "needs": needs[:3]}
        return (*backward(grad_out, q, k, v, out, logsumexp, **given), None)
    mask = Mask(*added_once(q.shape[1], k.shape[1], q.dtype, q.device, causal=False, window=(-1, -1), bias=bias))
    grad_out, lse = mask.spread(mask.cleared(grad_out)), mask.raised(logsumexp)
    found = _gradients((grad_out, q, k, v, out), lse, _rows(mask.added), False, scale)
    grad_bias = _bias_gradient(grad_out, q, k, v, mask.added, out, lse, scale) if needs[3] else None
    return (*gradients(found, (q.shape[-1], k.shape[-1], v.shape[-1]), 0, needs[:3], scale), grad_bias)


def _gradients(
    parts: tuple[Tensor, ...], lse: Tensor, bias: Tensor | None, square: bool, scale: float | None
) -> tuple[Tensor | None, ...]:
    """The operator's gradients of ``q``, ``k`` and ``v``, from ``grad_out, q, k, v, out``; each ``(B, S, H, D)``."""
    grad, q, k, v, out = parts
    q, scale = above_zero(q, scale)
    # all with heads behind queries, as it computes the layout of all from that of q
    q, k, v = rowwise(q), rowwise(k), rowwise(v)
    grad, out = _dense(grad).transpose(1, 2), _dense(out).transpose(1, 2)
    lse, (S, T) = lse.contiguous().unsqueeze(-1), (q.shape[2], k.shape[2])
    nothing = q.new_empty((), dtype=torch.int64)  # the seed and offset of a dropout, which there is none of
    found = _backward(grad, q, k, v, out, lse, nothing, nothing, bias, None, None, S, T, 0.0, square, scale=scale)
    return tuple(gradient.transpose(1, 2) for gradient in found)


def _bias_gradient(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, out: Tensor, lse: Tensor, scale: float | None
) -> Tensor:
    """``p * (grad @ v.T - rowsum(grad * out))`` with the weights ``p``, as ``bias`` in shape ``(B, H, S, T)``."""
    factor: float = q.shape[-1] ** -0.5 if scale is None else scale
    wide = [x.transpose(1, 2).float() for x in (grad, q, k, v, out)]
    grad, q, k, v, out = (x.repeat_interleave(q.shape[2] // x.shape[1], 1) for x in wide)
    weights = torch.exp(q @ k.mT * factor + bias.float() - lse.unsqueeze(-1))
    return (weights * (grad @ v.mT - (grad * out).sum(-1, keepdim=True))).to(bias.dtype)


def _laid(x: Tensor) -> Tensor:
    """``x (B, S, H, D)`` as ``(B, H, S, D)``, a copy where its strides would be refused."""
    heads_first = x.transpose(1, 2)
    if x.is_contiguous() or heads_first.is_contiguous():
        return heads_first if begins_aligned(x, 16) else aligned(x).transpose(1, 2)
    return heads_first if _is_read(x) else x.contiguous().transpose(1, 2)


def rowwise(x: Tensor) -> Tensor:
    """``x (B, S, H, D)`` as ``(B, H, S, D)``, a copy where a query's heads do not lie side by side."""
    if x.is_contiguous():
        return (x if begins_aligned(x, 16) else x.clone()).transpose(1, 2)
    lies_so = x.stride(1) >= x.stride(2) and _is_read(x)
    return (x if lies_so else _dense(x)).transpose(1, 2)


def _dense(x: Tensor) -> Tensor:
    """``x (B, S, H, D)``, or a copy where it has gaps, or vector loads could not read it."""
    return aligned(x.contiguous())


def _is_read(x: Tensor) -> bool:
    """Whether cuDNN reads ``x (B, S, H, D)`` where it lies, as a part of one tensor with queries, keys and values."""
    (B, S, H, _), (batches, queries, heads, last) = x.shape, x.stride()
    apart = B == 1 or (batches >= queries and batches >= heads)
    expanded = (B > 1 and not batches) or (S > 1 and not queries) or (H > 1 and not heads)
    step = 16 // x.element_size()
    whole = last == 1 and not (batches % step or queries % step or heads % step)
    return apart and whole and not expanded and begins_aligned(x, 16)


def _rows(bias: Tensor) -> Tensor:
    """``bias (B, H, S, T)``, or a copy, in rows that follow each other, once where batches or heads share it."""
    bias = distinct(bias)
    row, last = bias.stride()[2:]
    laid = last == 1 and row >= bias.shape[-1] and begins_aligned(bias, 16)
    return bias if laid else bias.clone(memory_format=torch.contiguous_format)


def _square(S: int, T: int, causal: bool) -> bool:
    """The operator's causal flag for queries of which each sees some key.

    Raises:
        CannotRun: its causal mask is not aligned as the contract's.
    """
    if causal and 1 < S < T:
        text = "its causal mask begins at the first key, and so needs S = 1 or S >= T"
        raise CannotRun(Rejection(ReasonCode.LIMIT, f"{text}; this is S = {S}, T = {T}", "S"))
    return causal and S > 1


def _shown(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
