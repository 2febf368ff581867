"""A head's elements as one block or two: 80 are 64 and 16, so that next to nothing is multiplied with padding.

Blocks are powers of two. A tile of rows is a tuple of its parts, and so is a sum that has a row's width.
"""
# pyright: reportGeneralTypeIssues=false
# Tuples grow by concatenation, the one way that Triton knows.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc"

from __future__ import annotations

import triton
import triton.language as tl

# What matrix units take at least.
_NARROWEST = 16
# What products of weights and values take at least on Hopper with the ptxas of CUDA 12.8, which Triton 3.6 has.
_NARROWEST_OF_OLD_PTXAS, _OLD_PTXAS = 64, (12, 8)


def parts_of(width: int, narrowest: int = _NARROWEST) -> tuple[int, int]:
    """The blocks of ``narrowest`` lanes at least that hold ``width`` elements; the second is 0 where one does."""
    whole = max(narrowest, _power_of_two(width))
    first = whole // 2
    rest = max(narrowest, _power_of_two(width - first))
    return (first, rest) if first >= narrowest and rest < first else (whole, 0)


def narrowest_values(arch: str) -> int:
    """How many lanes each block of values has at least.

    Of blocks of 16 and 32, the ptxas of CUDA 12.8 may leave out the instruction that sets the register with their place
    in shared memory: products read what an earlier kernel left there, or nothing that can be read. That of 12.9 makes
    code without such registers of the same PTX.
    """
    if not arch.startswith("sm_9"):
        return _NARROWEST
    version = tuple(int(part) for part in triton.knobs.nvidia.ptxas.version.split("."))
    return _NARROWEST if version > _OLD_PTXAS else _NARROWEST_OF_OLD_PTXAS


def _power_of_two(width: int) -> int:
    return 1 << max(0, width - 1).bit_length()


@triton.jit
def _load_part(
    pointer,
    rows,
    lane_stride,
    inside,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    TURNED: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """``BLOCK`` lanes of rows from ``FIRST`` on; ``TURNED``: a lane is a row of the block."""
    lane = FIRST + tl.arange(0, BLOCK)
    offsets = tl.expand_dims(lane.to(tl.int64) * lane_stride, 1 if TURNED else 0)
    at = pointer + tl.expand_dims(rows, 0 if TURNED else 1) + offsets
    if FIRST + BLOCK > WIDTH:
        if inside is None:
            block = tl.load(at, mask=tl.expand_dims(lane < WIDTH, 1 if TURNED else 0), other=0.0)
        else:
            mask = tl.expand_dims(lane < WIDTH, 1 if TURNED else 0) & tl.expand_dims(inside, 0 if TURNED else 1)
            block = tl.load(at, mask=mask, other=0.0)
    elif inside is None:
        block = tl.load(at)
    else:
        block = tl.load(at, mask=tl.expand_dims(inside, 0 if TURNED else 1), other=0.0)
    if WIDEN:
        block = block.to(tl.float32)
    return block


@triton.jit
def load_columns(pointer, rows, lane_stride, FIRST: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """``BLOCK`` lanes from ``FIRST`` on of rows of ``WIDTH``, zeros behind their end."""
    return _load_part(pointer, rows, lane_stride, None, FIRST, BLOCK, WIDTH, False, False)


@triton.jit
def load_rows(
    pointer,
    rows,  # where each begins, int64
    lane_stride,
    inside,  # which of them there are; None: all
    BLOCK: tl.constexpr,
    REST: tl.constexpr,
    WIDTH: tl.constexpr,
    TURNED: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Rows of ``WIDTH`` elements, zeros where there is none; as columns where ``TURNED``."""
    parts = (_load_part(pointer, rows, lane_stride, inside, 0, BLOCK, WIDTH, TURNED, WIDEN),)
    if REST > 0:
        parts = parts + (_load_part(pointer, rows, lane_stride, inside, BLOCK, REST, WIDTH, TURNED, WIDEN),)
    return parts


@triton.jit
def turned(parts, REST: tl.constexpr):
    """Rows as columns."""
    found = (tl.trans(parts[0]),)
    if REST > 0:
        found = found + (tl.trans(parts[1]),)
    return found


@triton.jit
def negated(parts, REST: tl.constexpr):
    """Rows times -1."""
    found = (-parts[0],)
    if REST > 0:
        found = found + (-parts[1],)
    return found


@triton.jit
def no_sums(ROWS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr):
    """Sums for ``ROWS`` rows that begin at zero."""
    sums = (tl.full((ROWS, BLOCK), 0.0, tl.float32),)
    if REST > 0:
        sums = sums + (tl.full((ROWS, REST), 0.0, tl.float32),)
    return sums


@triton.jit
def product_of_rows(a, b, REST: tl.constexpr, PRECISION: tl.constexpr):
    """``a @ b`` for rows ``a`` and columns ``b``: a sum over their lanes."""
    z = tl.dot(a[0], b[0], input_precision=PRECISION)
    if REST > 0:
        z = tl.dot(a[1], b[1], z, input_precision=PRECISION)
    return z


@triton.jit
def add_product_of_rows(z, a, b, REST: tl.constexpr, PRECISION: tl.constexpr):
    """``z + a @ b``, as ``product_of_rows``."""
    z = tl.dot(a[0], b[0], z, input_precision=PRECISION)
    if REST > 0:
        z = tl.dot(a[1], b[1], z, input_precision=PRECISION)
    return z


@triton.jit
def add_weighted_rows(sums, weights, rows, REST: tl.constexpr, PRECISION: tl.constexpr):
    """``sums + weights @ rows``."""
    found = (tl.dot(weights, rows[0], sums[0], input_precision=PRECISION),)
    if REST > 0:
        found = found + (tl.dot(weights, rows[1], sums[1], input_precision=PRECISION),)
    return found


@triton.jit
def times(sums, factor, REST: tl.constexpr):
    """Each row times its factor."""
    found = (sums[0] * factor[:, None],)
    if REST > 0:
        found = found + (sums[1] * factor[:, None],)
    return found


@triton.jit
def plus(sums, more, REST: tl.constexpr):
    """Both, added up."""
    found = (sums[0] + more[0],)
    if REST > 0:
        found = found + (sums[1] + more[1],)
    return found


@triton.jit
def _store_part(pointer, rows, lane_stride, inside, values, FIRST: tl.constexpr, WIDTH: tl.constexpr):
    lane = FIRST + tl.arange(0, values.shape[1])
    at = pointer + rows[:, None] + (lane.to(tl.int64) * lane_stride)[None, :]
    mask = inside[:, None]
    if FIRST + values.shape[1] > WIDTH:
        mask = mask & (lane < WIDTH)[None, :]
    tl.store(at, values.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def store_rows(pointer, rows, lane_stride, inside, parts, REST: tl.constexpr, WIDTH: tl.constexpr):
    """``parts`` in their place, rounded to its dtype."""
    _store_part(pointer, rows, lane_stride, inside, parts[0], 0, WIDTH)
    if REST > 0:
        _store_part(pointer, rows, lane_stride, inside, parts[1], parts[0].shape[1], WIDTH)
