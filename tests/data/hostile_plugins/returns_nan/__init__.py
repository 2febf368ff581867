"""A plugin that does wrong: returns NaN in one place."""

import torch


def add(x, y, *, out=None):
    """Spoils the first element."""
    result = torch.add(x, y, out=torch.empty(x.shape) if out is None else out)
    result.masked_fill_(result == result.max(), float("nan"))
    return result
