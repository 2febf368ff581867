"""An emulator as an execution mode: kernels compiled for this machine's CPU, and run on CPU tensors.

``sources/emulator.h`` is a GPU's block as fibers; this compiles a kernel together with it, once in a process, and calls
it. It proves numbers, addresses and their alignment, indices of arrays, and barriers, for warps of 32 and of 64
threads; what is an instruction on a GPU alone (approximate functions, float8 conversions) it cannot.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from portakernel.authoring import ArgumentValueError, CannotRun, ReasonCode, Rejection
from portakernel.authoring.host import make_private
from portakernel.authoring.native import Limits, run_limited

if TYPE_CHECKING:
    from portakernel_plugins.hip.launch import Defines, Program

_WARP_SIZE: ContextVar[int | None] = ContextVar("portakernel_hip_warp_size", default=None)

# Whose configurations hold for warps of each size.
ARCHS = {32: "gfx1100", 64: "gfx942"}

# What a GPU does not forgive, see sources/accesses.h.
_CHECKS = "alignment,bounds"

# A kernel's state is its library's, one for all threads.
_ONE_AT_A_TIME = threading.Lock()

_SCALARS = {"int64": ctypes.c_int64, "float32": ctypes.c_float}


@contextmanager
def emulating(warp_size: int = 64) -> Iterator[None]:
    """Within this context, this thread's launches run on CPU tensors, in warps of 32 or 64 threads.

    Raises:
        ArgumentValueError: no GPU has warps of that size.
    """
    if warp_size not in ARCHS:
        sizes = " or ".join(map(str, ARCHS))
        raise ArgumentValueError(f"emulating: warp_size must be {sizes}, as GPUs have them; this is {warp_size!r}")
    token = _WARP_SIZE.set(warp_size)
    try:
        yield
    finally:
        _WARP_SIZE.reset(token)


def warp_size() -> int | None:
    """Threads of an emulated warp; None outside ``emulating()``."""
    return _WARP_SIZE.get()


def run(
    of: Program, defines: Defines, warp_size: int, grid: tuple[int, int], threads: int, args: Sequence[Any]
) -> None:
    """Run the kernel's blocks in order.

    Raises:
        CannotRun: there is no C++ compiler.
    """
    with _ONE_AT_A_TIME:
        function = _compiled(of, defines, warp_size)
        values = [_value(kind, given) for kind, given in zip(of.parameters, args, strict=True)]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        function(*grid, threads, pointers)


def _value(kind: str, given: Any) -> Any:
    if kind == "pointer":
        return ctypes.c_void_p(given.data_ptr() if isinstance(given, Tensor) else given)
    return _SCALARS[kind](given)


@cache
def _folder() -> Path:
    """Where this process's libraries lie; it goes with the process."""
    return make_private("emulator")


def _compiler() -> str:
    """This machine's C++ compiler."""
    named = os.environ.get("CXX")
    found = next(filter(None, map(shutil.which, [named] if named else ["g++", "clang++", "c++"])), None)
    if found is None:
        text = f"the emulator compiles kernels with a C++ compiler and finds {named or 'none'}; install g++, or set CXX"
        raise CannotRun(Rejection(ReasonCode.MISSING_TOOLCHAIN, text))
    return found


@cache
def _compiled(of: Program, defines: Defines, warp_size: int) -> Any:
    """The kernel's ``launch``, see ``sources/emulated.cpp``."""
    library = _folder() / f"{of.name}-{_compiled.cache_info().misses}.so"
    source = of.source.path
    macros = {**dict(defines), "EMULATED": warp_size, "KERNEL": of.name, "SOURCE": f'"{source.name}"'}
    # Hidden, because g++ makes what inlines and templates keep unique in a process, of libraries that show it: as large
    # as in the first one, though what is shared memory here differs between configurations. -O0, because to compile
    # takes longer than to run. Without default libraries, of which g++ adds one that is to say what the checks found.
    compiler = _compiler()
    command = [
        compiler,
        *("-std=c++17", "-O0", "-shared", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-w"),
        *(f"-fsanitize={_CHECKS}", f"-fno-sanitize-recover={_CHECKS}"),
        f"-I{source.parent}",
        *(f"-D{name}={value}" for name, value in macros.items()),
        *("-o", str(library), str(source.with_name("emulated.cpp"))),
        *("-fno-exceptions", "-nodefaultlibs", "-lm", "-lc"),
    ]
    ran = run_limited(command, Limits(), folder=_folder())
    if ran.status:
        ended = ran.signal or f"status {ran.status}"
        silent = f"{compiler} ended with {ended} and wrote nothing; set CXX to a C++ compiler that works here"
        raise RuntimeError(f"{source} does not compile for the emulator:\n{ran.told.strip() or silent}")
    try:
        function = ctypes.CDLL(str(library)).launch
    except OSError as error:
        text = f"what the emulator compiled cannot be loaded: {error}; set TMPDIR to a folder on a file system that is"
        raise CannotRun(Rejection(ReasonCode.PROBE_FAILED, f"{text} not mounted noexec")) from error
    function.argtypes = [ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p)]
    function.restype = None
    return function
