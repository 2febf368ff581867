"""``cross_entropy`` by PyTorch's log-softmax and nll_loss in float32; its gradient from the saved log-sum-exps.

``torch.nn.functional.cross_entropy`` gives 16-bit losses for 16-bit logits, keeps a float32 copy of all logits for
backward where they are cast before, and gives an ignored row that holds NaN a gradient of NaN. Here rows go through in
blocks, so that float32 copies stay small, and backward reads nothing but what the op saves.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from portakernel.authoring.tensors import check_indices
from portakernel_plugins.torch.operators import operator

_log_softmax = operator("_log_softmax")
_nll_loss = operator("nll_loss_forward")
_NO_REDUCTION = 0

# 128 MiB of float32: far more than a launch costs, far less than the logits of a long batch.
_BLOCK_ELEMENTS = 1 << 25


def _blocks(rows: int, classes: int) -> Iterator[slice]:
    size = max(1, _BLOCK_ELEMENTS // classes)
    return (slice(start, start + size) for start in range(0, rows, size))


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float,
    overwrite_logits: bool,
    return_lse: bool,
    out: Tensor | tuple[Tensor, ...] | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Loss, with ``return_lse`` lse, with ``save`` the saved lse; logits: (..., V), target: (...,), results float32."""
    del overwrite_logits  # backward reads logits after it would have been written
    classes = logits.shape[-1]
    rows, targets = logits.reshape(target.numel(), classes), target.reshape(-1).long()
    loss, lse = (torch.empty(target.shape, dtype=torch.float32, device=logits.device) for _ in range(2))
    # results are no views: autograd would let nobody change them in place
    results: tuple[Tensor, ...] = (loss, lse) if return_lse else (loss,)
    loss, lse = loss.view(-1), lse.view(-1)
    for block in _blocks(*rows.shape):
        wide = rows[block].float()
        logs = _log_softmax(wide, -1, False)
        try:
            loss[block] = _nll_loss(logs, targets[block], None, _NO_REDUCTION, ignore_index)[0]
        except IndexError:  # from the CPU's alone
            check_indices("cross_entropy", "target", targets[block], classes, "V", ignore_index)
            raise
        if label_smoothing != 0:
            spread = logs.mean(-1).masked_fill_(targets[block] == ignore_index, 0)
            loss[block] = (1 - label_smoothing) * loss[block] - label_smoothing * spread
        if save or return_lse:
            # at the row's maximum, where no digit of the difference is lost
            torch.sub(wide.amax(-1), logs.amax(-1), out=lse[block])
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
    ignore_index: int,
    label_smoothing: float,
    overwrite_logits: bool,
    return_lse: bool,
    needs: tuple[bool, bool],
) -> tuple[Tensor | None, None]:
    """The gradient for ``logits``: ``grad_loss * (exp(logits - lse) - q)``, zeros in ignored rows."""
    del overwrite_logits, return_lse
    if not needs[0]:
        return None, None
    classes = logits.shape[-1]
    rows, targets = logits.reshape(target.numel(), classes), target.reshape(-1, 1).long()
    ignored = targets == ignore_index
    hot, scale = targets.masked_fill(ignored, 0), grad_loss.float().reshape(-1, 1)
    grad = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    into = grad.view(rows.shape)
    for block in _blocks(*rows.shape):
        p = torch.sub(rows[block], lse[block].unsqueeze(-1)).exp_()
        if label_smoothing != 0:
            p -= label_smoothing / classes
        p.scatter_(-1, hot[block], p.gather(-1, hot[block]) - (1 - label_smoothing))
        # ignored rows are written, not multiplied by zero: they may hold NaN
        torch.mul(p, scale[block], out=into[block]).masked_fill_(ignored[block], 0)
    return grad, None
