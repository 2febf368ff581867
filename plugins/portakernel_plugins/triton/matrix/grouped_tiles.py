"""Tiles of ``grouped_mm``'s products: which there are, how their operands are read, and what is done with them."""

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.gates.moe_gates import gated_pair
from portakernel_plugins.triton.matrix.products import halves
from portakernel_plugins.triton.quantize.float8 import widened


@triton.jit
def tiles_of_pieces(
    offsets, offsets_stride, experts, rows, LANES: tl.constexpr, BLOCK_M: tl.constexpr, REST: tl.constexpr
):
    """Of each expert where its rows begin and end, and how many blocks of them there are; ``(LANES,)`` each.

    With ``REST``, one more has the rows that are no expert's.
    """
    lane = tl.arange(0, LANES)
    begin = tl.load(offsets + lane * offsets_stride, mask=lane <= experts, other=0).to(tl.int32)
    end = tl.load(offsets + (lane + 1) * offsets_stride, mask=lane < experts, other=0).to(tl.int32)
    if REST:
        end = tl.where(lane == experts, rows, end)
    return begin, end, tl.maximum(tl.cdiv(end - begin, BLOCK_M), 0)


@triton.jit
def lane_of(values, lane, wanted):
    """The one of ``values`` that stands where ``lane`` is ``wanted``."""
    return tl.sum(tl.where(lane == wanted, values, 0))


@triton.jit
def _wide(block, CODES: tl.constexpr):
    """Numbers as float32: those of ``CODES``, a float8 dtype's, or floats."""
    return block.to(tl.float32) if CODES is None else widened(block, CODES, "bits")


@triton.jit
def read_rows(
    a, row, numbers, is_row, inner, inners, row_stride, inner_stride, lane,
    BLOCK_K: tl.constexpr, FORM: tl.constexpr, EVEN: tl.constexpr, WIDEN: tl.constexpr, CODES: tl.constexpr,
):  # fmt: skip
    """``(BLOCK_M, BLOCK_K)`` of rows from ``row`` on, which are those with these ``numbers``.

    ``lane``: which term is in which place, where they are read through pointers.
    """
    if FORM == "inner":
        block = a.load([row, inner])
    elif FORM == "outer":
        block = a.load([inner, row]).T
    else:
        lane = lane[None, :]
        inside = is_row[:, None]
        if not EVEN:
            inside = inside & (inner + lane < inners)
        a += tl.cast(inner, tl.int64) * inner_stride
        block = tl.load(a + (numbers * row_stride)[:, None] + lane.to(tl.int64) * inner_stride, mask=inside, other=0.0)
    if WIDEN:
        block = _wide(block, CODES)
    return block


@triton.jit
def columns_of(column, columns, BLOCK: tl.constexpr, PAIRED: tl.constexpr):
    """Which columns of a matrix a tile has, and which of them there are.

    ``PAIRED``: one half from ``column`` on, and one from ``columns`` behind that on.
    """
    return columns_at(tl.arange(0, BLOCK), column, columns, BLOCK, PAIRED)


