"""A plugin that does wrong: takes its time in a hook."""

from portakernel.authoring import hookimpl


@hookimpl
def portakernel_kernels():
    """As long as a limit that a test makes tiny."""
    return [index for index in range(10_000) if index < 0]
