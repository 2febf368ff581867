"""The kernel that does nothing."""

from __future__ import annotations

from torch import Tensor

_RESULT = Tensor()


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, out: Tensor | None = None) -> Tensor:
    """A tensor that was there before: no allocation, no launch."""
    return _RESULT
