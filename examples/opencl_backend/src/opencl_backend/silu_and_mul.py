"""``silu_and_mul`` and its gradient in OpenCL C (``silu_and_mul.cl``), on CPU tensors where they lie."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from opencl_backend.launch import Arguments, Program, launch
from opencl_backend.memory import STORAGES, bytes_of, delivered, readable, writable


def silu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(x[..., :N]) * x[..., N:]``, computed in float32 and rounded once.

    ``x: (*M, 2N)``, contiguous, of float32, float16, bfloat16; the result is ``(*M, N)``. ``out``: any strides.
    """
    columns = x.shape[-1] // 2
    y = writable(out, (*x.shape[:-1], columns), x.dtype)
    arguments = Arguments(given=[readable(x)], written=[bytes_of(y)], scalars=[np.uint64(columns)])
    launch(_program(x), "silu_and_mul", y.numel() // columns, arguments)
    return delivered(y, out)


def backward(grad_y: Tensor, x: Tensor, *, needs: tuple[bool, ...] = (True,)) -> tuple[Tensor | None]:
    """The gradient for ``x`` from that of ``y``, which may have any strides."""
    if not needs[0]:
        return (None,)
    columns = x.shape[-1] // 2
    grad_x = torch.empty(x.shape, dtype=x.dtype)
    arguments = Arguments(
        given=[readable(grad_y), readable(x)], written=[bytes_of(grad_x)], scalars=[np.uint64(columns)]
    )
    launch(_program(x), "silu_and_mul_backward", x.numel() // (2 * columns), arguments)
    return (grad_x,)


def _program(x: Tensor) -> Program:
    return Program("silu_and_mul", (f"X={STORAGES[x.dtype]}",))
