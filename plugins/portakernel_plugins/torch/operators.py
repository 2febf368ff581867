"""PyTorch's operators as its Python binds them, where it does: their arguments are parsed in a third less time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def operator(name: str) -> Callable[..., Any]:
    """``aten::<name>``, its first overload."""
    known: Callable[..., Any] = getattr(torch.ops.aten, name).default
    return getattr(torch, name, known)
