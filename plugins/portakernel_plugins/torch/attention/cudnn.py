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
from portakernel_plugins.torch.attention.mask import distinct
from portakernel_plugins.torch.attention.scale import above_zero

_forward = torch.ops.aten._scaled_dot_product_cudnn_attention.default
_backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default

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
) -> Results:
    """``softmax(scale * q @ k.T + bias) @ v``; bias: (B, H, S, T) in the dtype of q; there is no gradient for it."""
    if bias is None:
        return attention(q, k, v, causal=causal, scale=scale, return_lse=return_lse, out=out)
    q, scale = above_zero(q, scale)
    q, k, v = _laid(q), _laid(k), _laid(v)
    y, lse, *_ = _forward(q, k, v, _rows(bias), return_lse, 0.0, False, False, scale=scale)
    lse = lse.reshape(q.shape[:3]) if return_lse else None
    return returned(y.transpose(1, 2), lse, 0, out, return_lse=return_lse, save=False)


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
    given, blind = scale, blind_queries(q.shape[1], k.shape[1], causal=causal)
    square = _square(q.shape[1] - blind, k.shape[1], causal)
    q, scale = above_zero(q, scale)
    widths = (q.shape[-1], k.shape[-1], v.shape[-1])
    if blind:
        grad_out, q, out, logsumexp = grad_out[:, blind:], q[:, blind:], out[:, blind:], logsumexp[:, :, blind:]
    lse = logsumexp.contiguous().unsqueeze(-1)
    # all of one layout, as it computes it from that of q
    parts = (grad_out, q, k, v, out)
    grad, q, k, v, out = [aligned(x.contiguous()).transpose(1, 2) for x in parts]
    S, T = q.shape[2], k.shape[2]
    nothing = q.new_empty((), dtype=torch.int64)  # the seed and offset of a dropout, which there is none of
    found = _backward(grad, q, k, v, out, lse, nothing, nothing, None, None, None, S, T, 0.0, square, scale=scale)
    return gradients(tuple(part.transpose(1, 2) for part in found), widths, blind, needs, given)


def _laid(x: Tensor) -> Tensor:
    """``x (B, S, H, D)`` as ``(B, H, S, D)``, a copy where its strides would be planned anew, or refused.

    Those of its shape are not, nor those of heads before queries, as models keep theirs.
    """
    heads_first = x.transpose(1, 2)
    if not (x.is_contiguous() or heads_first.is_contiguous()):
        return x.contiguous().transpose(1, 2)
    return heads_first if begins_aligned(x, 16) else aligned(x).transpose(1, 2)


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
