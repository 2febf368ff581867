"""Which tile of queries a program of the Hopper kernel has next, and which blocks of keys the tile goes through.

Tiles are numbered by sections of heads whose keys and values stay in the cache together; in a section the tiles at the
end of the sequences come first, because under a causal mask those are the longest, and heads of one key head are side
by side, because they read the same keys.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def rounds_of(program, programs, total):
    """How many tiles a program has, when rounds go forth and back over the programs."""
    whole = total // programs
    return whole + (_place(program, programs, whole) < total % programs).to(gl.int32)


@gluon.jit
def tile_number(program, programs, turn):
    """The number of a program's tile: in every second round the last program has the first, which levels lengths."""
    return turn * programs + _place(program, programs, turn)


@gluon.jit
def _place(program, programs, turn):
    back = turn % 2
    return program + back * (programs - 1 - 2 * program)


@gluon.jit
def tile_at(number, tiles, section, batch_heads):
    """The tile's place in its sequence, and its number among all heads of the batch."""
    begin = number // (section * tiles) * section
    heads = gl.minimum(section, batch_heads - begin)
    inside = number - begin * tiles
    return tiles - 1 - inside // heads, begin + inside % heads


@gluon.jit
def blocks_of(row, rows, queries, keys, left, right, LEFT: gl.constexpr, RIGHT: gl.constexpr, BLOCK: gl.constexpr):
    """Of ``rows`` queries from ``row`` on: the first block of keys, their number, and where whole ones begin and end.

    A block that every query sees whole needs no mask. There is always one block: where no key is seen, a hidden one.
    """
    first = row + keys - queries
    last = gl.minimum(row + rows, queries) - 1 + keys - queries
    begin = 0
    whole_from = 0
    stop = keys
    whole_to = keys
    if LEFT:
        begin = gl.maximum(first - left, 0) // BLOCK
        whole_from = (gl.maximum(last - left, 0) + BLOCK - 1) // BLOCK
    if RIGHT:
        stop = gl.minimum(gl.maximum(last + right + 1, 0), keys)
        whole_to = gl.minimum(gl.maximum(first + right + 1, 0), keys)
    count = gl.maximum((stop + BLOCK - 1) // BLOCK - begin, 1)
    return begin, count, whole_from, whole_to // BLOCK
