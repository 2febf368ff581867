"""Rows in memory as kernels follow them: contiguous, at one stride; and whether packs of 16 bytes fit them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from portakernel.authoring.tensors import contiguous_like, row_stride
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


def in_rows(x: Tensor) -> tuple[Tensor, int]:
    """``x`` and the stride of its rows: a contiguous copy where no one stride serves."""
    stride = row_stride(x)
    return (x.contiguous(), x.shape[-1]) if stride is None else (x, stride)


def room_in_rows(x: Tensor, out: Tensor | None) -> tuple[Tensor, int]:
    """Where rows like those of ``x`` are written, and their stride: ``out``, or new memory where its have several."""
    stride = None if out is None else row_stride(out)
    if out is None or stride is None:
        return contiguous_like(x), x.shape[-1]
    return out, stride


def in_line(x: Tensor) -> Tensor:
    """``x: (N,)`` without gaps: itself, or a copy."""
    return x if x.is_contiguous() else x.contiguous()


def are_whole(lengths: int, size: int, *tensors: Tensor | None) -> bool:
    """Whether packs of 16 bytes cover rows, and are aligned in all of these tensors.

    ``lengths``: the rows' elements, of ``size`` bytes, and their strides, joined by ``|``: a power of two divides that
    where it divides each.
    """
    bits = lengths * size
    for tensor in tensors:
        if tensor is not None:
            bits |= tensor.data_ptr()
    return not bits % PACK_BYTES


def packs_of(columns: int, x: Tensor) -> int:
    """Packs in a row of ``columns`` elements of ``x``, the last of which may be cut off."""
    return -(-columns * x.element_size() // PACK_BYTES)
