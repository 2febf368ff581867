"""A plugin whose hook takes an argument that the hook does not have."""

from portakernel.authoring import hookimpl


@hookimpl
def portakernel_kernels(registry):
    """There is no argument of that name."""
    return []
