"""``add_rms_norm`` and its gradient in OpenCL C (``rms_norm.cl``), on CPU tensors where they lie."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from opencl_backend.launch import Arguments, launch
from opencl_backend.memory import bytes_of, delivered, readable, writable
from opencl_backend.rms_norm import grad_input, grad_weight, program


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    out: tuple[Tensor, Tensor] | None = None,
    save: bool = False,
) -> tuple[Tensor, ...]:
    """``(y, summed)``: ``x + residual``, rounded to their dtype, and its norm; ``rstd (M,)`` too when ``save``.

    ``x``, ``residual``: ``(*M, N)`` of one dtype; ``weight: (N,)`` of the same or float32; all contiguous. ``out`` may
    be ``(x, residual)``.
    """
    columns = x.shape[-1]
    rows = x.numel() // columns
    outs = (None, None) if out is None else out
    y, summed = (writable(place, tuple(x.shape), x.dtype) for place in outs)
    rstd = torch.empty(rows, dtype=torch.float32)
    arguments = Arguments(
        given=[readable(x), readable(residual)],
        written=[bytes_of(y), bytes_of(summed), bytes_of(rstd)],
        whole=[readable(weight)],
        scalars=[np.float32(eps), np.float32(weight_offset), np.uint64(columns)],
    )
    launch(program(x, weight), "add_rms_norm", rows, arguments)
    y, summed = delivered(y, outs[0]), delivered(summed, outs[1])
    return (y, summed, rstd) if save else (y, summed)


def backward(
    grad_y: Tensor | None,
    grad_summed: Tensor | None,
    weight: Tensor,
    summed: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    needs: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients for ``x``, ``residual`` and ``weight`` from those of ``y`` and ``summed``; None is zero."""
    del eps
    if grad_y is None:  # the norm passes nothing on, whatever its statistics are
        rstd = torch.zeros_like(rstd)
    through = torch.zeros_like(summed) if grad_y is None else grad_y
    grad = grad_input(through, grad_summed, summed, weight, rstd, weight_offset) if needs[0] or needs[1] else None
    return (
        grad if needs[0] else None,
        # memory of its own, as every result has
        grad.clone() if needs[0] and needs[1] and grad is not None else grad if needs[1] else None,
        grad_weight(through, summed, weight, rstd) if needs[2] else None,
    )
