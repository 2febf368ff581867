"""A plugin with a hook that its manifest does not list."""

from portakernel.authoring import hookimpl


@hookimpl
def portakernel_kernels():
    """Listed in the manifest."""
    return []


@hookimpl
def portakernel_decided(decision):
    """Not listed."""
