"""What a consumer of the grouped products' Hopper kernel adds up: 64 rows of a tile, in halves of its columns.

It waits for a block's ``full`` barrier, and arrives at ``empty`` when the block's products are done.

Sums of float8 products that the tensor cores make are of fewer bits: 128 terms, and no more. One consumer adds them up,
times their scales, while the other one's products are on.
"""
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false, reportPossiblyUnboundVariable=false
# Python's types do not see that Gluon iterates over its ranges, nor what it compiles with.

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from portakernel_plugins.triton.matrix.grouped_hopper_tiles import ROWS, columns_of_tile, numbers_of

# The columns, and the terms, that share a scale.
SCALED = gl.constexpr(128)


@gluon.jit
def _in_halves(acc, STORED: gl.constexpr):
    return gl.split(gl.permute(gl.reshape(acc, [ROWS, 2, STORED]), (0, 2, 1)))


@gluon.jit
def sums(
    CONSUMER: gl.constexpr, a_blocks, b_blocks, full, empty, done, steps, CONSUMERS: gl.constexpr,
    BLOCK_K: gl.constexpr, STAGES: gl.constexpr, STORED: gl.constexpr, GATHERED: gl.constexpr,
):  # fmt: skip
    """A consumer's part of a tile, in halves of its columns, and how many blocks are done."""
    COLUMNS: gl.constexpr = 2 * STORED
    summed: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLUMNS, 16]
    )
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, layout=summed)
    for step in range(steps):
        place = done % STAGES
        mbarrier.wait(full.index(place), done // STAGES & 1)
        if GATHERED:
            fence_async_shared()  # what threads copied is read by the tensor cores
        left = a_blocks.index(CONSUMERS * place + CONSUMER)
        right = b_blocks.index(place).reshape([COLUMNS, BLOCK_K]).permute((1, 0))
        acc = warpgroup_mma(left, right, acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))
        if step > 0:
            mbarrier.arrive(empty.index((done - 1) % STAGES), count=1)
        done += 1
    acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(empty.index((done - 1) % STAGES), count=1)
    first, second = _in_halves(acc, STORED)
    return first, second, done


@gluon.jit
def sums_of_halves(
    CONSUMER: gl.constexpr, a_blocks, b_blocks, full, empty, done, steps, CONSUMERS: gl.constexpr,
    BLOCK_K: gl.constexpr, STAGES: gl.constexpr, STORED: gl.constexpr, GATHERED: gl.constexpr,
):  # fmt: skip
    """The same by two products: one of all columns wants more registers than three consumers' threads begin with."""
    summed: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, STORED, 16])
    first = gl.zeros([ROWS, STORED], gl.float32, layout=summed)
    second = gl.zeros([ROWS, STORED], gl.float32, layout=summed)
    for step in range(steps):
        place = done % STAGES
        mbarrier.wait(full.index(place), done // STAGES & 1)
        if GATHERED:
            fence_async_shared()
        left = a_blocks.index(CONSUMERS * place + CONSUMER)
        right = b_blocks.index(place).reshape([2 * STORED, BLOCK_K])
        first = warpgroup_mma(left, right.slice(0, STORED, dim=0).permute((1, 0)), first, is_async=True)
        second = warpgroup_mma(left, right.slice(STORED, STORED, dim=0).permute((1, 0)), second, is_async=True)
        first, second = warpgroup_mma_wait(2, deps=(first, second))
        if step > 0:
            mbarrier.arrive(empty.index((done - 1) % STAGES), count=1)
        done += 1
    first, second = warpgroup_mma_wait(0, deps=(first, second))
    mbarrier.arrive(empty.index((done - 1) % STAGES), count=1)
    return first, second, done


@gluon.jit
def scaled_sums(
    CONSUMER: gl.constexpr, a_blocks, b_blocks, full, empty, done, steps, expert, row, end, column, columns,
    scale_a, scale_b, scales, gather, gather_stride, shared, CONSUMERS: gl.constexpr,
    BLOCK_K: gl.constexpr, STAGES: gl.constexpr, STORED: gl.constexpr, GATHERED: gl.constexpr, PAIRED: gl.constexpr,
    FORMAT: gl.constexpr,
):  # fmt: skip
    """The same of float8 numbers with scales."""
    a_row, a_block, b_expert, b_column, b_block = scales
    COLUMNS: gl.constexpr = 2 * STORED
    summed: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLUMNS, 32]
    )
    by_row: gl.constexpr = gl.SliceLayout(1, summed)
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, layout=summed)
    none = gl.zeros([ROWS, COLUMNS], gl.float32, layout=summed)
    rows = row + gl.arange(0, ROWS, layout=by_row)
    is_row = rows < end
    at_row = scale_a + numbers_of(rows, is_row, gather, gather_stride, shared, GATHERED) * a_row
    lane, is_column = columns_of_tile(column, columns, STORED, PAIRED, gl.SliceLayout(0, summed))
    at_matrix = scale_b + expert.to(gl.int64) * b_expert
    if FORMAT == "block":
        # all columns of a half share a scale
        first_scale = at_matrix + column * (2 if PAIRED == "in turn" else 1) // SCALED * b_column
        second_scale = first_scale
        if PAIRED == "one by one":
            second_scale = at_matrix + (column + columns) // SCALED * b_column
        is_second = gl.expand_dims(gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, summed)) >= STORED, 0)
        of_rows = gl.load(at_row, mask=is_row, other=0.0)
        of_first = gl.load(first_scale)
        of_second = gl.load(second_scale)
    for step in range(steps):
        place = done % STAGES
        mbarrier.wait(full.index(place), done // STAGES & 1)
        if GATHERED:
            fence_async_shared()
        left = a_blocks.index(CONSUMERS * place + CONSUMER)
        right = b_blocks.index(place).reshape([COLUMNS, BLOCK_K]).permute((1, 0))
        part = warpgroup_mma(left, right, none, use_acc=False, is_async=True)
        if FORMAT == "block":
            first_factor = of_rows * of_first
            second_factor = of_rows * of_second
            after = gl.minimum(step + 1, steps - 1)
            of_rows = gl.load(at_row + after * a_block, mask=is_row, other=0.0)
            of_first = gl.load(first_scale + after * b_block)
            of_second = gl.load(second_scale + after * b_block)
        part = warpgroup_mma_wait(0, deps=(part,))
        mbarrier.arrive(empty.index(place), count=1)
        done += 1
        if FORMAT == "block":
            factor = gl.expand_dims(first_factor, 1)
            if PAIRED == "one by one":
                factor = gl.where(is_second, gl.expand_dims(second_factor, 1), factor)
            acc += part * factor
        else:
            acc += part
    if FORMAT == "row":
        of_rows = gl.load(at_row, mask=is_row, other=0.0)
        of_columns = gl.load(at_matrix + lane * b_column, mask=is_column, other=0.0)
        acc = acc * gl.expand_dims(of_rows, 1) * gl.expand_dims(of_columns, 0)
    first, second = _in_halves(acc, STORED)
    return first, second, done
