"""``linear_cross_entropy`` and its gradients as formulas.

It is ``cross_entropy`` of the logits ``z = x @ weight.T``, and with ``d`` for their gradient those of x and weight are
``d @ weight`` and ``d.T @ x``. Rows go through in blocks: the logits of one are all that is in memory, in backward too,
which computes them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from portakernel.references import cross_entropy
from portakernel.tensors.index_values import check_indices

# Logits of a block: 64 MiB in float32.
_BLOCK_ELEMENTS = 1 << 24
# Rounding in the exponent z - lse, and in the sum that z is, moves a probability p by some 2**-24 of p times the sums
# of absolute terms: this much of the 96 ulp that the contract allows a float32 gradient.
_EXPONENT_SHARE = 1 / 32


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _blocks(rows: int, classes: int) -> Iterator[slice]:
    """The rows in slices of a bounded number of logits; one empty slice where there are none."""
    size = max(1, _BLOCK_ELEMENTS // classes)
    return (slice(start, start + size) for start in range(0, max(rows, 1), size))


def forward(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    out: Tensor | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """The loss of each row, and with ``save`` its ``lse (M,)``."""
    count, classes = target.numel(), weight.shape[0]
    if target.device.type == "cpu":
        check_indices("linear_cross_entropy", "target", target, classes, "V", ignore_index)
    rows, targets, w = _wide(x).reshape(count, x.shape[-1]), target.reshape(-1), _wide(weight)
    more: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "save": True}
    blocks = _blocks(count, classes)
    parts = [cross_entropy.forward(rows[block] @ w.T, targets[block], **more) for block in blocks]
    loss, lse = (cross_entropy.joined(part) for part in zip(*parts, strict=True))
    found = cross_entropy.shaped(loss, target.shape)
    if out is not None:
        found = out.copy_(found)
    return (found, lse) if save else found


def backward(
    grad_loss: Tensor,
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    lse: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    needs: tuple[bool, bool, bool] = (True, True, False),
) -> tuple[Tensor | None, Tensor | None, None]:
    """Gradients for ``x`` and ``weight`` from that of the loss, each rounded once."""
    count, (classes, width) = target.numel(), weight.shape
    rows, targets, w = _wide(x).reshape(count, width), target.reshape(-1), _wide(weight)
    grads = _wide(grad_loss).reshape(-1)
    grads_x = list[Tensor]()
    grad_weight = torch.zeros(classes, width, dtype=rows.dtype, device=x.device) if needs[1] else None
    for block in _blocks(count, classes):
        d, _ = cross_entropy.backward(
            grads[block],
            rows[block] @ w.T,
            targets[block],
            lse[block],
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
        )
        assert d is not None
        if needs[0]:
            grads_x.append((d @ w).to(x.dtype))
        if grad_weight is not None:
            grad_weight = grad_weight + d.T @ rows[block]
    return (
        cross_entropy.joined(grads_x).reshape(x.shape) if needs[0] else None,
        None if grad_weight is None else grad_weight.to(weight.dtype),
        None,
    )


def _sizes(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each row: probabilities, the sums of absolute products behind its logits and behind lse, and lse."""
    z, sums = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    lse = z.logsumexp(-1, keepdim=True)
    p = (z - lse).exp()
    # a logit of -inf takes no part
    return p, sums, torch.where(p == 0, 0, p * sums).sum(-1, keepdim=True), lse


def magnitudes(
    grad_loss: Tensor,
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    lse: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor, None]:
    """The sums of absolute terms behind each gradient: of what is behind a logit's, times the other factor.

    Behind a logit's are ``p`` and ``q``, and what rounding does to p: an absolute error of the exponent ``z - lse`` is
    a relative one of p, and z is a sum.
    """
    p, sums, mean, _ = _sizes(x, weight)
    classes = weight.shape[0]
    targets = target.unsqueeze(-1).long()
    moved = torch.where(p == 0, 0, p * (sums + mean + lse.reshape(mean.shape).abs()) * _EXPONENT_SHARE)
    hot = (torch.arange(classes, device=target.device) == targets).double()
    q = hot * (1 - label_smoothing) + label_smoothing / classes
    d = (grad_loss.double().abs().unsqueeze(-1) * (p + moved + q)).masked_fill(targets == ignore_index, 0)
    rows = x.double().abs().reshape(target.numel(), x.shape[-1])
    return d @ weight.double().abs(), d.reshape(target.numel(), classes).T @ rows, None


def output_magnitudes(
    x: Tensor, weight: Tensor, target: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0
) -> tuple[Tensor]:
    """The sums of absolute terms behind ``loss = lse - sum(q * z)``, every logit a sum of products."""
    _, sums, _, _ = _sizes(x, weight)
    targets = target.unsqueeze(-1).long()
    ignored = targets == ignore_index
    terms = (1 - label_smoothing) * sums.gather(-1, targets.masked_fill(ignored, 0))
    if label_smoothing != 0:
        terms = terms + label_smoothing * sums.mean(-1, keepdim=True)
    lse = saved_magnitudes(x, weight, target)[0].reshape(terms.shape)
    return ((lse + terms).masked_fill(ignored, 0).squeeze(-1),)


def saved_magnitudes(
    x: Tensor, weight: Tensor, target: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0
) -> tuple[Tensor]:
    """The sums of absolute terms behind lse; one more stands for the rounding of the sum under the logarithm."""
    del target, ignore_index, label_smoothing
    _, _, mean, lse = _sizes(x, weight)
    return ((mean + lse.abs() + 1).reshape(-1),)
