"""``rms_norm`` and its gradient in Triton.

With ``u = x * rstd`` and ``w = weight + weight_offset``:

    rstd        = 1 / sqrt(mean(x**2) + eps)                   per row
    y           = u * w
    grad_x      = rstd * (g * w - u * mean(g * w * u))         g: gradient of y
    grad_weight = sum over rows of g * u

Everything is computed in float32 and rounded once, when it is stored. A whole row is one block of registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel_plugins.triton.launch import Processor, grid_of, launch, processor, program_index, row_stride

# Warps by row length: (up to this many columns, warps). From the ladder that the fastest norm kernels share.
_WARPS = ((2048, 4), (8192, 8), (16384, 16), (65536, 32))

# Elements that a program takes at least: shorter rows share one, at 16 bytes of 16-bit elements for each thread.
_BLOCK = 1024

# Backward's programs stay, and take row after row. So many warps of them share a multiprocessor.
_RESIDENT_WARPS = 16


@dataclass(frozen=True, slots=True)
class _Blocking:
    """How rows are cut into programs: by N and the processor, never by M, so that no row's bits depend on others."""

    rows: int  # per program, or per step of a program that stays
    columns: int  # the power of two that holds N
    warps: int

    @classmethod
    def of(cls, n: int, device: Processor) -> _Blocking:
        columns = triton.next_power_of_2(n)
        wanted = next(warps for limit, warps in _WARPS if columns <= limit)
        return cls(max(1, _BLOCK // columns), columns, device.warps(wanted))


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
        x, x_stride = _with_row_stride(x)
        blocking = _Blocking.of(n, processor(x.device))
        launch(
            _forward,
            grid_of(triton.cdiv(rows, blocking.rows)),
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
            BLOCK_M=blocking.rows,
            BLOCK_N=blocking.columns,
            num_warps=blocking.warps,
            parameter="N",
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

    device = processor(x.device)
    blocking = _Blocking.of(n, device)
    resident = device.multiprocessors * max(1, _RESIDENT_WARPS // blocking.warps)
    programs = min(triton.cdiv(rows, blocking.rows), resident)
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format) if needs_x else None
    partial = torch.empty(programs, n, dtype=torch.float32, device=x.device) if needs_weight else None
    if rows:
        x, x_stride = _with_row_stride(x)
        grad_y, grad_y_stride = _with_row_stride(grad_y)
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
            BLOCK_M=blocking.rows,
            BLOCK_N=blocking.columns,
            num_warps=blocking.warps,
            parameter="N",
        )
    return grad_x, None if partial is None else partial.sum(0).to(weight.dtype)


def _with_row_stride(tensor: Tensor) -> tuple[Tensor, int]:
    """``tensor`` and the stride of its rows; a contiguous copy where no single stride serves.

    Also where expanded rows, whose stride of 0 counts as divisible by 16, would be read by wider loads than one of them
    alone: another layout of registers is another order of its sum.
    """
    stride, columns = row_stride(tensor), tensor.shape[-1]
    if stride is None or (stride == 0 and columns % 16):
        return tensor.contiguous(), columns
    return tensor, stride
