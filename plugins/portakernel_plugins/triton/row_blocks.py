"""Rows of which several blocks stay in registers: a power of two may be much more than a row has."""

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.configurations import Configuration
from portakernel_plugins.triton.launch import cdiv


@triton.jit
def load_block(pointer, row, stride, rows, column, columns, OTHER: tl.constexpr = 0.0):
    """The elements of these rows and columns as narrow as they are; ``OTHER`` beyond the rows' and columns' end."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(pointer + row[:, None] * stride + column[None, :], mask=inside, other=OTHER)


@triton.jit
def store_block(pointer, row, stride, rows, column, columns, values):
    """``values`` in their place, rounded to its dtype."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(pointer + row[:, None] * stride + column[None, :], values.to(pointer.dtype.element_ty), mask=inside)


def is_long(how: Configuration) -> bool:
    """Whether a row is read in blocks of ``elements``, twice; where the entry says none, it is one block."""
    return 1 < how.elements * how.blocks < how.size


def held_shape(how: Configuration, columns: int) -> dict[str, int]:
    """Rows and columns of a program's block, and how many of them make up a row that is held."""
    width = how.elements if how.blocks > 1 else how.columns
    return {"BLOCK_M": how.rows, "BLOCK_N": width, "BLOCKS": cdiv(columns, width)}
