"""``cross_entropy`` by QuACK's kernels."""
# pyright: reportMissingImports=false
# QuACK is an optional requirement.

from __future__ import annotations

import torch
from quack.cross_entropy import _cross_entropy_backward, cross_entropy_fwd_out
from torch import Tensor

from portakernel.authoring.tensors import announce_once, dense, room, rows

_WIDE = 16  # bytes that are read at once


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    overwrite_logits: bool,
    return_lse: bool,
    out: Tensor | tuple[Tensor, ...] | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Loss, with ``return_lse`` lse, with ``save`` the saved lse; logits: (*M, V), target: (*M,), results float32."""
    del overwrite_logits  # backward reads logits after they would have been written
    loss, lse = (torch.empty(target.shape, dtype=torch.float32, device=logits.device) for _ in range(2))
    announce_once("QuACK's cross_entropy", logits.dtype, target.dtype, logits.shape[-1])
    cross_entropy_fwd_out(
        rows(dense(logits, _WIDE)),
        target.reshape(-1).contiguous(),
        None,
        loss.view(-1),
        lse.view(-1),
        None,
        None,
        ignore_index,
    )
    results: tuple[Tensor, ...] = (loss, lse) if return_lse else (loss,)
    if out is not None:
        given = out if isinstance(out, tuple) else (out,)
        results = tuple(tensor.copy_(result) for tensor, result in zip(given, results, strict=True))
    if save:
        return (*results, lse.view(-1).clone() if return_lse else lse.view(-1))
    return results if return_lse else results[0]


def backward(
    grad_loss: Tensor,
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    *,
    ignore_index: int,
    overwrite_logits: bool,
    return_lse: bool,
    needs: tuple[bool, bool],
) -> tuple[Tensor | None, None]:
    """The gradient for ``logits``, over them where ``overwrite_logits`` permits it."""
    del return_lse
    if not needs[0]:
        return None, None
    given = dense(logits, _WIDE)
    grad = given if overwrite_logits else room(logits)
    announce_once("QuACK's cross_entropy's gradient", logits.dtype, target.dtype, logits.shape[-1])
    _cross_entropy_backward(
        rows(given),
        target.reshape(-1).contiguous(),
        grad_loss.reshape(-1),
        lse.view(-1),
        rows(grad),
        None,
        ignore_index,
    )
    return grad, None
