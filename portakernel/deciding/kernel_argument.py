"""How the ``kernel`` argument of a torch op names a kernel.

A plain name was chosen automatically while tracing: it goes first, and where it cannot serve the next kernel does,
with a warning. Before it goes what a plan says when the graph runs; not where it is marked as settled, because it is
the backward of a forward that the graph dissolves. A name that a caller gave is marked, and strict. A token stands for
the policy that a graph was traced under, and what was installed: it chooses nothing, but with another one the graph is
compiled again. It says too whether that was inside a policy block. The name of a kernel that stands in a graph by
itself is marked, and seen by nobody but the graph's trace.
"""

from __future__ import annotations

from dataclasses import replace

from portakernel.deciding.policies import Layer, make_layer
from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError
from portakernel.registry.registry import Registry

STRICT_MARK = "!"
TOKEN_MARK = "@"
GRAPH_MARK = "~"
SETTLED_MARK = "="
# At the end of a token.
BLOCK_MARK = "+"
_MARKS = frozenset({STRICT_MARK, TOKEN_MARK, GRAPH_MARK, SETTLED_MARK})


def check_ships(registry: Registry, op: str, name: str) -> None:
    """Nothing, when ``name`` is a kernel of ``op``, or a plugin with one.

    Raises:
        UnknownNameError: no kernel and no plugin is called that.
        ArgumentValueError: it is of other ops alone, so that naming it would mean nothing.
    """
    named = registry.named(name, where="kernel")
    if all(kernel.op != op for kernel in named):
        of = ", ".join(sorted({kernel.op for kernel in named}))
        ours = ", ".join(kernel.name for kernel in registry.for_op(op))
        raise ArgumentValueError(f"{op}: {name!r} has kernels of {of}, not of {op}; those are {ours}")


def strictly(registry: Registry, op: str, kernel: object) -> str:
    """A caller's ``kernel=`` as a torch op takes it; empty for None.

    Raises:
        ArgumentTypeError: it is no text.
        UnknownNameError: no kernel and no plugin is called that.
        ArgumentValueError: it has no kernel of this op.
    """
    if kernel is None:
        return ""
    if not isinstance(kernel, str):
        raise ArgumentTypeError(
            f"kernel must be the name of a kernel or plugin; this is {type(kernel).__name__} {kernel!r}"
        )
    if kernel[:1] in _MARKS:
        raise UnknownNameError("kernel or plugin", kernel, [*registry.kernels, *registry.plugins()])
    check_ships(registry, op, kernel)
    return STRICT_MARK + kernel


def is_automatic(argument: str) -> bool:
    """Whether the name was chosen while tracing, by the process's policy of then."""
    return bool(argument) and argument[0] not in _MARKS.difference(SETTLED_MARK)


def unmarked(argument: str) -> str:
    """The kernel's full name, however it was chosen."""
    return argument[1:] if argument[:1] in _MARKS else argument


def layer_of(registry: Registry, op: str, argument: str) -> Layer | None:
    """The policy layer that a torch op's ``kernel`` argument makes, if any."""
    if not argument or argument.startswith(TOKEN_MARK):
        return None
    if argument.startswith(STRICT_MARK):
        check_ships(registry, op, argument[1:])
        return make_layer("argument", use=(argument[1:],))
    name = unmarked(argument)
    layer = make_layer("compiled graph", prefer=(name,))
    return replace(layer, traced=not argument.startswith(SETTLED_MARK)) if registry.find(name) else None
