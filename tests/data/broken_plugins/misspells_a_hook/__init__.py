"""A plugin that implements a hook that does not exist."""

from portakernel.authoring import hookimpl


@hookimpl
def portakernel_kernel():
    """One letter short."""
    return []
