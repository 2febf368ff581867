"""A plugin that does wrong: keeps what it returns."""

import torch

KEPT = []


def add(x, y, *, out=None):
    """Forgets nothing."""
    result = torch.add(x, y, out=torch.empty(x.shape) if out is None else out)
    KEPT.append(result.clone())
    return result
