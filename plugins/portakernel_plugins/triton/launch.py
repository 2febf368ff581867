"""How this plugin launches: one way in, for compiled and interpreted kernels, and what a launch needs to know."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources

from portakernel.capability import CannotRun, ReasonCode, Rejection
from portakernel.compilation import compilations
from portakernel.errors import ArgumentValueError
from portakernel_plugins.triton import interpreter

# Programs along a grid's first dimension before the second is used. HIP bounds programs times threads to 2**32 in each
# dimension, and CUDA the second dimension to 65535: both leave room for 2**35 programs of 1024 threads.
_GRID_WIDTH = 1 << 20

# The most threads that CUDA and HIP admit in one program.
_MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Processor:
    """What a launch's shape depends on: how many programs run side by side, and the threads of a warp."""

    multiprocessors: int
    warp_size: int

    def warps(self, wanted: int) -> int:
        """``wanted`` warps, or as many as one program may have."""
        return min(wanted, _MAX_THREADS // self.warp_size)


@cache
def processor(device: torch.device) -> Processor:
    """The processor behind ``device``; for a CPU, where kernels are interpreted, a small one."""
    if device.type != "cuda":
        return Processor(multiprocessors=1, warp_size=32)
    properties = torch.cuda.get_device_properties(device)
    return Processor(properties.multi_processor_count, properties.warp_size)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, parameter: str | None = None, **meta: Any) -> None:
    """Launch ``kernel`` on the current device, which the dispatcher makes the arguments'; or interpret it.

    ``parameter`` is the dimension to name where the kernel needs more than the device has; it is not passed on.

    Raises:
        CannotRun: the compiled kernel exceeds a resource of the device; nothing was launched.
        CaptureError: it is not compiled for such arguments, and a stream is being captured.
        ArgumentValueError: CPU tensors, outside ``interpreting()``.
    """
    if interpreter.is_interpreting():
        interpreter.run(kernel, grid, args, meta)
        return
    device = args[0].device
    # Under TRITON_INTERPRET=1 the kernel is no JITFunction, and CPU tensors are what it takes.
    if device.type == "cpu" and isinstance(kernel, triton.JITFunction):
        raise ArgumentValueError(
            f"Triton kernel {kernel.__name__} was given tensors on cpu; it is compiled for GPUs (torch device cuda)."
            " Move the tensors to a GPU, or run it in Triton's interpreter, inside"
            " portakernel_plugins.triton.interpreter.interpreting()"
        )
    if "_do_compile" not in vars(kernel) and isinstance(kernel, triton.JITFunction):
        _announce_compilations(kernel)
    try:
        # Said explicitly, because Triton's default is an environment variable's and changes with 3.10.
        kernel[grid](*args, enable_fp_fusion=True, **meta)
    except OutOfResources as error:
        raise CannotRun(_too_large(kernel, error, parameter)) from error


def _announce_compilations(kernel: Any) -> None:
    """From now on ``kernel`` says when a call makes it compile; a launch that finds it compiled pays nothing for that.

    Triton calls this method of a JITFunction where its cache has no fitting kernel (3.6 to 3.9). Its own hook for that
    is one for the whole process, and the user's.
    """
    compile_for = kernel._do_compile

    def announced(*args: Any, **options: Any) -> Any:
        compilations().announce(f"Triton kernel {kernel.__module__}.{kernel.__name__}")
        return compile_for(*args, **options)

    kernel._do_compile = announced


def _too_large(kernel: Any, error: OutOfResources, parameter: str | None) -> Rejection:
    code = ReasonCode.SHARED_MEMORY if error.name == "shared memory" else ReasonCode.CANNOT_RUN
    unit = " bytes" if code is ReasonCode.SHARED_MEMORY else ""
    text = f"compiled, {kernel.__name__} needs {error.required}{unit} of {error.name}; the device has {error.limit}"
    return Rejection(code, text, parameter)


def grid_of(programs: int) -> tuple[int, int]:
    """A grid of at least ``programs`` programs, for kernels that number theirs with ``program_index``."""
    height = math.ceil(programs / _GRID_WIDTH)
    return math.ceil(programs / height), height


@triton.jit
def program_index():
    """This program's number in a ``grid_of`` grid, int64: offsets made from it reach beyond 2**31 elements."""
    return tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)


def row_stride(tensor: Tensor) -> int | None:
    """Elements between neighbouring rows of ``tensor`` ``(..., N)`` seen as ``(M, N)``, rows being contiguous.

    None where no single stride serves. One row, or none, counts as contiguous, so that a row's launch, and with it its
    bits, is not decided by a stride that nothing follows.
    """
    columns = tensor.shape[-1]
    if columns > 1 and tensor.stride(-1) != 1:
        return None
    stride: int | None = None
    span = 0
    for size, step in zip(reversed(tensor.shape[:-1]), reversed(tensor.stride()[:-1]), strict=True):
        if size == 0:
            return columns
        if size == 1:
            continue
        if stride is None:
            stride, span = step, step * size
        elif step == span:
            span = step * size
        else:
            return None
    return columns if stride is None else stride
