"""A plugin that does wrong: returns a result of another shape."""

import torch


def add(x, y, *, out=None):
    """Flattens."""
    return torch.add(x, y, out=out) if out is not None else (x + y).reshape(-1).clone()
