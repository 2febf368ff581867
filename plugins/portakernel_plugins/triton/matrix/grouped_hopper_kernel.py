"""Grouped products for Hopper in Gluon: warps that fetch, and two or three warpgroups that multiply.

The producer has rows and matrices brought into a ring of shared memory: by the copy engine, or, rows that are gathered,
by asynchronous copies of its own four warps, for the engine of Hopper gathers none. Each consumer, a warpgroup of four
warps, has 64 rows of a tile, and all of its columns; of rows behind the expert's end it multiplies none, so that
no more than 63 rows of an expert are multiplied in vain.

A program takes tile after tile, found from ``offsets`` by each partition for itself. Blocks are counted on from tile to
tile, and their number says which place of the ring they have and which phase of its barriers: the next tile's first
blocks arrive while the results of this one are stored. Barriers: ``full`` is completed by the copy engine's bytes and
the copying threads, ``empty`` by the consumers, each of which arrives once.

Results leave through shared memory. For the engine y is what ``attention/hopper_tiles.py`` says: rows are counted from
an expert's end, behind which nothing is written.
"""
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false, reportPossiblyUnboundVariable=false
# Python's types do not see that Gluon iterates over its ranges, nor what it compiles with.

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
)

from portakernel_plugins.triton.attention.hopper_memory import copy, load, store
from portakernel_plugins.triton.attention.hopper_tiles import FAR
from portakernel_plugins.triton.gates.activations import activated
from portakernel_plugins.triton.matrix.grouped_hopper_sums import scaled_sums, sums, sums_of_halves
from portakernel_plugins.triton.matrix.grouped_hopper_tiles import ROWS, last_tiles, numbers_of, tile_at

# Threads that gather.
_WARPS = gl.constexpr(4)
_THREADS = gl.constexpr(32 * _WARPS.value)


