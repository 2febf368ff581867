"""What a program of few rows does before it may read them: it has the L2 cache fetch the weights that are its own.

So memory is busy from the first moment on, and while the kernel before ends: neither waits for registers, or for room
in shared memory. A line that is written after it was fetched is the written one: nobody has to wait for the weights.
"""
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false
# Python's types do not see that Triton iterates over its ranges, nor what it makes constants of.

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from portakernel_plugins.triton.matrix.products import tile_corner

_BULK = tl.constexpr(
    "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }"
)
_LINE = tl.constexpr("{ .reg .pred p; setp.ne.b32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.b32 $0, 0; }")


@triton.jit
def _line(pointer, wanted):
    """Has L2 fetch the line of each of these elements that is ``wanted``."""
    tl.inline_asm_elementwise(
        _LINE, "=r,l,r", [pointer.to(tl.int64), wanted.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _stretch(pointer, size, wanted):
    """Has L2 fetch ``size`` bytes, whole units of 16, from each of these elements that is ``wanted`` on."""
    tl.inline_asm_elementwise(
        _BULK, "=r,l,r,r", [pointer.to(tl.int64), size, wanted.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def ask_for_weights(
    weight,
    scales,
    zeros,
    first,  # block of 128 columns
    last,  # block that is not wanted any more
    first_n,
    N,
    groups,
    GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LANES: tl.constexpr,
):
    """Has L2 fetch the words of ``BLOCK_N`` rows in these blocks, one copy of a block for a lane, and their factors.

    Rows of a whole tile.
    """
    PARTS: tl.constexpr = 128 // GROUP if GROUP > 0 else 1
    for begin in range(first, last, LANES):
        block = begin + tl.arange(0, LANES)
        wanted = block < last
        place = block.to(tl.int64) * N + first_n
        size = tl.full((LANES,), BLOCK_N * 64, tl.int32)
        _stretch(weight + place * 16, size, wanted)
        if GROUP > 0:
            for part in tl.static_range(PARTS):
                group = block * PARTS + part
                known = wanted & (group < groups)
                at = group.to(tl.int64) * N + first_n
                _line(scales + at, known)
                if zeros is not None:
                    _line(zeros + at, known)


@triton.jit
def begin_early(
    b,
    b_outer,
    rows,
    columns,
    inners,  # of b, in its elements
    terms,  # those of a split
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr,
    OVERLAP: tl.constexpr,
    FETCH: tl.constexpr,
):
    """``FETCH``: has L2 fetch what the program's first tile has of ``b``. ``OVERLAP``: and then waits for its turn.

    Rows of ``b`` are dense, and begin where 16 bytes do.
    """
    if FETCH:
        tiles = tl.cdiv(rows, BLOCK_M) * tl.cdiv(columns, BLOCK_N)
        tile, split = tl.program_id(0) % tiles, tl.program_id(0) // tiles
        _first_row, first = tile_corner(tile, rows, columns, BLOCK_M, BLOCK_N, GROUP)
        row = first + tl.arange(0, BLOCK_N)
        inner = split * terms
        bytes_each: tl.constexpr = b.dtype.element_ty.primitive_bitwidth // 8
        size = tl.minimum(terms, inners - inner) * bytes_each // 16 * 16
        sizes = tl.zeros((BLOCK_N,), tl.int32) + size
        _stretch(b + row.to(tl.int64) * b_outer + inner, sizes, (row < columns) & (sizes > 0))
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
