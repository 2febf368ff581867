"""Compiling for a GPU that is not here: products of meta tensors compile the library that they would call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from torch import Tensor

from portakernel.authoring import ArgumentValueError, Compiled, Target
from portakernel.authoring.native import target_of

if TYPE_CHECKING:
    from portakernel_plugins.cutlass.libraries import Recipe

# The target that is compiled for, and what takes what was compiled.
_COMPILING: ContextVar[tuple[Target, list[Compiled]] | None] = ContextVar("cutlass_compiling", default=None)


@contextmanager
def compiling(target: Target) -> Iterator[list[Compiled]]:
    """Within this context, what products of meta tensors would call is compiled for ``target``, into the list."""
    found: list[Compiled] = []
    token = _COMPILING.set((target, found))
    try:
        yield found
    finally:
        _COMPILING.reset(token)


def target(tensor: Tensor) -> Target:
    """What a launch on ``tensor`` is for: its device, or of a meta tensor the target that is compiled for.

    Raises:
        ArgumentValueError: a meta tensor, outside of ``compiling``.
    """
    return _context()[0] if tensor.is_meta else target_of(tensor)


def add(recipe: Recipe) -> None:
    """Compiles a library, from the cache where it has it, and adds it to the context's list, once."""
    target, found = _context()
    code = recipe.unit().build(target)
    if code.key in [known.key for known in found]:
        return
    registers, spilled_bytes, shared_bytes = (
        max((getattr(facts, name) for facts in code.kernels), default=0)
        for name in ("registers", "spilled_bytes", "shared_bytes")
    )
    found.append(
        Compiled(
            str(recipe), str(target), registers, spilled_bytes, shared_bytes, code.seconds, code.assembly, code.key
        )
    )


def _context() -> tuple[Target, list[Compiled]]:
    context = _COMPILING.get()
    if context is None:
        text = "CUTLASS' products were given meta tensors, which have no memory; `portakernel compile` uses such"
        raise ArgumentValueError(text)
    return context
