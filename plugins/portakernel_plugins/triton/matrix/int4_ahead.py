"""What a program of ``int4_mm`` does before it may read x: it has the L2 cache fetch the weights that are its own.

So memory is busy from the first moment on, and while the kernel before ends: neither waits for registers, or for room
in shared memory. A line that is written after it was fetched is the written one: nobody has to wait for the weights.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import triton
import triton.language as tl

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
        tl.inline_asm_elementwise(
            _BULK, "=r,l,r,r", [(weight + place * 16).to(tl.int64), size, wanted.to(tl.int32)], dtype=tl.int32,
            is_pure=False, pack=1,
        )  # fmt: skip
        if GROUP > 0:
            for part in tl.static_range(PARTS):
                group = block * PARTS + part
                known = wanted & (group < groups)
                at = group.to(tl.int64) * N + first_n
                _line(scales + at, known)
                if zeros is not None:
                    _line(zeros + at, known)
