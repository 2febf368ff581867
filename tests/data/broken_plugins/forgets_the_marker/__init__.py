"""A plugin whose hook lacks the decorator."""


def portakernel_kernels():
    """Not marked with @hookimpl."""
    return []
