"""Tiles of the grouped products' Hopper kernel: which there are, and which rows and columns they have."""
# pyright: reportAssignmentType=false
# Python's types do not see what Gluon compiles with.

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# What one warpgroup multiplies.
ROWS = gl.constexpr(64)


@gluon.jit
def _plus(x, y):
    return x + y


@gluon.jit
def last_tiles(offsets, offsets_stride, experts, across, TILE: gl.constexpr, LANES: gl.constexpr, WARPS: gl.constexpr):
    """Of each expert how many tiles there are up to its last one, and how many there are in all."""
    # every warp has all of them: sums need no memory
    layout: gl.constexpr = gl.BlockedLayout([LANES // 32], [32], [WARPS], [0])
    lane = gl.arange(0, LANES, layout=layout)
    begin = gl.load(offsets + lane * offsets_stride, mask=lane < experts, other=0).to(gl.int32)
    end = gl.load(offsets + (lane + 1) * offsets_stride, mask=lane < experts, other=0).to(gl.int32)
    tiles = gl.maximum((end - begin + TILE - 1) // TILE, 0) * across
    last = gl.associative_scan(tiles, 0, _plus)
    return last, gl.sum(tiles, 0)


@gluon.jit
def tile_at(number, last, offsets, offsets_stride, TILE: gl.constexpr, WIDTH: gl.constexpr):
    """Of a tile the expert, the first row, the expert's end, and the first column: rows of a column come first."""
    before = last <= number
    expert = gl.sum(before.to(gl.int32), 0)
    place = number - gl.max(gl.where(before, last, 0), 0)
    begin = gl.load(offsets + expert * offsets_stride).to(gl.int32)
    end = gl.load(offsets + (expert + 1) * offsets_stride).to(gl.int32)
    height = (end - begin + TILE - 1) // TILE
    return expert, begin + place % height * TILE, end, place // height * WIDTH


@gluon.jit
def numbers_of(row, is_row, gather, gather_stride, shared, GATHERED: gl.constexpr):
    """Which rows of a they are."""
    number = row
    if GATHERED:
        at = gather + row.to(gl.int64) * gather_stride
        number = gl.load(at, mask=is_row, other=0).to(gl.int32) // shared
    return number.to(gl.int64)


@gluon.jit
def columns_of_tile(column, columns, STORED: gl.constexpr, PAIRED: gl.constexpr, LAYOUT: gl.constexpr):
    """Which columns of a matrix a tile has, of which there are twice ``columns`` where they are gate and up.

    ``PAIRED``: those of one half and then those of the other; ``in turn``: every second one, and then those between.
    """
    lane = gl.arange(0, 2 * STORED, layout=LAYOUT)
    number = column + lane
    inside = number < columns
    if PAIRED != "no":
        second = lane // STORED
        number = column + lane % STORED
        inside = number < columns
        number = 2 * number + second if PAIRED == "in turn" else number + second * columns
    return number, inside
