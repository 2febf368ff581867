"""Blocks of rows that loops go through: read through pointers, or copied by TMA where device and tensors allow it.

TMA is told where a block is, takes no registers for addresses, and fills what is outside with zeros. The configuration
says which kernels read so; what TMA cannot copy is read through pointers.
"""
# pyright: reportGeneralTypeIssues=false
# Tuples grow by concatenation, the one way that Triton knows.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc"

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from portakernel_plugins.triton.attention.head_parts import load_rows

# What TMA wants an address and all strides but the innermost to be divisible by, in bytes.
_ALIGNED = 16


@triton.jit
def _copy_part(
    source,
    batch,
    first,
    head,
    inside,
    FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    TURNED: tl.constexpr,
    WIDEN: tl.constexpr,
):
    block = source.load([batch, first, head, FIRST]).reshape(ROWS, BLOCK)
    if inside is not None:
        block = tl.where(inside[:, None], block, 0.0)
    if TURNED:
        block = tl.trans(block)
    if WIDEN:
        block = block.to(tl.float32)
    return block


@triton.jit
def load_block(
    source,  # points to the first row of a head; with DESCRIBED it describes all of (batches, rows, heads, lanes)
    rest,  # what describes the rest of each row, where there is one
    batch,
    origin,  # the head's first row
    first,
    head,
    rows,  # from the first on, int64
    row_stride,
    lane_stride,
    inside,  # which of them there are; None: all
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    REST: tl.constexpr,
    WIDTH: tl.constexpr,
    TURNED: tl.constexpr,
    WIDEN: tl.constexpr,
    DESCRIBED: tl.constexpr,
    RAGGED: tl.constexpr,
):
    """``ROWS`` rows of a head from ``first`` on, zeros where there is none; as columns where ``TURNED``.

    ``RAGGED``: behind them there are others, of which nothing is to be seen.
    """
    if DESCRIBED:
        kept = inside if RAGGED else None
        batch = tl.cast(batch, tl.int32)
        at = tl.cast(origin, tl.int32) + first
        parts = (_copy_part(source, batch, at, head, kept, 0, ROWS, BLOCK, TURNED, WIDEN),)
        if REST > 0:
            parts = parts + (_copy_part(rest, batch, at, head, kept, BLOCK, ROWS, REST, TURNED, WIDEN),)
    else:
        at = source + tl.cast(first, tl.int64) * row_stride
        parts = load_rows(at, rows * row_stride, lane_stride, inside, BLOCK, REST, WIDTH, TURNED, WIDEN)
    return parts


def sources(x: Tensor, y: Tensor, rows: int, blocks: Mapping[str, Any], wanted: bool) -> tuple[Any, Any, Any, Any]:
    """What kernels take for ``x (B, N, H, D)`` and ``y (B, N, H, E)``, each with the rest of its rows.

    ``rows`` are those of a block, ``blocks`` what ``shapes`` says. Where descriptors are not ``wanted``, or not
    possible, these are the tensors and None.
    """
    strides = (copied_strides(x), copied_strides(y)) if wanted else (None, None)
    if strides[0] is None or strides[1] is None:
        return x, None, y, None
    return (*_descriptors(x, strides[0], rows, blocks, "D"), *_descriptors(y, strides[1], rows, blocks, "E"))


def copied_strides(x: Tensor) -> list[int] | None:
    """The strides by which TMA copies from and to ``x (B, N, H, D)``; None where it cannot.

    Those of a dimension of one say nothing, and need not be valid ones.
    """
    step, (batches, rows, heads, lanes) = _ALIGNED // x.element_size(), x.shape
    batch, row, head, lane = x.stride()
    batch, row, head = step if batches == 1 else batch, step if rows == 1 else row, step if heads == 1 else head
    if batch <= 0 or row <= 0 or head <= 0 or (lane != 1 and lanes != 1) or (batch | row | head) % step:
        return None
    return [batch, row, head, 1] if x.data_ptr() % _ALIGNED == 0 and x.numel() > 0 else None


def _descriptors(x: Tensor, strides: list[int], rows: int, blocks: Mapping[str, Any], width: str) -> tuple[Any, Any]:
    shape, rest = list(x.shape), blocks[f"REST_{width}"]
    first = described(TensorDescriptor, x, shape, strides, [1, rows, 1, blocks[f"BLOCK_{width}"]])
    return first, described(TensorDescriptor, x, shape, strides, [1, rows, 1, rest]) if rest else None


def described(kind: Any, x: Tensor, shape: list[int], strides: list[int], block: list[int]) -> Any:
    """A descriptor of Triton's or Gluon's, without what these look at when it is made: that has been looked at.

    It takes longer than all else that a launch does.
    """
    made = object.__new__(kind)
    made.base, made.shape, made.strides, made.block_shape = x, shape, strides, block
    return made
