"""``cross_entropy`` and its gradient as formulas.

With the target distribution ``q = (1 - label_smoothing) * [class is the target] + label_smoothing / V``, the loss is
``-sum(q * log_softmax(x)) = lse - sum(q * x)`` with ``lse = log(sum(exp(x)))``, and its gradient is ``softmax(x) - q``.
Rows go through in blocks: a float32 copy of all logits would be as large as the model's largest activation, or twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from portakernel.errors import ArgumentValueError
from portakernel.tensors.index_values import check_indices

_BLOCK_ELEMENTS = 1 << 24
# Rounding in the exponent x - lse moves a probability p by up to 3 * 2**-24 * p * (|x| + |lse|): this much of the
# 96 ulp that the contract allows a float32 gradient.
_EXPONENT_SHARE = 1 / 32


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _blocks(rows: Tensor) -> Iterator[slice]:
    """The rows in slices of a bounded number of elements; one empty slice where there are none."""
    size = max(1, _BLOCK_ELEMENTS // rows.shape[1])
    return (slice(start, start + size) for start in range(0, max(rows.shape[0], 1), size))


def joined(parts: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    """The rows of all parts; nothing is written in place, which neither vmap nor a recorded gradient goes through."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _check(logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float) -> None:
    if not 0 <= label_smoothing <= 1:
        raise ArgumentValueError(f"cross_entropy: label_smoothing must lie in [0, 1]; this is {label_smoothing}")
    if target.device.type != "cpu":
        return  # the answer would have to be waited for
    check_indices("cross_entropy", "target", target, logits.shape[-1], "V", ignore_index)


def shaped(result: Tensor, shape: torch.Size) -> Tensor:
    """A fresh result in another shape, no view: autograd would let nobody change it in place."""
    return result if result.shape == shape else result.reshape(shape).clone()


