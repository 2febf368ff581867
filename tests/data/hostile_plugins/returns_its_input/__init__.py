"""A plugin that does wrong: returns its input."""

import torch


def add(x, y, *, out=None):
    """Adds nothing."""
    return torch.add(x, y, out=out) if out is not None else x
