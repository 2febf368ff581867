"""A plugin that does wrong: computes in one buffer for all threads."""

import torch

BUFFERS = {}


def add(x, y, *, out=None):
    """Right, for one thread at a time."""
    buffer = BUFFERS.setdefault(x.shape, torch.empty(x.shape))
    buffer.copy_(x)
    for _ in range(20):  # somebody else may take over here
        pass
    buffer.add_(y)
    result = torch.empty(x.shape) if out is None else out
    return result.copy_(buffer)
