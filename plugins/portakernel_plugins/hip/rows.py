"""Rows in memory as kernels follow them: contiguous, at one stride; and whether packs of 16 bytes fit them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from portakernel_plugins.hip.configurations import PACK_BYTES


def single_stride(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of the one dimension that these amount to; 0 where nothing follows it, None where they are several."""
    stride, span = 0, None
    for size, step in zip(reversed(sizes), reversed(strides), strict=True):
        if size == 1:
            continue
        if span is None:
            stride = step
        elif step != span:
            return None
        span = step * size
    return stride


def row_stride(x: Tensor) -> int | None:
    """Elements between neighbouring rows of ``x: (..., N)``; None where no one stride serves, or rows have gaps."""
    columns = x.shape[-1]
    if x.is_contiguous():
        return columns
    if columns > 1 and x.stride(-1) != 1:
        return None
    return single_stride(x.shape[:-1], x.stride()[:-1])


def in_rows(x: Tensor) -> tuple[Tensor, int]:
    """``x`` and the stride of its rows: a contiguous copy where no one stride serves."""
    stride = row_stride(x)
    return (x.contiguous(), x.shape[-1]) if stride is None else (x, stride)


def room_in_rows(x: Tensor, out: Tensor | None) -> tuple[Tensor, int]:
    """Where rows like those of ``x`` are written, and their stride: ``out``, or where its rows have several, new memory."""
    stride = None if out is None else row_stride(out)
    if out is None or stride is None:
        return torch.empty_like(x, memory_format=torch.contiguous_format), x.shape[-1]
    return out, stride


def in_line(x: Tensor) -> Tensor:
    """``x: (N,)`` without gaps: itself, or a copy."""
    return x if x.is_contiguous() else x.contiguous()


def are_whole(columns: int, *placed: tuple[Tensor | None, int]) -> bool:
    """Whether packs of 16 bytes cover rows of ``columns`` elements, in all of these tensors with their strides.

    The first tensor's elements are the narrowest: a pack is as many of them as 16 bytes hold.
    """
    first = placed[0][0]
    assert first is not None
    if columns % (PACK_BYTES // first.element_size()):
        return False
    for tensor, stride in placed:
        if tensor is not None and (tensor.data_ptr() % PACK_BYTES or stride * tensor.element_size() % PACK_BYTES):
            return False
    return True


def packs_of(columns: int, x: Tensor) -> int:
    """Packs in a row of ``columns`` elements of ``x``, the last of which may be cut off."""
    return -(-columns * x.element_size() // PACK_BYTES)
