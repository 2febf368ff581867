"""``softmax`` in OpenCL C (``softmax.cl``), on CPU tensors where they lie."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from opencl_backend.launch import Arguments, Program, launch
from opencl_backend.memory import STORAGES, bytes_of, delivered, readable, writable


def softmax(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``exp(x - max(x)) / sum(exp(x - max(x)))`` over the last dimension, computed in float32 and rounded once.

    ``x: (*M, N)``, contiguous, of float32, float16, bfloat16. ``out``: any strides; may be ``x``.
    """
    columns = x.shape[-1]
    y = writable(out, tuple(x.shape), x.dtype)
    arguments = Arguments(given=[readable(x)], written=[bytes_of(y)], scalars=[np.uint64(columns)])
    launch(Program("softmax", (f"X={STORAGES[x.dtype]}",)), "softmax", x.numel() // columns, arguments)
    return delivered(y, out)
