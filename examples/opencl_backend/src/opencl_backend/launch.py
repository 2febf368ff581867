"""Launches of this package's OpenCL C on arrays of the host, given as their bytes, where they lie.

A launch goes over rows: of some arguments each part of it gets its rows, of others all. Rows are launched in parts,
because a device need not accept a buffer of any size.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyopencl as cl

from opencl_backend.probe import opened
from portakernel.authoring import CannotRun, ReasonCode, Rejection

Bytes = npt.NDArray[np.uint8]
Scalar = np.float32 | np.uint64

_PART_BYTES = 32 << 20  # a buffer of this size is accepted by every device (OpenCL API, CL_DEVICE_MAX_MEM_ALLOC_SIZE)

# A kernel object holds its arguments, so that one thread at a time may set and enqueue them.
_LAUNCHING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Program:
    """A file of OpenCL C, and the macros that it is built with: ``Program("add", ("X=f32",))``.

    There are no other options: ``-cl-denorms-are-zero`` would flush subnormal numbers.
    """

    file: str
    macros: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a kernel takes, in this order; behind the scalars comes the number of rows.

    Of ``given`` and ``written`` each part of a launch gets its rows; of ``whole`` and ``summed``, which every part
    reads and writes, all.
    """

    given: Sequence[Bytes] = ()
    written: Sequence[Bytes] = ()
    whole: Sequence[Bytes] = ()
    summed: Sequence[Bytes] = ()
    scalars: Sequence[Scalar] = ()


def launch(
    program: Program, kernel: str, rows: int, arguments: Arguments, *, items: int = 0, group: int = 1, step: int = 1
) -> None:
    """Runs ``kernel`` over ``rows``, one work-item a row or ``items`` in all, and waits for what it writes.

    ``group`` work-items become one vectorised loop in PoCL; parts hold a multiple of ``step`` rows.

    Buffers that overlap give undefined results (OpenCL API, clCreateBuffer, CL_MEM_USE_HOST_PTR), so arrays in the same
    place share one buffer: a work-item reads its row before it writes that place, and nothing else touches it, so that
    working in place is defined. What is read and overlaps otherwise is copied.

    Raises:
        CannotRun: in a process forked from the one that opened the driver, whose threads did not come along.
    """
    if os.getpid() != opened().process:
        text = "OpenCL's driver was opened before this process was forked, and its threads stayed behind"
        raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, f"{text}; start workers by spawn, not fork"))
    if not rows:
        return
    by_rows = _apart([*arguments.written, *arguments.summed], arguments.given)
    whole = [array.copy() if _overlaps_any(array, arguments.written) else array for array in arguments.whole]
    widest = max((array.nbytes // rows for array in (*by_rows, *arguments.written)), default=1)
    part = max(step, _PART_BYTES // max(widest, 1) // step * step)
    for first in range(0, rows, part):
        count = min(part, rows - first)
        given, written = (_rows(arrays, rows, first, count) for arrays in (by_rows, arguments.written))
        buffers = _Buffers(queue())
        places = [*given, *written, *whole, *arguments.summed]
        passed = [*map(buffers.of, places), *arguments.scalars, np.uint64(count)]
        _run(program, kernel, passed, items or count, group)
        buffers.read([*written, *arguments.summed])


def _run(program: Program, kernel: str, arguments: Sequence[cl.Buffer | Scalar], items: int, group: int) -> None:
    now = queue()
    local = min(group, now.device.max_work_group_size)
    with _LAUNCHING:
        _kernels(program)[kernel](now, (-(-items // local) * local,), (local,), *arguments)


class _Buffers:
    """The buffers over arrays of the host, one for each place."""

    def __init__(self, now: cl.CommandQueue) -> None:
        self.queue = now
        self.found: dict[tuple[int, int], cl.Buffer] = {}

    def of(self, array: Bytes) -> cl.Buffer:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        place = (_address(array), array.nbytes)
        if place not in self.found:
            self.found[place] = cl.Buffer(self.queue.context, flags, hostbuf=array)
        return self.found[place]

    def read(self, arrays: Sequence[Bytes]) -> None:
        """Waits until the host's memory holds what was written: it does once it is mapped, in the queue's order."""
        for array in arrays:
            size, flag, kind = array.nbytes, cl.map_flags.READ, np.dtype(np.uint8)
            mapped, _ = cl.enqueue_map_buffer(self.queue, self.of(array), flag, 0, (size,), kind, is_blocking=True)
            mapped.base.release(self.queue).wait()


@cache
def queue() -> cl.CommandQueue:
    """The queue of the first device: dispatch asks ``ready`` about the first that a kernel's targets cover."""
    return cl.CommandQueue(cl.Context([opened().devices[0]]))


_BUILDING = threading.Lock()
_BUILT: dict[Program, Mapping[str, cl.Kernel]] = {}


def _kernels(program: Program) -> Mapping[str, cl.Kernel]:
    """The kernels of a program, by name; built once."""
    with _BUILDING:
        if program not in _BUILT:
            folder = Path(__file__).parent
            files = [folder / f"{name}.cl" for name in ("storage", program.file)]
            source = "\n".join(file.read_text(encoding="utf-8") for file in files)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cl.CompilerWarning)  # some drivers report success in words
                built = cl.Program(queue().context, source).build([f"-D{macro}" for macro in program.macros])
            _BUILT[program] = {kernel.function_name: kernel for kernel in built.all_kernels()}
        return _BUILT[program]


def _rows(arrays: Sequence[Bytes], rows: int, first: int, count: int) -> list[Bytes]:
    return [array[first * (size := array.nbytes // rows) : (first + count) * size] for array in arrays]


def _apart(written: Sequence[Bytes], given: Sequence[Bytes]) -> list[Bytes]:
    """``given``, with copies of what overlaps something else without lying in the same place."""
    found: list[Bytes] = []
    for array in given:
        found.append(array.copy() if _overlaps_any(array, [*written, *found], same_place=False) else array)
    return found


def _overlaps_any(array: Bytes, others: Sequence[Bytes], *, same_place: bool = True) -> bool:
    return any(
        np.may_share_memory(array, other)
        and (same_place or (_address(array), array.nbytes) != (_address(other), other.nbytes))
        for other in others
    )


def _address(array: Bytes) -> int:
    return array.ctypes.data
