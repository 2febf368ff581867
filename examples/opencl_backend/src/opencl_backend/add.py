"""``add`` in OpenCL C, on CPU tensors where they lie."""

from __future__ import annotations

import os
import threading
import warnings
from functools import cache

import numpy as np
import numpy.typing as npt
import pyopencl as cl
import torch
from torch import Tensor

from opencl_backend.probe import opened
from portakernel.capability import CannotRun, ReasonCode, Rejection

# Built without options: -cl-denorms-are-zero would flush subnormals. float16 is stored, not computed in, so that no
# extension is needed; OpenCL C knows no bfloat16, which is the upper half of a float32.
_SOURCE = """
kernel void add_float32(global const float *x, global const float *y, global float *out, ulong elements)
{
    size_t i = get_global_id(0);
    if (i < elements)
        out[i] = x[i] + y[i];
}

kernel void add_float16(global const half *x, global const half *y, global half *out, ulong elements)
{
    size_t i = get_global_id(0);
    if (i < elements)
        vstore_half_rte(vload_half(i, x) + vload_half(i, y), i, out);
}

kernel void add_bfloat16(global const ushort *x, global const ushort *y, global ushort *out, ulong elements)
{
    size_t i = get_global_id(0);
    if (i < elements) {
        float sum = as_float((uint)x[i] << 16) + as_float((uint)y[i] << 16);
        uint bits = as_uint(sum);
        uint nearest = bits + 0x7fff + (bits >> 16 & 1);  // a tie goes to the even one
        // a NaN with all bits set would be rounded to -0
        out[i] = (isnan(sum) ? bits | 0x400000 : nearest) >> 16;
    }
}
"""
Bytes = npt.NDArray[np.uint8]

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_GROUP = 256  # work-items that PoCL turns into one vectorised loop
_PART_BYTES = 32 << 20  # a buffer of this size is accepted by every device (OpenCL API, CL_DEVICE_MAX_MEM_ALLOC_SIZE)

# A kernel object holds its arguments, so that one thread at a time may set and enqueue them.
_LAUNCHING = threading.Lock()


def add(x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``x + y``, computed in float32 and rounded once, to nearest, ties to even.

    ``x``, ``y``: one shape, contiguous, one dtype of float32, float16, bfloat16. ``out``: any strides; may be ``x`` or
    ``y`` itself.
    """
    direct = out is not None and out.is_contiguous() and _is_aligned(out)
    result = out if out is not None and direct else torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel():
        # OpenCL wants a buffer's memory aligned for its type; torch.frombuffer makes tensors that are not.
        x, y = (tensor if _is_aligned(tensor) else tensor.clone() for tensor in (x, y))
        launch(str(x.dtype).removeprefix("torch."), _bytes(x), _bytes(y), _bytes(result))
    return result if out is None or out is result else out.copy_(result)


def launch(dtype: str, x: Bytes, y: Bytes, out: Bytes) -> None:
    """Add arrays of one length, given as their bytes, and wait for the result.

    Buffers that overlap give undefined results (OpenCL API, clCreateBuffer, CL_MEM_USE_HOST_PTR), so arrays in the same
    place share one buffer: then the i-th work-item reads its inputs before it writes their place, and nothing else
    touches it, so that in-place addition is defined. An input that overlaps otherwise is copied.

    Raises:
        CannotRun: in a process forked from the one that opened the driver, whose threads did not come along.
    """
    if os.getpid() != opened().process:
        text = "OpenCL's driver was opened before this process was forked, and its threads stayed behind"
        raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, f"{text}; start workers by spawn, not fork"))
    queue, kernels = _kernels()
    x = _apart(x, out)
    y = _apart(_apart(y, out), x)
    for start in range(0, out.nbytes, _PART_BYTES):
        parts = [array[start : start + _PART_BYTES] for array in (x, y, out)]
        _launch_part(queue, kernels[dtype], parts, parts[0].nbytes // _ITEM_BYTES[dtype])


def _launch_part(queue: cl.CommandQueue, kernel: cl.Kernel, parts: list[Bytes], elements: int) -> None:
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    shared = {_address(part): cl.Buffer(queue.context, flags, hostbuf=part) for part in parts}
    buffers = [shared[_address(part)] for part in parts]
    group = min(_GROUP, queue.device.max_work_group_size)
    items = -(-elements // group) * group
    with _LAUNCHING:
        kernel(queue, (items,), (group,), *buffers, np.uint64(elements))
    # The memory holds the result once it is mapped; mapping waits for the kernel, as the queue is in order.
    size, read = parts[2].nbytes, cl.map_flags.READ
    mapped, _ = cl.enqueue_map_buffer(queue, buffers[2], read, 0, (size,), np.dtype(np.uint8), is_blocking=True)
    mapped.base.release(queue).wait()


@cache
def _kernels() -> tuple[cl.CommandQueue, dict[str, cl.Kernel]]:
    # The first device: dispatch asks ready() about the first one that a kernel's targets cover, and runs it there.
    device = opened().devices[0]
    queue = cl.CommandQueue(cl.Context([device]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)  # some drivers report success in words
        program = cl.Program(queue.context, _SOURCE).build()
    return queue, {dtype: cl.Kernel(program, f"add_{dtype}") for dtype in _ITEM_BYTES}


def _apart(array: Bytes, other: Bytes) -> Bytes:
    """``array``, or a copy of it where it overlaps ``other`` without lying in the same place."""
    overlaps = np.may_share_memory(array, other) and _address(array) != _address(other)
    return array.copy() if overlaps else array


def _address(array: Bytes) -> int:
    return array.ctypes.data


def _is_aligned(tensor: Tensor) -> bool:
    return tensor.data_ptr() % tensor.element_size() == 0


def _bytes(tensor: Tensor) -> Bytes:
    """A contiguous tensor's memory. Its strides are not asked: a single element may have any."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
