"""Rows of which several blocks stay in registers: a power of two may be much more than a row has."""
# pyright: reportGeneralTypeIssues=false
# Tuples grow by concatenation, the one way that Triton knows.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc, unreachable, var-annotated"

from __future__ import annotations

import math

import triton
import triton.language as tl

from portakernel.authoring.triton import cdiv
from portakernel_plugins.triton.launching.configurations import WHOLE_UNIT, Configuration

# Blocks of a row that is read twice whose reads overlap: beyond, a kernel is more code than it is worth.
_MOST_UNROLLED = 16
# Elements that are read at once, at most.
_MOST_AT_ONCE = 8


def unit_of(*sizes: int) -> int:
    """The power of two that divides rows' lengths: 16, which Triton sees by itself, or 8 at most.

    Of other numbers it sees nothing: rows of 1000 elements would be read one by one. Strides that it does not divide do
    not come: such rows are copied (``with_row_stride``, ``row_target``), lest their bits depend on where others lie.
    """
    common = math.gcd(*sizes)
    return WHOLE_UNIT if common % WHOLE_UNIT == 0 else min(common & -common, _MOST_AT_ONCE)


@triton.jit
def in_units(size, UNIT: tl.constexpr):
    """``size``, of which the compiler then knows that ``UNIT`` divides it."""
    if UNIT > 1 and UNIT < 16:
        size = size // UNIT * UNIT
    return size


@triton.jit
def load_parameter(pointer, stride, column, columns, UNIT: tl.constexpr):
    """A weight's or bias's elements, as narrow as they are, as many at once as are read of a row.

    They begin where many could be read at once, and would have to go through shared memory to where rows need them.
    """
    at = pointer + column.to(tl.int64) * stride
    if UNIT < 8:
        at = tl.max_contiguous(at, UNIT)
    return tl.load(at, mask=column < columns, other=0.0)


@triton.jit
def load_parameters(pointer, stride, lane, columns, BLOCK_N: tl.constexpr, BLOCKS: tl.constexpr, UNIT: tl.constexpr):
    """A weight's or bias's elements of all blocks of a row, as narrow as they are; nothing where it is None."""
    parts = ()
    if pointer is not None:
        for i in tl.static_range(BLOCKS):
            parts = parts + (load_parameter(pointer, stride, i * BLOCK_N + lane, columns, UNIT),)
    return parts


@triton.jit
def parameter_of(EARLY: tl.constexpr, parts, i: tl.constexpr, pointer, stride, column, columns, UNIT: tl.constexpr):
    """Those of block ``i`` in float32: of ``parts``, which were read ``EARLY``, else loaded."""
    part = parts[i] if EARLY else load_parameter(pointer, stride, column, columns, UNIT)
    return part.to(tl.float32)


@triton.jit
def load_block(pointer, row, stride, rows, column, columns, OTHER: tl.constexpr = 0.0):
    """The elements of these rows and columns as narrow as they are; ``OTHER`` beyond the rows' and columns' end."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(pointer + row[:, None] * stride + column[None, :], mask=inside, other=OTHER)


@triton.jit
def load_blocks(
    pointer, row, stride, rows, lane, columns, BLOCK_N: tl.constexpr, BLOCKS: tl.constexpr, OTHER: tl.constexpr = 0.0
):
    """All blocks of these rows, the first of the columns of ``lane``, the next ``BLOCK_N`` further."""
    parts = ()
    for i in tl.static_range(BLOCKS):
        parts = parts + (load_block(pointer, row, stride, rows, i * BLOCK_N + lane, columns, OTHER),)
    return parts


@triton.jit
def sum_blocks(parts, added, like, BLOCKS: tl.constexpr):
    """The sums of two rows' blocks, rounded to the dtype of ``like``."""
    sums = ()
    for i in tl.static_range(BLOCKS):
        sums = sums + ((parts[i].to(tl.float32) + added[i].to(tl.float32)).to(like.dtype.element_ty),)
    return sums


@triton.jit
def unwidened(parts, BLOCKS: tl.constexpr):
    """The same blocks of narrow elements, of which the compiler (NVIDIA's) does not know that it has widened them.

    It would hold the float32 values that a row's sums were made of, twice the registers, until the row is stored.
    """
    same = ()
    for i in tl.static_range(BLOCKS):
        part = parts[i]
        if part.dtype.primitive_bitwidth == 16:
            part = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [part], part.dtype, is_pure=False, pack=2)
        same = same + (part,)
    return same


@triton.jit
def store_block(pointer, row, stride, rows, column, columns, values):
    """``values`` in their place, rounded to its dtype."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(pointer + row[:, None] * stride + column[None, :], values.to(pointer.dtype.element_ty), mask=inside)


def is_long(how: Configuration) -> bool:
    """Whether a row is read in blocks of ``elements``, twice; where the entry says none, it is one block."""
    return 1 < how.elements * how.blocks < how.size


def looped_shape(how: Configuration, columns: int) -> dict[str, int]:
    """Columns of a block of a row that is read twice, and how many such blocks there are: 0 beyond what is unrolled."""
    blocks = cdiv(columns, how.elements)
    return {"BLOCK_N": how.elements, "BLOCKS": blocks if blocks <= _MOST_UNROLLED else 0}


def held_shape(how: Configuration, columns: int) -> dict[str, int]:
    """Rows and columns of a program's block, and how many of them make up a row that is held."""
    width = how.elements if how.blocks > 1 else how.columns
    return {"BLOCK_M": how.rows, "BLOCK_N": width, "BLOCKS": cdiv(columns, width)}
