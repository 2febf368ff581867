"""Kernels in Triton: launched in 2 µs, announced where they compile, refused where a graph is being captured.

::

    from portakernel.authoring.tensors import delivered, row_target, with_row_stride
    from portakernel.authoring.triton import launch

    @triton.jit
    def _scale(x, y, columns, x_stride, y_stride, factor, BLOCK: tl.constexpr):
        ...

    def scale(x, *, factor, out=None):
        y, y_stride = row_target(x, out)
        x, x_stride = with_row_stride(x)
        rows, columns = x.numel() // x.shape[-1], x.shape[-1]
        launch(_scale, (rows, 1), x, y, columns, x_stride, y_stride, factor, BLOCK=1024, num_warps=4)
        return delivered(y, out)

``launch`` finds the compiled kernel by the facts that Triton specialises for, without Triton's binder; ``prepared``
keeps that look-up for further launches with the same compile-time values. What Triton has to compile
is announced first: ``portakernel.warmup`` counts it, and a stream that is being captured refuses it. A kernel that
needs more than the device has, or that a pass of Triton's compiler fails on, raises ``CannotRun`` before anything ran:
the next kernel serves such calls, with a warning. What Triton finds wrong in a kernel's own code propagates. Arguments
may be Triton's ``TensorDescriptor`` (TMA): their maps are kept by address, sizes and strides, where Triton makes them
anew for each launch.

A manifest names functions of the plugin's own package, which can be these, imported there: ``ready`` (whether Triton
works on a device), ``interpreting`` (the context of a mode on CPU tensors), ``compiling`` (of ``offline``: for targets
that are not here, and ahead of calls). ``processor`` tells what a launch is shaped for.

Importing this loads Triton and torch.
"""

from __future__ import annotations

from portakernel.triton_launch.direct import Held
from portakernel.triton_launch.interpreter import interpreting, is_interpreting
from portakernel.triton_launch.launch import cdiv, grid_of, in_graphs, launch, prepared, program_index
from portakernel.triton_launch.offline import compiling
from portakernel.triton_launch.probe import ready
from portakernel.triton_launch.processor import Processor, per_device, pretending, processor

__all__ = [
    "Held",
    "Processor",
    "cdiv",
    "compiling",
    "grid_of",
    "in_graphs",
    "interpreting",
    "is_interpreting",
    "launch",
    "per_device",
    "prepared",
    "pretending",
    "processor",
    "program_index",
    "ready",
]
