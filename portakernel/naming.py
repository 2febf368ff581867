"""How the ``kernel`` argument of a torch op names a kernel.

A plain name was chosen automatically while tracing: it goes first, and where it cannot serve the next kernel does,
with a warning. A name that a caller gave is marked, and strict. A token stands for the policy that a graph was traced
under.
"""

from __future__ import annotations

from portakernel.errors import ArgumentTypeError, UnknownNameError
from portakernel.policies import Layer, make_layer
from portakernel.registry import Registry

STRICT_MARK = "!"
TOKEN_MARK = "@"


def strictly(registry: Registry, kernel: object) -> str:
    """A caller's ``kernel=`` as a torch op takes it; empty for None.

    Raises:
        ArgumentTypeError: it is no text.
        UnknownNameError: no kernel and no plugin is called that.
    """
    if kernel is None:
        return ""
    if not isinstance(kernel, str):
        raise ArgumentTypeError(
            f"kernel must be the name of a kernel or plugin; this is {type(kernel).__name__} {kernel!r}"
        )
    if kernel[:1] in (STRICT_MARK, TOKEN_MARK):
        raise UnknownNameError("kernel or plugin", kernel, [*registry.kernels, *registry.plugins()])
    registry.named(kernel, where="kernel")
    return STRICT_MARK + kernel


def layer_of(registry: Registry, argument: str) -> Layer | None:
    """The policy layer that a torch op's ``kernel`` argument makes, if any."""
    if not argument or argument.startswith(TOKEN_MARK):
        return None
    if argument.startswith(STRICT_MARK):
        return make_layer("argument", use=(argument[1:],)).check(registry)
    return make_layer("compiled graph", prefer=(argument,)).check(registry)
