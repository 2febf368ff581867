"""``add`` by PyTorch's elementwise kernels."""

from __future__ import annotations

import torch
from torch import Tensor


def add(x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``x + y``; 16-bit floats are added in float32. Without ``out`` the result is contiguous, whatever the inputs."""
    # torch alone would give the result the inputs' strides; of few elements, making it ahead takes longer than adding
    return torch.add(x, y).contiguous() if out is None else torch.add(x, y, out=out)
