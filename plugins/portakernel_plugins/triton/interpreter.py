"""Triton's interpreter as an execution mode: kernels run on CPU tensors, one program after the other, in NumPy.

``TRITON_INTERPRET=1`` decides at import, for the whole process. Here a kernel stays compiled code and only the launches
inside ``interpreting()`` are interpreted, so that one process can do both. The interpreter patches ``triton.language``
while a kernel runs: interpreted launches wait for each other, but a kernel that another thread compiles at that moment
would fail.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import FunctionType
from typing import Any

_INTERPRETING: ContextVar[bool] = ContextVar("portakernel_triton_interpreting", default=False)
_LANGUAGE_PATCHED = threading.Lock()


@contextmanager
def interpreting() -> Iterator[None]:
    """Within this context, this thread's launches run in Triton's interpreter, on CPU tensors."""
    token = _INTERPRETING.set(True)
    try:
        yield
    finally:
        _INTERPRETING.reset(token)


def is_interpreting() -> bool:
    """Whether the caller is inside ``interpreting()``."""
    return _INTERPRETING.get()


def run(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
    """Run a ``@triton.jit`` kernel's programs in order; launch options in ``meta`` (``num_warps``) have no effect."""
    import numpy as np

    # A GPU computes with NaN and infinities silently; so does this.
    with _LANGUAGE_PATCHED, _callable_jit_functions(), np.errstate(all="ignore"):
        _interpreted(kernel.fn)[grid](*args, **meta)


@contextmanager
def _callable_jit_functions() -> Iterator[None]:
    """Let Python call jit functions (our own, ``tl.sum``), which compiled code alone can call otherwise."""
    from triton.runtime.jit import JITFunction

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _interpreted(self.fn).rewrite()(*args, **kwargs)

    refuse = JITFunction.__call__
    JITFunction.__call__ = call
    try:
        yield
    finally:
        JITFunction.__call__ = refuse


def _range(*bounds: Any) -> range:
    """``range`` over interpreted scalars: arrays of one element, which triton 3.6 converts as NumPy 2.4 forbids."""
    return range(*(bound.handle.data.item() if hasattr(bound, "handle") else int(bound) for bound in bounds))


@cache
def _interpreted(function: FunctionType) -> Any:
    """The interpreter's form of the function inside a jit function.

    It is made from a copy with globals of its own, because the interpreter adds names to the globals of what it
    rewrites. While a kernel runs, it patches whichever of ``triton.language`` and its core the kernel's globals name;
    the functions that the kernel calls may use either, so both are named.
    """
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    namespace = {**function.__globals__, "_language": tl, "_language_core": tl.core, "range": _range}
    copy = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return InterpretedFunction(copy)
