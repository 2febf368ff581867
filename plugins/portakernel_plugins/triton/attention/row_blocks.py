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
    if not (wanted and _is_copied(x) and _is_copied(y)):
        return x, None, y, None
    return (*_descriptors(x, rows, blocks, "D"), *_descriptors(y, rows, blocks, "E"))


def _is_copied(x: Tensor) -> bool:
    size = x.element_size()
    strides = (stride for count, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if count > 1)
    return (
        x.numel() > 0
        and x.data_ptr() % _ALIGNED == 0
        and (x.stride(-1) == 1 or x.shape[-1] == 1)
        and all(stride > 0 and stride * size % _ALIGNED == 0 for stride in strides)
    )


def _descriptors(x: Tensor, rows: int, blocks: Mapping[str, Any], width: str) -> tuple[Any, Any]:
    # of a dimension of one the stride says nothing, and need not be a valid one
    step = _ALIGNED // x.element_size()
    strides = [stride if count > 1 else step for count, stride in zip(x.shape, x.stride(), strict=True)]
    strides[-1] = 1
    widths = (blocks[f"BLOCK_{width}"], blocks[f"REST_{width}"])
    first, rest = (TensorDescriptor(x, list(x.shape), strides, [1, rows, 1, each]) if each else None for each in widths)
    return first, rest
