"""``add`` as a formula."""

from __future__ import annotations

import torch
from torch import Tensor


def forward(x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``x + y``; torch adds 16-bit floats in float32 and rounds once."""
    # torch gives the sum of two transposed tensors their strides; results here are contiguous
    return torch.add(x, y).contiguous() if out is None else torch.add(x, y, out=out)
