"""``add`` in OpenCL C (``add.cl``), on CPU tensors where they lie."""

from __future__ import annotations

from torch import Tensor

from opencl_backend.launch import Arguments, Program, launch
from opencl_backend.memory import STORAGES, bytes_of, delivered, readable, writable

_GROUP = 256  # work-items that PoCL turns into one vectorised loop


def add(x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``x + y``, computed in float32 and rounded once, to nearest, ties to even.

    ``x``, ``y``: one shape, contiguous, one dtype of float32, float16, bfloat16. ``out``: any strides; may be ``x`` or
    ``y`` itself.
    """
    result = writable(out, tuple(x.shape), x.dtype)
    arguments = Arguments(given=[readable(x), readable(y)], written=[bytes_of(result)])
    launch(Program("add", (f"X={STORAGES[x.dtype]}",)), "add", x.numel(), arguments, group=_GROUP)
    return delivered(result, out)
