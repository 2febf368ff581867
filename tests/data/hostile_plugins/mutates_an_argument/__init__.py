"""A plugin that does wrong: writes into an argument."""

import torch


def add(x, y, *, out=None):
    """Uses y as scratch memory."""
    result = torch.add(x, y, out=torch.empty(x.shape) if out is None else out)
    if out is None:
        y.zero_()
    return result
