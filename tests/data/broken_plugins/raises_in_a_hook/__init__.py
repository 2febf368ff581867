"""A plugin with a hook that raises."""

from portakernel.authoring import hookimpl


@hookimpl
def portakernel_kernels():
    """Fails when it is called."""
    raise OSError("the list of kernels is not readable")
