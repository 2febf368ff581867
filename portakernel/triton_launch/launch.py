"""Launches of Triton kernels: one way in, compiled or interpreted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any

import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.errors import ArgumentValueError
from portakernel.tensors.compilation import compilations
from portakernel.tensors.diversion import IN_GRAPHS, diversion
from portakernel.triton_launch.cache_folder import FOLDER
from portakernel.triton_launch.descriptors import enter_context, is_descriptor, tensor_of
from portakernel.triton_launch.direct import Held
from portakernel.triton_launch.processor import pretended_launch

# The options of every launch. Contraction is said explicitly: its default is an environment variable's, and changes
# with triton 3.10.
OPTIONS = {"enable_fp_fusion": True}

# By the jit function's identity (to hash one, Triton reads its source) and what it is compiled with. They live as long
# as their module.
_HELD: dict[tuple[Any, ...], Held] = {}
_MOST_HELD = 4096

# Programs along a grid's first dimension before the second is used. HIP bounds programs times threads to 2**32 in each
# dimension, and CUDA the second dimension to 65535: both leave room for 2**35 programs of 1024 threads.
_GRID_WIDTH = 1 << 20


def launch(kernel: Any, grid: tuple[int, int], *args: Any, parameter: str | None = None, **meta: Any) -> None:
    """Launch ``kernel`` on the current device, which the dispatcher makes the arguments'; or interpret it.

    The first argument is a tensor or a ``TensorDescriptor``, Triton's or Gluon's; of a descriptor the map is kept, so
    that one of the same memory costs little the next time. ``grid`` counts programs along two dimensions. ``parameter``
    is the dimension to name where the kernel needs more than the device has; it is not passed on.

    Raises:
        CannotRun: the compiled kernel exceeds a resource of the device, or Triton's compiler fails on it; nothing was
            launched.
        CaptureError: it is not compiled for such arguments, and a stream is being captured.
        ArgumentValueError: CPU tensors, outside ``interpreting()``.
    """
    prepared(kernel, meta, parameter).launch(grid, *args)


def prepared(kernel: Any, meta: Mapping[str, Any], parameter: str | None = None) -> Held:
    """``kernel`` with its compile-time values and options, whose ``launch(grid, *args)`` is ``launch``."""
    key = (id(kernel), parameter, *meta, *meta.values())
    held = _HELD.get(key)
    if held is None:
        if len(_HELD) >= _MOST_HELD:
            _HELD.clear()
        held = _HELD[key] = Held(kernel, _understood(meta), partial(_launch_anew, parameter))
    return held


def _understood(meta: Mapping[str, Any]) -> dict[str, Any]:
    """``meta`` without a false ``launch_pdl``: it is NVIDIA's default, and AMD's backend has no such option."""
    return {name: value for name, value in meta.items() if name != "launch_pdl" or value}


def with_options(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What a kernel is compiled with: every launch's options, but where ``meta`` says otherwise."""
    return {**OPTIONS, **meta}


def in_graphs(kernel: Any, **meta: Any) -> None:
    """From now on ``kernel`` has these compile-time values where a compiled graph records it, whatever its launch says.

    Inductor reads from a kernel's code what it writes. From assembly it cannot, and takes every argument to be written.
    """
    setattr(kernel, IN_GRAPHS, meta)


def _launch_anew(parameter: str | None, held: Held, grid: tuple[int, int], args: tuple[Any, ...]) -> None:
    """Interprets, records, pretends, or has Triton launch, and keeps what Triton compiled."""
    kernel, meta = held.kernel, held.meta
    if (instead := diversion()) is not None:
        instead(kernel, grid, args, meta)
        return
    first = tensor_of(args[0])
    if first.is_meta and (pretended := pretended_launch()) is not None:
        pretended(kernel, grid, args, meta)
        return
    # Under TRITON_INTERPRET=1 the kernel is no JITFunction, and CPU tensors are what it takes.
    jitted = isinstance(kernel, triton.JITFunction)
    if jitted and first.device.type == "cpu":
        raise ArgumentValueError(
            f"Triton kernel {kernel.__name__} was given tensors on cpu; it is compiled for GPUs (torch device cuda)."
            " Move the tensors to a GPU, or run it in Triton's interpreter, inside"
            " portakernel.authoring.triton.interpreting()"
        )
    if jitted and "_do_compile" not in vars(kernel):
        hash_helpers(kernel)
        _announce_compilations(kernel)
    if any(is_descriptor(type(arg)) for arg in args):
        enter_context()
    try:
        compiled = _launched(kernel, grid, args, meta)
    except OutOfResources as error:
        raise CannotRun(_too_large(kernel, error, parameter)) from error
    if jitted and not held.watched():
        held.hold(compiled, args)