@gluon.jit
def _addresses(a, gather, first, end, a_row, gather_stride, shared, BLOCK_K: gl.constexpr):
    """Where in memory the first terms of 64 gathered rows are, and which of the rows there are."""
    layout: gl.constexpr = gl.BlockedLayout([1, BLOCK_K // 8], [4, 8], [_WARPS, 1], [1, 0])
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    is_row = row < end
    number = numbers_of(row, is_row, gather, gather_stride, shared, True)
    term = gl.arange(0, BLOCK_K, layout=gl.SliceLayout(0, layout))
    at = a + (gl.expand_dims(number * a_row, 1) + gl.expand_dims(term, 0))
    # a partition does not know what its arguments are divisible by
    return gl.max_contiguous(gl.multiple_of(at, [16, 16]), [1, BLOCK_K // 8]), gl.expand_dims(is_row, 1)


@gluon.jit
def _produce(
    a, b, gather, a_blocks, b_blocks, full, empty, where, steps, inners, a_row, gather_stride, shared,
    CONSUMERS: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, LANES: gl.constexpr, WIDTH: gl.constexpr,
    GATHERED: gl.constexpr, EVEN: gl.constexpr,
):  # fmt: skip
    offsets, offsets_stride, experts, across = where
    WARPS: gl.constexpr = _WARPS if GATHERED else 1
    last, tiles = last_tiles(offsets, offsets_stride, experts, across, CONSUMERS * ROWS, LANES, WARPS)
    number = gl.program_id(0)
    done = 0  # blocks
    while number < tiles:
        expert, row, end, column = tile_at(number, last, offsets, offsets_stride, CONSUMERS * ROWS, WIDTH)
        parts = gl.minimum((end - row + ROWS - 1) // ROWS, CONSUMERS)  # of consumers that have rows
        if GATHERED:
            gl.static_assert(CONSUMERS == 2)
            first_at, is_first = _addresses(a, gather, row, end, a_row, gather_stride, shared, BLOCK_K)
            second_at, is_second = _addresses(a, gather, row + ROWS, end, a_row, gather_stride, shared, BLOCK_K)
            layout: gl.constexpr = gl.BlockedLayout([1, BLOCK_K // 8], [4, 8], [_WARPS, 1], [1, 0])
            term = gl.expand_dims(gl.arange(0, BLOCK_K, layout=gl.SliceLayout(0, layout)), 0)
        for step in range(steps):
            place = done % STAGES
            inner = step * BLOCK_K
            mbarrier.wait(empty.index(place), (done // STAGES & 1) ^ 1)
            if GATHERED:
                mbarrier.expect(full.index(place), b.block_type.nbytes)
                load(b, [expert, 0, column, inner], full.index(place), b_blocks.index(place))
                is_term = term >= 0
                if not EVEN:  # addresses of rows are divisible by 16 bytes, and so is their length
                    is_term = gl.max_constancy(term < inners - inner, [1, BLOCK_K // 8])
                copy(a_blocks.index(CONSUMERS * place), first_at + inner, is_first & is_term)
                if parts > 1:
                    copy(a_blocks.index(CONSUMERS * place + 1), second_at + inner, is_second & is_term)
                async_copy.mbarrier_arrive(full.index(place), increment_count=False)
            else:
                for some in gl.static_range(1, CONSUMERS + 1):
                    if parts == some:
                        mbarrier.expect(full.index(place), b.block_type.nbytes + some * a.block_type.nbytes)
                load(b, [expert, 0, column, inner], full.index(place), b_blocks.index(place))
                for part in gl.static_range(CONSUMERS):
                    if part < parts:
                        at = row + part * ROWS
                        load(a, [at, inner], full.index(place), a_blocks.index(CONSUMERS * place + part))
            done += 1
        number += gl.num_programs(0)


@gluon.jit
def _put(y, y_blocks, number, part, row, end, column, STORED: gl.constexpr, BUFFERS: gl.constexpr):
    """Stores 64 rows, of which those behind the expert's end are none."""
    block = y_blocks.index(number)
    tma.store_wait(BUFFERS - 1)  # the results have left that lay where these come
    block.reshape([ROWS, STORED]).store(part.to(block.dtype))
    fence_async_shared()
    store(y, [FAR, end, FAR - (end - row), column], block)


@gluon.jit
def _consume(
    CONSUMER: gl.constexpr, y, a_blocks, b_blocks, full, empty, y_blocks, where, steps, columns,
    scale_a, scale_b, scales, gather, gather_stride, shared, CONSUMERS: gl.constexpr,
    BLOCK_K: gl.constexpr, STAGES: gl.constexpr, LANES: gl.constexpr, WIDTH: gl.constexpr, STORED: gl.constexpr,
    GATHERED: gl.constexpr, GATE: gl.constexpr, PAIRED: gl.constexpr, FORMAT: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    offsets, offsets_stride, experts, across = where
    last, tiles = last_tiles(offsets, offsets_stride, experts, across, CONSUMERS * ROWS, LANES, 4)
    buffers = CONSUMER * BUFFERS  # the first one
    number = gl.program_id(0)
    done = 0  # blocks
    stored = 0
    while number < tiles:
        expert, row, end, column = tile_at(number, last, offsets, offsets_stride, CONSUMERS * ROWS, WIDTH)
        row += CONSUMER * ROWS
        if row < end:
            if FORMAT != "none":
                first, second, done = scaled_sums(
                    CONSUMER, a_blocks, b_blocks, full, empty, done, steps, expert, row, end, column, columns,
                    scale_a, scale_b, scales, gather, gather_stride, shared, CONSUMERS,
                    BLOCK_K, STAGES, STORED, GATHERED, PAIRED, FORMAT,
                )  # fmt: skip
            elif CONSUMERS == 2:
                first, second, done = sums(
                    CONSUMER, a_blocks, b_blocks, full, empty, done, steps, CONSUMERS, BLOCK_K, STAGES, STORED, GATHERED
                )
            else:
                first, second, done = sums_of_halves(
                    CONSUMER, a_blocks, b_blocks, full, empty, done, steps, CONSUMERS, BLOCK_K, STAGES, STORED, GATHERED
                )
            if GATE is not None:
                first = activated(first, GATE) * second
            _put(y, y_blocks, buffers + stored % BUFFERS, first, row, end, column, STORED, BUFFERS)
            stored += 1
            if GATE is None:  # noqa: SIM102 - one is compiled, and the other is asked
                if column + STORED < columns:
                    at = column + STORED
                    _put(y, y_blocks, buffers + stored % BUFFERS, second, row, end, at, STORED, BUFFERS)
                    stored += 1
        else:
            for _step in range(steps):
                place = done % STAGES
                mbarrier.wait(full.index(place), done // STAGES & 1)
                mbarrier.arrive(empty.index(place), count=1)
                done += 1
        number += gl.num_programs(0)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["experts", "across"])
def grouped(
    a,  # what describes (M, K); of rows that are gathered the rows themselves
    b,  # what describes (E, 1, N, K), or with a gate (E, 2, N / 2, K)
    y,  # what describes (R, N), or (R, N / 2), as hopper_tiles.py says
    offsets,
    scale_a,  # (M, 1) or (M, blocks), and (E, N, 1) or (E, blocks, blocks). None: they have no scales
    scale_b,
    gather,  # (R,). None: the rows are a's own
    experts,
    across,  # tiles side by side
    steps,
    inners,
    columns,  # of y
    a_row,
    offsets_stride,
    gather_stride,
    shared,  # so many numbers of gather, from 0 on, are the first row's, and so on
    scale_a_row,
    scale_a_block,
    scale_b_expert,
    scale_b_column,
    scale_b_block,
    CONSUMERS: gl.constexpr,
    LANES: gl.constexpr,  # a power of two from E on, 32 at least
    BLOCK_K: gl.constexpr,  # 128 bytes
    STAGES: gl.constexpr,
    BUFFERS: gl.constexpr,  # of results, for each consumer
    GATE: gl.constexpr,
    PAIRED: gl.constexpr,  # how gate and up lie in b: "one by one", "in turn", or "no"
    FORMAT: gl.constexpr,
    EVEN: gl.constexpr,  # BLOCK_K divides K
    CONSUMER_REGISTERS: gl.constexpr,  # of a thread
    PRODUCER_REGISTERS: gl.constexpr,
) -> None:
    """All tiles of the program: pieces of the rows of a times their matrices of b."""
    GATHERED: gl.constexpr = gather is not None
    # half of a tile's columns are stored at once, which is all that a gate leaves
    STORED: gl.constexpr = y.block_type.shape[3]
    WIDTH: gl.constexpr = 2 * STORED if GATE is None else STORED
    a_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK_K], b.dtype)
    a_blocks = gl.allocate_shared_memory(b.dtype, [CONSUMERS * STAGES, ROWS, BLOCK_K], a_layout)
    b_blocks = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_type.shape, b.layout)  # noqa: RUF005
    buffers: gl.constexpr = CONSUMERS * BUFFERS
    y_blocks = gl.allocate_shared_memory(y.dtype, [buffers] + y.block_type.shape, y.layout)  # noqa: RUF005
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(STAGES):
        mbarrier.init(full.index(place), count=1 + (_THREADS if GATHERED else 0))
        mbarrier.init(empty.index(place), count=CONSUMERS)
    fence_async_shared()
    # a partition's arguments cannot be None
    gather_there = gather if GATHERED else 0
    scale_a_there = scale_a if FORMAT != "none" else 0
    scale_b_there = scale_b if FORMAT != "none" else 0
    where = (offsets, offsets_stride, experts, across)
    scales = (scale_a_row, scale_a_block, scale_b_expert, scale_b_column, scale_b_block)
    # fmt: off
    # compile-time values stay such in tuples that stand in the call
    if CONSUMERS == 2:
        gl.warp_specialize([
            (_consume, (
                0, y, a_blocks, b_blocks, full, empty, y_blocks, where, steps, columns,
                scale_a_there, scale_b_there, scales, gather_there, gather_stride, shared, CONSUMERS,
                BLOCK_K, STAGES, LANES, WIDTH, STORED, GATHERED, GATE, PAIRED, FORMAT, BUFFERS,
            )),
            (_consume, (
                1, y, a_blocks, b_blocks, full, empty, y_blocks, where, steps, columns,
                scale_a_there, scale_b_there, scales, gather_there, gather_stride, shared, CONSUMERS,
                BLOCK_K, STAGES, LANES, WIDTH, STORED, GATHERED, GATE, PAIRED, FORMAT, BUFFERS,
            )),
            (_produce, (
                a, b, gather_there, a_blocks, b_blocks, full, empty, where, steps, inners, a_row, gather_stride, shared,
                CONSUMERS, BLOCK_K, STAGES, LANES, WIDTH, GATHERED, EVEN,
            )),
        ], [4, _WARPS if GATHERED else 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])
    else:
        gl.static_assert(CONSUMERS == 3)
        gl.warp_specialize([
            (_consume, (
                0, y, a_blocks, b_blocks, full, empty, y_blocks, where, steps, columns,
                scale_a_there, scale_b_there, scales, gather_there, gather_stride, shared, CONSUMERS,
                BLOCK_K, STAGES, LANES, WIDTH, STORED, GATHERED, GATE, PAIRED, FORMAT, BUFFERS,
            )),
            (_consume, (
                1, y, a_blocks, b_blocks, full, empty, y_blocks, where, steps, columns,
                scale_a_there, scale_b_there, scales, gather_there, gather_stride, shared, CONSUMERS,
                BLOCK_K, STAGES, LANES, WIDTH, STORED, GATHERED, GATE, PAIRED, FORMAT, BUFFERS,
            )),
            (_consume, (
                2, y, a_blocks, b_blocks, full, empty, y_blocks, where, steps, columns,
                scale_a_there, scale_b_there, scales, gather_there, gather_stride, shared, CONSUMERS,
                BLOCK_K, STAGES, LANES, WIDTH, STORED, GATHERED, GATE, PAIRED, FORMAT, BUFFERS,
            )),
            (_produce, (
                a, b, gather_there, a_blocks, b_blocks, full, empty, where, steps, inners, a_row, gather_stride, shared,
                CONSUMERS, BLOCK_K, STAGES, LANES, WIDTH, GATHERED, EVEN,
            )),
        ], [4, 4, _WARPS if GATHERED else 1], [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS])
    # fmt: on
