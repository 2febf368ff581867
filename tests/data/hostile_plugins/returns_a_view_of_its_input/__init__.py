"""A plugin that does wrong: returns the numbers in the memory of its input."""

import torch


def add(x, y, *, out=None):
    """Saves an allocation."""
    return torch.add(x, y, out=out) if out is not None else x.copy_(x + y).view(x.shape)
