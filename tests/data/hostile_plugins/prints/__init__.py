"""A plugin that does wrong: prints while it is imported, in its hook and when it is called."""

import torch

from portakernel.authoring import hookimpl

print("prints: loaded")  # noqa: T201 - its fault


@hookimpl
def portakernel_kernels():
    """Talks."""
    print("prints: asked for kernels")  # noqa: T201 - its fault
    return []


def add(x, y, *, out=None):
    """Talks, too."""
    print("prints: called")  # noqa: T201 - its fault
    return torch.add(x, y, out=torch.empty(x.shape) if out is None else out)
