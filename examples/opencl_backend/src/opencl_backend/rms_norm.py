"""``rms_norm`` and its gradient in OpenCL C (``rms_norm.cl``), on CPU tensors where they lie."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from opencl_backend.launch import Arguments, Program, launch
from opencl_backend.memory import STORAGES, bytes_of, delivered, readable, writable

_GROUP = 64  # columns that PoCL turns into one vectorised loop


def rms_norm(
    x: Tensor, weight: Tensor, *, eps: float, weight_offset: float = 0.0, out: Tensor | None = None, save: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """``x * rsqrt(mean(x**2, -1) + eps) * (weight + weight_offset)``; ``rstd (M,)`` too when ``save``.

    ``x: (*M, N)`` of float32, float16, bfloat16; ``weight: (N,)`` of the same or float32; both contiguous. Computed in
    float32, rounded once. ``out``: any strides; may be ``x``.
    """
    columns = x.shape[-1]
    rows = x.numel() // columns
    y = writable(out, tuple(x.shape), x.dtype)
    rstd = torch.empty(rows, dtype=torch.float32)
    arguments = Arguments(
        given=[readable(x)],
        written=[bytes_of(y), bytes_of(rstd)],
        whole=[readable(weight)],
        scalars=[np.float32(eps), np.float32(weight_offset), np.uint64(columns)],
    )
    launch(program(x, weight), "rms_norm", rows, arguments)
    y = delivered(y, out)
    return (y, rstd) if save else y


def backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    needs: tuple[bool, bool] = (True, True),
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients for ``x`` and ``weight`` from that of ``y``, which may have any strides; ``eps`` is in ``rstd``."""
    del eps
    grad_x = grad_input(grad_y, None, x, weight, rstd, weight_offset) if needs[0] else None
    return grad_x, grad_weight(grad_y, x, weight, rstd) if needs[1] else None


def grad_input(
    grad_y: Tensor, grad_summed: Tensor | None, x: Tensor, weight: Tensor, rstd: Tensor, weight_offset: float
) -> Tensor:
    """``rstd * (g - u * mean(g * u))`` with ``g = grad_y * (weight + weight_offset)`` and ``u = x * rstd``.

    ``grad_summed`` is added, where ``x`` is a sum that reached the caller too.
    """
    found = torch.empty(x.shape, dtype=x.dtype)
    arguments = Arguments(
        given=[readable(tensor) for tensor in (grad_y, x, rstd, grad_summed) if tensor is not None],
        written=[bytes_of(found)],
        whole=[readable(weight)],
        scalars=[np.float32(weight_offset), np.uint64(x.shape[-1])],
    )
    more = () if grad_summed is None else ("SUMMED",)
    launch(program(x, weight, *more), "rms_norm_backward", rstd.numel(), arguments)
    return found


def grad_weight(grad_y: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> Tensor:
    """``sum(grad_y * x * rstd)`` over all rows, in float32, rounded once to the weight's dtype."""
    columns = x.shape[-1]
    found = torch.zeros(columns, dtype=torch.float32)
    arguments = Arguments(
        given=[readable(grad_y), readable(x), readable(rstd)],
        summed=[bytes_of(found)],
        scalars=[np.uint64(columns)],
    )
    launch(
        program(x, weight), "rms_norm_weight_gradient", rstd.numel(), arguments, items=columns, group=_GROUP, step=64
    )
    return found.to(weight.dtype)


def program(x: Tensor, weight: Tensor, *macros: str) -> Program:
    """The norms' program for these dtypes."""
    return Program("rms_norm", (f"X={STORAGES[x.dtype]}", f"W={STORAGES[weight.dtype]}", *macros))
