"""``log_softmax`` and its gradient in OpenCL C (``log_softmax.cl``), on CPU tensors where they lie."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from opencl_backend.launch import Arguments, Program, launch
from opencl_backend.memory import STORAGES, bytes_of, delivered, readable, writable


def log_softmax(
    x: Tensor, *, temperature: float, out: Tensor | None = None, save: bool = False
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """``(x - top) / temperature - rest``, in float32, rounded once; ``top`` and ``rest``, ``(M,)``, too when ``save``.

    ``x: (*M, N)``, contiguous, of float32, float16, bfloat16. ``out``: any strides; may be ``x``.
    """
    columns = x.shape[-1]
    rows = x.numel() // columns
    y = writable(out, tuple(x.shape), x.dtype)
    top, rest = torch.empty(rows), torch.empty(rows)
    arguments = Arguments(
        given=[readable(x)],
        written=[bytes_of(y), bytes_of(top), bytes_of(rest)],
        scalars=[np.float32(temperature), np.uint64(columns)],
    )
    launch(_program(x), "log_softmax", rows, arguments)
    y = delivered(y, out)
    return (y, top, rest) if save else y


def backward(
    grad_y: Tensor, x: Tensor, top: Tensor, rest: Tensor, *, temperature: float, needs: tuple[bool, ...] = (True,)
) -> tuple[Tensor | None]:
    """The gradient for ``x`` from that of ``y``, which may have any strides."""
    if not needs[0]:
        return (None,)
    grad_x = torch.empty(x.shape, dtype=x.dtype)
    arguments = Arguments(
        given=[readable(grad_y), readable(x), readable(top), readable(rest)],
        written=[bytes_of(grad_x)],
        scalars=[np.float32(temperature), np.uint64(x.shape[-1])],
    )
    launch(_program(x), "log_softmax_backward", top.numel(), arguments)
    return (grad_x,)


def _program(x: Tensor) -> Program:
    return Program("log_softmax", (f"X={STORAGES[x.dtype]}",))
