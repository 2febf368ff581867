"""``rms_norm`` and its gradient in Triton.

With ``u = x * rstd`` and ``w = weight + weight_offset``:

    rstd        = 1 / sqrt(mean(x**2) + eps)                   per row
    y           = u * w
    grad_x      = rstd * (g * w - u * mean(g * w * u))         g: gradient of y
    grad_weight = sum over rows of g * u

Everything is computed in float32 and rounded once, when it is stored. A whole row is one block of registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel_plugins.triton.configurations import configuration
from portakernel_plugins.triton.launch import grid_of, launch, program_index
from portakernel_plugins.triton.rows import row_stride, with_row_stride


# ``rows`` is not specialised: M being 1, or divisible by 16, must neither recompile the kernel nor change its layout.
@triton.jit(do_not_specialize=["rows"])
def _forward(
    x: tl.tensor,
    weight: tl.tensor,
    y: tl.tensor,
    rstd: tl.tensor,  # None: not wanted
    rows: tl.tensor,
    columns: tl.tensor,
    x_stride: tl.tensor,
    weight_stride: tl.tensor,
    y_stride: tl.tensor,
    eps: tl.tensor,
    weight_offset: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    row = program_index() * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_N)
    in_row = column < columns
    inside = (row < rows)[:, None] & in_row[None, :]

    # Both are read before anything is written: ``y`` may be ``x``.
    x_block = tl.load(x + row[:, None] * x_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + column.to(tl.int64) * weight_stride, mask=in_row, other=0.0).to(tl.float32)
    w = w + weight_offset

    mean_square = tl.sum(x_block * x_block, axis=1) / columns
    # Correctly rounded root and quotient: one per row costs nothing, and the vendors' approximations differ.
    r = tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps))
    y_block = x_block * r[:, None] * w[None, :]

    tl.store(y + row[:, None] * y_stride + column[None, :], y_block.to(y.dtype.element_ty), mask=inside)
    if rstd is not None:
        tl.store(rstd + row, r, mask=row < rows)


def rms_norm(
    x: Tensor, weight: Tensor, *, eps: float, weight_offset: float = 0.0, out: Tensor | None = None, save: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """``x * rstd * (weight + weight_offset)``, and ``rstd`` too when ``save``.

    ``x``: ``(..., N)`` with contiguous rows at one stride (0 too); float32, float16 or bfloat16. ``weight``: ``(N,)``,
    any stride, of the dtype of ``x`` or float32. ``rstd``: ``(M,)`` float32. ``out``: any strides; may be ``x`` itself.
    """
    n = x.shape[-1]
    rows = x.numel() // n
    out_stride = None if out is None else row_stride(out)
    y = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None or out_stride is None else out
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device) if save else None
    if rows:
        x, x_stride = with_row_stride(x)
        how = configuration("rms_norm.forward", x.device, n)
        launch(
            _forward,
            grid_of(triton.cdiv(rows, how.rows)),
            x,
            weight,
            y,
            rstd,
            rows,
            n,
            x_stride,
            weight.stride(0),
            n if out_stride is None else out_stride,
            float(eps),
            float(weight_offset),
            BLOCK_M=how.rows,
            BLOCK_N=how.columns,
            parameter="N",
            **how.options,
        )
    if out is not None and y is not out:
        y = out.copy_(y)
    return y if rstd is None else (y, rstd)


@triton.jit(do_not_specialize=["rows"])
def _backward(
    grad_y: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    rstd: tl.tensor,
    grad_x: tl.tensor,  # None: not wanted
    partial: tl.tensor,  # (programs, N) float32, each program's share of grad_weight. None: not wanted
    rows: tl.tensor,
    columns: tl.tensor,
    grad_y_stride: tl.tensor,
    x_stride: tl.tensor,
    weight_stride: tl.tensor,
    weight_offset: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_N)
    in_row = column < columns
    w = tl.load(weight + column.to(tl.int64) * weight_stride, mask=in_row, other=0.0).to(tl.float32)
    w = w + weight_offset
    share = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)

    for first in range(program * BLOCK_M, rows, tl.num_programs(0) * BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)
        inside = (row < rows)[:, None] & in_row[None, :]
        x_block = tl.load(x + row[:, None] * x_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad_y + row[:, None] * grad_y_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
        r = tl.load(rstd + row, mask=row < rows, other=0.0)[:, None]

        u = x_block * r
        if grad_x is not None:
            gw = g * w[None, :]
            mean = tl.sum(gw * u, axis=1) / columns
            gradient = (r * (gw - u * mean[:, None])).to(grad_x.dtype.element_ty)
            tl.store(grad_x + row[:, None] * columns + column[None, :], gradient, mask=inside)
        if partial is not None:
            share += g * u

    if partial is not None:
        tl.store(partial + program * columns + column, tl.sum(share, axis=0), mask=in_row)


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
    """The gradients for ``x`` and ``weight`` that ``needs`` asks for, each of its argument's shape and dtype.

    Shapes and dtypes as in forward; ``rstd``: ``(M,)`` float32, from forward; ``grad_y``: any strides. No atomics: each
    program sums its rows in order and the programs' sums are added in order, so that equal calls on one device give
    equal bits. ``grad_weight`` is a sum over rows and how it is grouped depends on M; ``grad_x`` does not.
    """
    del eps  # it is in rstd already
    n = x.shape[-1]
    rows = x.numel() // n
    needs_x, needs_weight = needs
    if not (needs_x or needs_weight):
        return None, None

    # programs stay, and take row after row
    how = configuration("rms_norm.backward", x.device, n)
    programs = min(triton.cdiv(rows, how.rows), how.programs)
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format) if needs_x else None
    partial = torch.empty(programs, n, dtype=torch.float32, device=x.device) if needs_weight else None
    if rows:
        x, x_stride = with_row_stride(x)
        grad_y, grad_y_stride = with_row_stride(grad_y)
        launch(
            _backward,
            (programs,),
            grad_y,
            x,
            weight,
            rstd,
            grad_x,
            partial,
            rows,
            n,
            grad_y_stride,
            x_stride,
            weight.stride(0),
            float(weight_offset),
            BLOCK_M=how.rows,
            BLOCK_N=how.columns,
            parameter="N",
            **how.options,
        )
    return grad_x, None if partial is None else partial.sum(0).to(weight.dtype)