def _launched(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: Mapping[str, Any]) -> Any:
    """Triton's own launch, which compiles what its cache lacks; the compiled kernel."""
    try:
        return kernel[grid](*args, **with_options(meta))
    except OSError as error:
        if not FOLDER.recover(error):
            raise
        return kernel[grid](*args, **with_options(meta))


def hash_helpers(kernel: Any) -> None:
    """Has Triton hash the functions that ``kernel`` calls before the kernel itself.

    In 3.6 the name of a kernel in Triton's cache depends on whether a function with compile-time globals that it calls
    was hashed before, as for another kernel: what one process compiled, others would not find that make their calls in
    another order.
    """
    names, scope = kernel.fn.__code__.co_names, kernel.__globals__
    for value in [scope.get(name) for name in names]:
        values = [getattr(value, name, None) for name in names] if isinstance(value, ModuleType) else [value]
        for helper in values:
            if isinstance(helper, triton.runtime.jit.JITCallable) and helper.hash is None and helper is not kernel:
                hash_helpers(helper)
                helper.cache_key  # noqa: B018 - a property that keeps what it computes


def _announce_compilations(kernel: Any) -> None:
    """From now on ``kernel`` says when a call makes it compile; a launch that finds it compiled pays nothing for that.

    Triton calls this method of a JITFunction where its cache has no fitting kernel (3.6 to 3.9). Its own hook for that
    is one for the whole process, and the user's.
    """
    compile_for = kernel._do_compile

    def announced(*args: Any, **options: Any) -> Any:
        # Inductor, and whoever else is in this process, may have had Triton use another directory
        if (rejection := FOLDER.settle()) is not None:
            raise CannotRun(rejection)
        compilations().announce(f"Triton kernel {kernel.__module__}.{kernel.__name__}")
        with compilations().timed("triton", kernel.__name__):
            try:
                return compile_for(*args, **options)
            except RuntimeError as error:
                # a pass of MLIR's or LLVM's failed; what is wrong in the kernel itself Triton says by errors of its own
                raise CannotRun(_uncompiled(kernel, error)) from error

    kernel._do_compile = announced


def _too_large(kernel: Any, error: OutOfResources, parameter: str | None) -> Rejection:
    code = ReasonCode.SHARED_MEMORY if error.name == "shared memory" else ReasonCode.CANNOT_RUN
    unit = " bytes" if code is ReasonCode.SHARED_MEMORY else ""
    text = f"compiled, {kernel.__name__} needs {error.required}{unit} of {error.name}; the device has {error.limit}"
    return Rejection(code, text, parameter)


def _uncompiled(kernel: Any, error: RuntimeError) -> Rejection:
    text = f"triton {triton.__version__} does not compile {kernel.__name__} for such arguments"
    return Rejection(ReasonCode.CANNOT_RUN, f"{text} ({error}); another version of it may")


def cdiv(numerator: int, denominator: int) -> int:
    """The quotient rounded up; ``triton.cdiv`` takes microseconds."""
    return -(-numerator // denominator)


def grid_of(programs: int) -> tuple[int, int]:
    """A grid of at least ``programs`` programs, for kernels that number theirs with ``program_index``."""
    if programs <= _GRID_WIDTH:
        return programs, 1
    height = cdiv(programs, _GRID_WIDTH)
    return cdiv(programs, height), height


@triton.jit
def program_index():
    """This program's number in a ``grid_of`` grid, int64: offsets made from it reach beyond 2**31 elements."""
    return tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
