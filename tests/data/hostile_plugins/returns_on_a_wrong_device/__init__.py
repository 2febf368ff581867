"""A plugin that does wrong: returns a result on another device."""

import torch


def add(x, y, *, out=None):
    """Leaves the numbers behind."""
    return torch.add(x, y, out=out) if out is not None else torch.empty(x.shape, device="meta")
