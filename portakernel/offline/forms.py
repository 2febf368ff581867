"""Tensors as a compiler sees them: all but their memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from portakernel.tensors.layout import MAX_ALIGNMENT
from portakernel.tensors.scratch import extent


@dataclass(frozen=True, slots=True)
class Form:
    """A tensor's dtype, sizes and strides, its alignment, and whether it needs a gradient.

    ``offset`` is the first element's distance from an aligned address, in elements; ``length`` what its memory holds
    from there on.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    length: int
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor) -> Form:
        """The form of a tensor that has memory."""
        held = tensor.detach()
        offset = held.data_ptr() % MAX_ALIGNMENT // held.element_size()
        return cls(held.dtype, tuple(held.shape), held.stride(), offset, extent(held).numel(), tensor.requires_grad)

    def on_meta(self) -> Tensor:
        """A tensor of this form without memory; its address is as aligned."""
        memory = torch.empty(self.offset + self.length, dtype=self.dtype, device="meta")
        return memory.as_strided(self.shape, self.strides, self.offset)
