"""Triton's interpreter as an execution mode: kernels run on CPU tensors, one program after the other, in NumPy.

``TRITON_INTERPRET=1`` decides at import, for the whole process. Here a kernel stays compiled code and only the launches
inside ``interpreting()`` are interpreted, so that one process can do both. The interpreter patches ``triton.language``
while a kernel runs: interpreted launches wait for each other, but a kernel that another thread compiles at that moment
would fail.
"""
# pyright: reportPrivateUsage=false
# The conversion that is replaced has no public name (triton 3.6 to 3.9).

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any

from portakernel.tensors.diversion import diversion, diverted
from portakernel.triton_launch.interpreter_shortcuts import shortcuts

_LANGUAGE_PATCHED = threading.Lock()


@contextmanager
def interpreting() -> Iterator[None]:
    """Within this context, this thread's launches run in Triton's interpreter, on CPU tensors."""
    with diverted(_interpret):
        yield


def is_interpreting() -> bool:
    """Whether the caller is inside ``interpreting()``."""
    return diversion() is _interpret


def _interpret(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
    run(kernel, grid, args, meta)


def run(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
    """Run a ``@triton.jit`` kernel's programs in order; launch options in ``meta`` (``num_warps``) have no effect."""
    _import_gluon()
    with (
        _LANGUAGE_PATCHED, shortcuts(), _callable_jit_functions(), _exact_bfloat16(), _rows_apart(), _scalar_ranges(),
        _silence(),
    ):  # fmt: skip
        _interpreted(kernel.fn)[grid](*args, **meta)


@cache
def _import_gluon() -> None:
    """Import Gluon before anything is patched.

    Its builtins are made of those that ``triton.language`` has at that moment. Triton itself imports it as it first
    asks for an argument's type (3.9): inside a launch, whose patches would be in every Gluon kernel compiled later.
    """
    import_module("triton.experimental.gluon")


@contextmanager
def _silence() -> Iterator[None]:
    """A GPU computes with NaN and infinities silently; so does this."""
    import numpy as np

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice encountered", RuntimeWarning)  # tl.max of nothing but NaN
        yield


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


@contextmanager
def _exact_bfloat16() -> Iterator[None]:
    """Convert between bfloat16 and float32 as hardware does: triton's own function gets subnormal numbers wrong."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    general = interpreter._convert_float

    def convert(input: Any, input_dtype: Any, output_dtype: Any, rounding_mode: Any) -> Any:
        if (input_dtype, output_dtype) == (tl.bfloat16, tl.float32):
            return (input.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        if (input_dtype, output_dtype) == (tl.float32, tl.bfloat16):
            bits = input.view(np.uint32)
            # half of what is cut off, less one where the last bit kept is even: rounds to nearest, ties to even
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            return np.where(np.isnan(input), 0x7FC0, rounded).astype(np.uint16)
        return general(input, input_dtype, output_dtype, rounding_mode)

    interpreter._convert_float = convert
    try:
        yield
    finally:
        interpreter._convert_float = general


@contextmanager
def _rows_apart() -> Iterator[None]:
    """Let ``tl.dot`` multiply row by row, so that a row's bits depend neither on its place in a tile nor on strides.

    Matrix units give that; BLAS, which multiplies whole tiles faster, does not on every CPU (OpenBLAS on AMD's Zen 5).
    """
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    builder: Any = InterpreterBuilder
    whole = builder.create_dot

    def dot(self: Any, a: Any, b: Any, d: Any, *how: Any) -> Any:
        rows, columns = (np.ascontiguousarray(tile.data) for tile in (a, b))
        by_row = rows[..., None, :], columns[..., None, :, :], d.data[..., None, :]
        product = whole(self, *map(TensorHandle, by_row, (a.dtype, b.dtype, d.dtype)), *how)
        return TensorHandle(product.data[..., 0, :], d.dtype.scalar)

    builder.create_dot = dot
    try:
        yield
    finally:
        builder.create_dot = whole


def _range(*bounds: Any) -> range:
    """``range`` over interpreted scalars: arrays of one element, which triton 3.6 converts as NumPy 2.4 forbids."""
    return range(*(bound.handle.data.item() if hasattr(bound, "handle") else int(bound) for bound in bounds))


@contextmanager
def _scalar_ranges() -> Iterator[None]:
    """Let ``tl.range``, which is made of the interpreter's own ``range``, take interpreted scalars too."""
    from triton.runtime import interpreter

    names: Any = vars(interpreter)
    names["range"] = _range
    try:
        yield
    finally:
        del names["range"]


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
