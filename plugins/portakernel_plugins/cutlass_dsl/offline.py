"""Compiling for a GPU that is not here: products of meta tensors compile the kernel that they would launch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from portakernel.authoring import ArgumentValueError, Compiled, Target

if TYPE_CHECKING:
    from portakernel_plugins.cutlass_dsl.compiled import Variant

# The target that is compiled for, and what takes what was compiled.
_COMPILING: ContextVar[tuple[Target, list[Compiled]] | None] = ContextVar("cutlass_dsl_compiling", default=None)


@contextmanager
def compiling(target: Target) -> Iterator[list[Compiled]]:
    """Within this context, what products of meta tensors would launch is compiled for ``target``, into the list."""
    found: list[Compiled] = []
    token = _COMPILING.set((target, found))
    try:
        yield found
    finally:
        _COMPILING.reset(token)


def arch() -> str:
    """The architecture that is compiled for.

    Raises:
        ArgumentValueError: outside of ``compiling``.
    """
    return _context()[0].arch


def add(variant: Variant) -> None:
    """Compiles a kernel and adds it to the context's list, once."""
    from portakernel.authoring.native import read_code
    from portakernel_plugins.cutlass_dsl.compiled import read

    target, found = _context()
    if str(variant) in [known.function for known in found]:
        return
    begin = time.perf_counter()
    ptx, cubin, dynamic = read(variant)
    seconds = time.perf_counter() - begin
    for facts in read_code(cubin)[1].values():
        resources = facts.registers, facts.spilled_bytes, facts.shared_bytes + dynamic
        found.append(Compiled(str(variant), str(target), *resources, seconds, ptx))


def _context() -> tuple[Target, list[Compiled]]:
    context = _COMPILING.get()
    if context is None:
        text = "CuTe DSL's products were given meta tensors, which have no memory; `portakernel compile` uses such"
        raise ArgumentValueError(text)
    return context
