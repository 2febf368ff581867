"""Triton launches that go elsewhere than to the device: into the interpreter, or into a graph that is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# (kernel, grid, args, meta) -> None
Launch = Callable[[Any, tuple[int, ...], tuple[Any, ...], Mapping[str, Any]], None]

# The attribute of a kernel with the compile-time values that it has in compiled graphs.
IN_GRAPHS = "portakernel_in_graphs"
_INSTEAD: ContextVar[Launch | None] = ContextVar("portakernel_triton_launches", default=None)
# What takes this thread's launches now; None where the device does. Every launch asks: so it is the variable's own.
diversion: Callable[[], Launch | None] = _INSTEAD.get


@contextmanager
def diverted(launch: Launch) -> Iterator[None]:
    """Within this context, this thread's launches go to ``launch``."""
    token = _INSTEAD.set(launch)
    try:
        yield
    finally:
        _INSTEAD.reset(token)
