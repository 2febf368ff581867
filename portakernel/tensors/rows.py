"""Rows in memory: where the neighbouring ones of a tensor lie, and where those of a result go."""

from __future__ import annotations

import torch
from torch import Tensor


def row_stride(tensor: Tensor) -> int | None:
    """Elements between neighbouring rows of ``tensor`` ``(..., N)`` seen as ``(M, N)``, rows being contiguous.

    None where no single stride serves. One row, or none, counts as contiguous, so that a row's launch, and with it its
    bits, is not decided by a stride that nothing follows.
    """
    columns = tensor.shape[-1]
    if tensor.is_contiguous():
        return columns
    if columns > 1 and tensor.stride(-1) != 1:
        return None
    stride: int | None = None
    span = 0
    for size, step in zip(reversed(tensor.shape[:-1]), reversed(tensor.stride()[:-1]), strict=True):
        if size == 0:
            return columns
        if size == 1:
            continue
        if stride is None:
            stride, span = step, step * size
        elif step == span:
            span = step * size
        else:
            return None
    return columns if stride is None else stride


def with_row_stride(tensor: Tensor) -> tuple[Tensor, int]:
    """``tensor`` and the stride of its rows; a contiguous copy where no single stride serves.

    Also where rows lie better than one of them alone.
    """
    columns = tensor.shape[-1]
    if tensor.is_contiguous():
        return tensor, columns
    stride = row_stride(tensor)
    if stride is None or _better_than_alone(stride, columns):
        return tensor.contiguous(), columns
    return tensor, stride


def _better_than_alone(stride: int, columns: int) -> bool:
    """Whether rows are read or written by wider accesses than one row alone, which counts as contiguous.

    A stride that is divisible by 16 (that of expanded rows, 0, is too) allows them where a row's length does not. The
    widest access of a kernel decides how all of it lays out registers, and another layout is another order of a sum.
    """
    return columns % 16 != 0 and stride % 16 == 0


def row_target(x: Tensor, out: Tensor | None) -> tuple[Tensor, int]:
    """Memory for rows like those of ``x``, and their stride: ``out``, or new memory where its rows have no one stride.

    New memory too where rows of ``out`` lie better than one of them alone.
    """
    stride = None if out is None else row_stride(out)
    if out is None or stride is None or _better_than_alone(stride, x.shape[-1]):
        return contiguous_like(x), x.shape[-1]
    return out, stride


def contiguous_like(x: Tensor) -> Tensor:
    """New memory of the shape and dtype of ``x``, contiguous."""
    # to say a format takes a fifth of the call's time
    return torch.empty_like(x) if x.is_contiguous() else torch.empty_like(x, memory_format=torch.contiguous_format)
