"""Rows in memory: where the neighbouring ones of a tensor lie, and where those of a result go."""

from __future__ import annotations

from collections.abc import Sequence

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
    return joined_stride(tensor.shape[:-1], tensor.stride()[:-1])


def joined_stride(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of the one dimension that these dimensions make together; 0 where each has one element.

    None where they make none: the elements of a dimension must begin where those of the next one end.
    """
    joined: int | None = None
    span = 0
    for size, step in zip(reversed(sizes), reversed(strides), strict=True):
        if size == 1:
            continue
        if joined is None:
            joined, span = step, step * size
        elif step == span:
            span = step * size
        else:
            return None
    return 0 if joined is None else joined


def with_row_stride(tensor: Tensor) -> tuple[Tensor, int]:
    """``tensor`` and the stride of its rows; a contiguous copy where no single stride serves.

    Also where rows lie better than one of them alone, or worse.
    """
    columns = tensor.shape[-1]
    if tensor.is_contiguous():
        return tensor, columns
    stride = row_stride(tensor)
    if stride is None or _lies_otherwise(stride, columns):
        return tensor.contiguous(), columns
    return tensor, stride


def _lies_otherwise(stride: int, columns: int) -> bool:
    """Whether rows are read or written by wider or narrower accesses than one row alone, which counts as contiguous.

    A stride that is divisible by 16 (that of expanded rows, 0, is too) allows wider ones where a row's length does not,
    and one that the length's power of two does not divide forbids what the length allows. The widest access of a kernel
    decides how all of it lays out registers, and another layout is another order of a sum.
    """
    return columns % 16 != 0 and (stride % 16 == 0 or stride % (columns & -columns) != 0)


def row_target(x: Tensor, out: Tensor | None) -> tuple[Tensor, int]:
    """Memory for rows like those of ``x``, and their stride: ``out``, or new memory where its rows have no one stride.

    New memory too where rows of ``out`` lie better than one of them alone, or worse.
    """
    stride = None if out is None else row_stride(out)
    if out is None or stride is None or _lies_otherwise(stride, x.shape[-1]):
        return contiguous_like(x), x.shape[-1]
    return out, stride


def contiguous_like(x: Tensor) -> Tensor:
    """New memory of the shape and dtype of ``x``, contiguous."""
    # to say a format takes a fifth of the call's time
    return torch.empty_like(x) if x.is_contiguous() else torch.empty_like(x, memory_format=torch.contiguous_format)
