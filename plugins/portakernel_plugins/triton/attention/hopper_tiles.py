"""Which tile of queries a program of the Hopper kernel has next, and which blocks of keys the tile goes through.

Tiles are numbered by sections of heads whose keys and values stay in the cache together; in a section the tiles at the
end of the sequences come first, because under a causal mask those are the longest, and heads of one key head are side
by side, because they read the same keys.

The copy engine knows five dimensions: (1, batches, heads, rows, lanes). Sequences of different lengths lie in one row
of tokens, and what is behind one is another's, of which nothing may be copied. For them the second dimension is rows
too, and so is the fourth, of ``FAR`` rows behind which there is nothing; the first one takes ``FAR`` rows back, in 64
bits that wrap round. Row ``i`` of a sequence of ``n`` is at (``FAR``, the sequence's end, head, ``FAR - n + i``).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from portakernel_plugins.triton.attention.sequences import tile_of_sequence

FAR = gl.constexpr(1 << 30)


@gluon.jit
def tile_at(number, tiles, section, batch_heads):
    """The tile's place in its sequence, and its number among all heads of the batch."""
    begin = number // (section * tiles) * section
    heads = gl.minimum(section, batch_heads - begin)
    inside = number - begin * tiles
    return tiles - 1 - inside // heads, begin + inside % heads


@gluon.jit
def place_of(number, where, ROWS: gl.constexpr, RAGGED: gl.constexpr):
    """Of a tile of ``ROWS`` queries the head, the first query, and how many queries and keys its sequence has; ...

    ... where the copy engine has both sides of the sequence, and where its log-sum-exps are. A tile that begins behind
    the queries is none.
    """
    queries, keys, heads, tiles, section, batch_heads, ends_q, ends_k, sequences = where
    tile, at = tile_at(number, tiles, section, batch_heads)
    origin = at.to(gl.int64) * queries
    head = at % heads
    of_queries = (0, at // heads, 0)
    of_keys = of_queries
    if RAGGED:
        tile, first_q, queries, first_k, keys, _sequence = tile_of_sequence(
            tile, ends_q, ends_k, sequences, queries, 1, ROWS
        )
        origin += first_q
        of_queries = (FAR, first_q.to(gl.int32) + queries, FAR - queries)
        of_keys = (FAR, first_k.to(gl.int32) + keys, FAR - keys)
    return head, tile * ROWS, queries, keys, of_queries, of_keys, origin


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