@triton.jit
def columns_at(place, column, columns, BLOCK: tl.constexpr, PAIRED: tl.constexpr):
    """The same at these places of the tile's ``BLOCK``."""
    if PAIRED:
        inside = column + place % (BLOCK // 2) < columns
        number = column + place % (BLOCK // 2) + place // (BLOCK // 2) * columns
    else:
        number = column + place
        inside = number < columns
    return number, inside


@triton.jit
def read_matrix(
    b, expert, column, columns, inner, inners, expert_stride, column_stride, inner_stride,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, FORM: tl.constexpr, EVEN: tl.constexpr, WIDEN: tl.constexpr,
    CODES: tl.constexpr, RIGHT: tl.constexpr, PAIRED: tl.constexpr,
):  # fmt: skip
    """``(BLOCK, BLOCK_K)``, the ``columns_of`` an expert's matrix; as a ``RIGHT`` factor ``(BLOCK_K, BLOCK)``."""
    if FORM == "inner":
        block = b.load([expert, 0, column, inner]) if PAIRED else b.load([expert, column, inner])
        block = block.reshape(BLOCK, BLOCK_K)
        if RIGHT:
            block = block.T
    elif FORM == "outer":
        block = b.load([expert, inner, 0, column]) if PAIRED else b.load([expert, inner, column])
        block = block.reshape(BLOCK_K, BLOCK)
        if not RIGHT:
            block = block.T
    else:
        number, inside = columns_of(column, columns, BLOCK, PAIRED)
        number, inside = tl.expand_dims(number, 0 if RIGHT else 1), tl.expand_dims(inside, 0 if RIGHT else 1)
        lane = tl.expand_dims(tl.arange(0, BLOCK_K), 1 if RIGHT else 0)
        if not EVEN:
            inside = inside & (inner + lane < inners)
        b += tl.cast(expert, tl.int64) * expert_stride + tl.cast(inner, tl.int64) * inner_stride
        at = number.to(tl.int64) * column_stride + lane.to(tl.int64) * inner_stride
        block = tl.load(b + at, mask=inside, other=0.0)
    if WIDEN:
        block = _wide(block, CODES)
    return block


@triton.jit
def gated(z, ACTIVATION: tl.constexpr, PAIRED: tl.constexpr):
    """``activation(gate) * up`` of a tile: its halves where they are ``PAIRED``, else each column's neighbour."""
    if PAIRED:
        gate, up = halves(z)
    else:
        gate, up = tl.split(tl.reshape(z, (z.shape[0], z.shape[1] // 2, 2)))
    return gated_pair(gate, up, ACTIVATION)


@triton.jit
def with_bias(z, bias, expert, column, columns, bias_expert, bias_column, PAIRED: tl.constexpr):
    """The tile ``z`` plus its expert's ``bias`` of its columns."""
    number, inside = columns_of(column, columns, z.shape[1], PAIRED)
    at = bias + tl.cast(expert, tl.int64) * bias_expert + number.to(tl.int64) * bias_column
    return z + tl.load(at, mask=inside, other=0.0).to(tl.float32)[None, :]


@triton.jit
def scaled(
    z, scale_a, scale_b, expert, numbers, is_row, column, columns, scale_a_row, scale_b_expert, scale_b_column,
    PAIRED: tl.constexpr,
):  # fmt: skip
    """The tile ``z``, times the scales of its rows, which have these ``numbers``, and of its columns."""
    of_rows = tl.load(scale_a + numbers * scale_a_row, mask=is_row, other=0.0)
    number, inside = columns_of(column, columns, z.shape[1], PAIRED)
    at = scale_b + tl.cast(expert, tl.int64) * scale_b_expert + number.to(tl.int64) * scale_b_column
    return z * of_rows[:, None] * tl.load(at, mask=inside, other=0.0)[None, :]


@triton.jit
def put(z, y, whole_tiles, row, end, column, columns):
    """Writes the tile ``z``, rows by columns, of one expert, whose rows ``end`` there; ``y`` is contiguous.

    ``whole_tiles`` describes ``y``: the hardware copies tiles whose rows are all of one expert's. None: it does not.
    """
    rows = row + tl.arange(0, z.shape[0])
    lanes = column + tl.arange(0, z.shape[1])
    is_row, is_column = rows < end, lanes < columns
    z = z.to(y.dtype.element_ty)
    inside = is_row[:, None] & is_column[None, :]
    at = y + (rows.to(tl.int64) * columns)[:, None] + lanes[None, :]
    if whole_tiles is None:
        tl.store(at, z, mask=inside)
    elif row + z.shape[0] <= end:
        whole_tiles.store([row, column], z)
    else:
        tl.store(at, z, mask=inside)
