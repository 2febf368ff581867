"""Tensors for kernels that follow no strides, as those of other libraries: as they are, or copied.

A plugin that wraps a library gives it ``rows(dense(x))``, and ``rows(y)`` to write to, where ``y = room(x, out)``; it
returns ``delivered(y, out)``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_aligned(x: Tensor, alignment: int) -> bool:
    """Whether ``alignment`` (bytes, at most 16) divides the address of ``x``.

    A traced tensor has none: in a graph, memory begins at such addresses, and Inductor copies inputs that do not.
    """
    try:
        return x.data_ptr() % alignment == 0
    except RuntimeError:
        return x.storage_offset() * x.element_size() % alignment == 0


def _is_dense(x: Tensor, alignment: int) -> bool:
    return x.is_contiguous() and (alignment == 1 or is_aligned(x, alignment))


def dense(x: Tensor, alignment: int = 1) -> Tensor:
    """``x`` without gaps, at an address that ``alignment`` (bytes) divides: itself, or a copy."""
    return x if _is_dense(x, alignment) else x.clone(memory_format=torch.contiguous_format)


def room(x: Tensor, out: Tensor | None = None, alignment: int = 1) -> Tensor:
    """Memory for a result like ``x``, without gaps and aligned: ``out`` where that is such, else new."""
    if out is not None and _is_dense(out, alignment):
        return out
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def rows(x: Tensor) -> Tensor:
    """``x`` (..., N), without gaps, as (M, N) with strides of N and 1, also where a size of 1 would allow any."""
    columns = x.shape[-1]
    return x.as_strided((x.numel() // columns, columns), (columns, 1))


def as_bytes(tensor: Tensor) -> Tensor:
    """``tensor`` as uint8 where its elements are one byte: what copies and kernels take for each such dtype."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def delivered(y: Tensor, out: Tensor | None) -> Tensor:
    """``y``, or ``out`` with the same elements."""
    if out is None or y is out:
        return y
    as_bytes(out).copy_(as_bytes(y))
    return out
