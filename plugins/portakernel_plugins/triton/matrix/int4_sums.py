"""What programs of ``int4_mm`` do with their sums: those of several splits are added up in their order, once.

Each split leaves its part, and the last one to finish adds all up, so that equal calls give equal bits whoever it is.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def finish(
    acc,  # (BLOCK_N, BLOCK_M)
    bias,
    y,
    parts,  # (splits, tiles, BLOCK_M, BLOCK_N) float32
    counters,  # (tiles,) zeros, which are left as zeros
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
    """Writes a tile of ``y.T``, or leaves one part of its sums; the last part to be done adds all of them up."""
    UNROLL: tl.constexpr = 8 if BLOCK_M <= 16 else 1  # parts that are read at once, as far as registers go
    n = first_n + tl.arange(0, BLOCK_N)
    m = first_m + tl.arange(0, BLOCK_M)
    if SPLIT:
        tiles = tl.num_programs(0)
        live = (m < M)[None, :]
        to_part = tl.arange(0, BLOCK_M)[None, :] * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
        mine = parts + (tl.cast(split, tl.int64) * tiles + tile) * BLOCK_M * BLOCK_N
        tl.store(mine + to_part, acc, mask=live)
        tl.debug_barrier()  # all of the part is there before it is counted
        done = tl.atomic_add(counters + tile, 1, sem="acq_rel")
        if done == splits - 1:
            tl.store(counters + tile, 0)
            total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            for other in tl.range(0, splits, loop_unroll_factor=UNROLL):
                theirs = parts + (tl.cast(other, tl.int64) * tiles + tile) * BLOCK_M * BLOCK_N
                total += tl.load(theirs + to_part, mask=live, other=0.0, cache_modifier=".cg")
            _write(y, total, bias, m, M, n, N, y_row, y_lane, bias_lane)
    else:
        _write(y, acc, bias, m, M, n, N, y_row, y_lane, bias_lane)


@triton.jit
def _write(y, acc, bias, m, M, n, N, y_row, y_lane, bias_lane):
    """A tile of the result, transposed, with its bias."""
    if bias is not None:
        acc += tl.load(bias + n.to(tl.int64) * bias_lane, mask=n < N, other=0.0).to(tl.float32)[:, None]
    at = y + m.to(tl.int64)[None, :] * y_row + n.to(tl.int64)[:, None] * y_lane
    tl.store(at, acc.to(y.dtype.element_ty), mask=(m < M)[None, :] & (n < N)[:, None])