def _losses(x: Tensor, target: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Loss and lse of rows ``x: (m, V)``, each with a target inside."""
    top = x.amax(-1, keepdim=True)
    # inf - inf: a row that holds +inf, or nothing but -inf, comes out as NaN
    below = x - top
    rest = below.exp().sum(-1).log()
    # lse - x, without subtracting two large numbers
    loss = rest - below.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    if label_smoothing != 0:
        loss = (1 - label_smoothing) * loss + label_smoothing * (rest - below.mean(-1))
    return loss, top.squeeze(-1) + rest


def forward(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    overwrite_logits: bool = False,
    return_lse: bool = False,
    out: Tensor | tuple[Tensor, ...] | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """The loss of each row, ``lse`` with ``return_lse``, and the saved ``lse (M,)`` with ``save``."""
    del overwrite_logits
    _check(logits, target, ignore_index, label_smoothing)
    rows, targets = logits.reshape(target.numel(), logits.shape[-1]), target.reshape(-1).long()
    ignored = targets == ignore_index
    classes = targets.masked_fill(ignored, 0)
    found = [_losses(_wide(rows[block]), classes[block], label_smoothing) for block in _blocks(rows)]
    loss, lse = (joined(parts) for parts in zip(*found, strict=True))
    loss = loss.masked_fill(ignored, 0)
    results = tuple(shaped(result, target.shape) for result in ((loss, lse) if return_lse else (loss,)))
    if out is not None:
        given = out if isinstance(out, tuple) else (out,)
        results = tuple(tensor.copy_(result) for tensor, result in zip(given, results, strict=True))
    if save:
        return (*results, lse.clone() if return_lse else lse)
    return results if return_lse else results[0]


def backward(
    grad_loss: Tensor,
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    overwrite_logits: bool = False,
    return_lse: bool = False,
    needs: tuple[bool, bool] = (True, False),
) -> tuple[Tensor | None, None]:
    """The gradient for ``logits`` from that of the loss: ``logits`` itself where that may be written over."""
    del return_lse
    if not needs[0]:
        return None, None
    shape = (target.numel(), logits.shape[-1])
    rows, g, targets = logits.reshape(shape), _wide(grad_loss).reshape(-1, 1), target.reshape(-1, 1).long()

    def of(block: slice) -> Tensor:
        p = (_wide(rows[block]) - lse[block].unsqueeze(-1)).exp()
        q = _distribution(targets[block], shape[1], label_smoothing, p.dtype)
        # written, not multiplied by zero: an ignored row may hold NaN
        return (g[block] * (p - q)).masked_fill(targets[block] == ignore_index, 0).to(logits.dtype)

    # a gradient is contiguous, and an expanded tensor's rows share memory
    over = overwrite_logits and logits.is_contiguous()
    if torch.is_grad_enabled() and not over:
        return joined([of(block) for block in _blocks(rows)]).reshape(logits.shape), None
    grad = logits if over else torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    into = grad.view(shape)
    for block in _blocks(rows):
        into[block] = of(block)
    return grad, None


def _distribution(target: Tensor, classes: int, label_smoothing: float, dtype: torch.dtype) -> Tensor:
    """``q: (m, V)`` for ``target: (m, 1)``."""
    hot = torch.arange(classes, device=target.device) == target
    return hot.to(dtype) * (1 - label_smoothing) + label_smoothing / classes


def magnitudes(
    grad_loss: Tensor,
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    overwrite_logits: bool = False,
    return_lse: bool = False,
) -> tuple[Tensor, None]:
    """The sum of absolute terms behind each gradient: of ``p`` and ``q``, and what rounding ``x`` and lse does to p.

    The exponent ``x - lse`` is off by a unit or two in the last place of ``x`` and of the float32 ``lse``, and an
    absolute error of an exponent is a relative one of ``p``.
    """
    del overwrite_logits, return_lse
    x, row_lse, targets = logits.double(), lse.double().reshape(*target.shape, 1), target.unsqueeze(-1).long()
    p = (x - row_lse).exp()
    moved = torch.where(p == 0, 0, p * (x.abs() + row_lse.abs()) * _EXPONENT_SHARE)
    q = _distribution(targets, x.shape[-1], label_smoothing, torch.float64)
    sizes = grad_loss.double().abs().unsqueeze(-1) * (p + moved + q)
    return sizes.masked_fill(targets == ignore_index, 0), None


def saved_magnitudes(logits: Tensor, target: Tensor, *, return_lse: bool = False, **more: Any) -> tuple[Tensor]:
    """Those behind the saved lse ``(M,)``."""
    del return_lse
    return (output_magnitudes(logits, target, return_lse=True, **more)[1].reshape(-1),)


def output_magnitudes(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    overwrite_logits: bool = False,
    return_lse: bool = False,
) -> tuple[Tensor, ...]:
    """The sums of absolute terms behind ``lse = max + log(sum(exp(x - max)))`` and ``loss = lse - sum(q * x)``.

    One more stands for the rounding of the sum under the logarithm, whose relative error is absolute outside.
    """
    del overwrite_logits
    x, targets = logits.double(), target.unsqueeze(-1).long()
    ignored = targets == ignore_index
    top = x.amax(-1, keepdim=True)
    lse = (top.abs() + (x - top).exp().sum(-1, keepdim=True).log() + 1).squeeze(-1)
    terms = (1 - label_smoothing) * x.abs().gather(-1, targets.masked_fill(ignored, 0)).squeeze(-1)
    if label_smoothing != 0:
        terms = terms + label_smoothing * x.abs().mean(-1)
    loss = (lse + terms).masked_fill(ignored.squeeze(-1), 0)
    return (loss, lse) if return_lse else (loss,)


def unspecified(logits: Tensor, target: Tensor, **_: Any) -> dict[str, Tensor]:
    """Which results the contract leaves open: lse of a row of nothing but -inf."""
    del target
    rows = logits.isneginf().all(-1)
    return {"lse": rows, "logsumexp": rows.reshape(-1)}
