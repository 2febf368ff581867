"""A plugin that does wrong: returns a result of another dtype."""

import torch


def add(x, y, *, out=None):
    """Widens."""
    return torch.add(x, y, out=out) if out is not None else (x + y).double()
