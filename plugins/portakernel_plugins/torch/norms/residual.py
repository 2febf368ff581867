"""What norms of ``x + residual`` share: the sum before them, and its own gradient behind theirs."""

from __future__ import annotations

import torch
from torch import Tensor


def past_norm(grad_summed: Tensor | None, weight: Tensor, needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """The gradients where the norm's output has none: it adds nothing, whatever its statistics are."""
    assert grad_summed is not None
    through = [grad_summed.clone(memory_format=torch.contiguous_format) if needed else None for needed in needs[:2]]
    return (*through, *(torch.zeros_like(weight) if needed else None for needed in needs[2:]))


def before_norm(
    grad_y: Tensor, grad_summed: Tensor | None, summed: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """``grad_y``, ``summed`` and ``weight`` as the norm's backward takes them.

    Where ``grad_summed`` is added to what it returns, that has to be float32, for the gradient to be rounded once.
    """
    return (grad_y, summed, weight) if grad_summed is None else (grad_y.float(), summed.float(), weight.float())


def behind_norm(
    grad: Tensor | None, grad_summed: Tensor | None, summed: Tensor, needs: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of ``x`` and ``residual``, equal, each in memory of its own."""
    if grad is None:
        return None, None
    if grad_summed is not None:
        grad = grad.add_(grad_summed).to(summed.dtype)
    first = grad if needs[0] else None
    return first, (grad if first is None else grad.clone()) if needs[1] else None
