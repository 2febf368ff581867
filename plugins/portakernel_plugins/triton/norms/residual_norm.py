"""A residual connection before a norm: its two results, and gradients that do not go through the norm."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.authoring.tensors import contiguous_like, delivered, row_target


class Results:
    """Where ``y`` and ``summed`` are written: ``out``, where its rows have one stride, else new memory."""

    __slots__ = ("summed", "summed_stride", "y", "y_stride")

    def __init__(self, x: Tensor, out: tuple[Tensor, Tensor] | None) -> None:
        self.y, self.y_stride = row_target(x, None if out is None else out[0])
        self.summed, self.summed_stride = row_target(x, None if out is None else out[1])

    def returned(self, out: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        """Both, copied into ``out`` where they are not there yet."""
        y_out, summed_out = (None, None) if out is None else out
        return delivered(self.y, y_out), delivered(self.summed, summed_out)


def past_the_norm(
    grad_summed: Tensor | None, summed: Tensor, weight: Tensor, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients for ``x``, ``residual``, ``weight`` and ``bias`` where ``y`` has none."""

    def copied() -> Tensor:
        grad = torch.zeros((), dtype=summed.dtype, device=summed.device) if grad_summed is None else grad_summed
        return contiguous_like(summed).copy_(grad)

    n = weight.shape[0]
    return (
        *(copied() if need else None for need in needs[:2]),
        *(torch.zeros(n, dtype=weight.dtype, device=weight.device) if need else None for need in needs[2:]),
    )
