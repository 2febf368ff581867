"""How programs of ``int4_mm`` end: a tile of ``y.T``, or one part of its sums."""
# pyright: reportAssignmentType=false
# In a jit function, `name: tl.constexpr = 1` makes a constexpr of the number.

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.matrix.splits import sum_of_parts


@triton.jit
def finish(
    acc,  # (BLOCK_N, BLOCK_M)
    bias,
    y,
    parts,
    counters,
    tile,
    split,
    splits,
    first_m,
    first_n,
    M,
    N,
    y_row,
    y_lane,
    bias_lane,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Writes a tile of ``y.T``; of several parts of its sums the last one to be done does."""
    UNROLL: tl.constexpr = 8 if BLOCK_M <= 16 else 1
    n = first_n + tl.arange(0, BLOCK_N)
    m = first_m + tl.arange(0, BLOCK_M)
    if SPLIT:
        live = (m < M)[None, :]
        offset = tl.arange(0, BLOCK_M)[None, :] * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
        tiles = tl.num_programs(0)
        acc, last = sum_of_parts(
            acc, live, parts, counters, tile, tiles, split, splits, offset, BLOCK_M * BLOCK_N, UNROLL
        )
        if last:
            _write(y, acc, bias, m, M, n, N, y_row, y_lane, bias_lane)
    else:
        _write(y, acc, bias, m, M, n, N, y_row, y_lane, bias_lane)


@triton.jit
def _write(y, acc, bias, m, M, n, N, y_row, y_lane, bias_lane):
    """A tile of the result, transposed, with its bias."""
    if bias is not None:
        acc += tl.load(bias + n.to(tl.int64) * bias_lane, mask=n < N, other=0.0).to(tl.float32)[:, None]
    at = y + m.to(tl.int64)[None, :] * y_row + n.to(tl.int64)[:, None] * y_lane
    tl.store(at, acc.to(y.dtype.element_ty), mask=(m < M)[None, :] & (n < N)[:, None])
