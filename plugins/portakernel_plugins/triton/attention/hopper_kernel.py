"""Attention's forward for Hopper in Gluon: a warp that fetches, and warpgroups that compute.

The producer, one warp, has the copy engine bring 64 queries for each consumer, and blocks of keys and values into two
rings of shared memory. A consumer, a warpgroup of four warps, goes through the blocks from the end of the keys to their
beginning, so that the masked ones come first. While it makes the weights of one block, the tensor cores work at the
products of the next block's scores, and at its own values:

issue scores of block j + 1 | issue weights of block j * values | wait for the scores | weights of block j + 1 | ...

Weights go from registers into the products. With PINGPONG the consumers take turns at issuing, so that one computes
exponentials while the other one's products are on.

A program takes tile after tile (``hopper_queue.py``, ``hopper_tiles.py``). Nothing starts anew between tiles: blocks
are counted on, and their number says which place of a ring they have and which phase of its barriers, so that the next
tile's first blocks arrive while the results of this one are stored. Barriers: ``full`` is completed by the copy
engine's bytes, ``empty`` by the consumers, each of which arrives once.
"""
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false
# Python's types do not see that Gluon iterates over its ranges, nor what it compiles with.

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from portakernel_plugins.triton.attention.bounded_scores import with_sink
from portakernel_plugins.triton.attention.hopper_memory import load, ring_of, store
from portakernel_plugins.triton.attention.hopper_queue import draw_tile, drawn_tile, queue_of
from portakernel_plugins.triton.attention.hopper_softmax import scores_of, softmax_step
from portakernel_plugins.triton.attention.hopper_tiles import blocks_of, place_of
from portakernel_plugins.triton.attention.online_softmax import HUGE
from portakernel_plugins.triton.exponentials import LOG2_E, LOG_2

# What one warpgroup's product has.
ROWS = gl.constexpr(64)
# Three warpgroups have 160 registers a thread: with heads of 64 they reached four fifths of what two do on an H100.
CONSUMERS = gl.constexpr(2)


@gluon.jit
def _produce(
    q, k, v, q_ring, k_ring, v_ring, queue, taken, where, share, total_tiles, left, right,
    BLOCK: gl.constexpr, STAGES: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
    RAGGED: gl.constexpr, QUEUED: gl.constexpr,
):  # fmt: skip
    q_blocks, q_full, q_empty = q_ring
    k_blocks, k_full, k_empty = k_ring
    v_blocks, v_full, v_empty = v_ring
    number = gl.program_id(0)
    turn = 0
    tiles_done = 0
    done = 0  # blocks
    while number < total_tiles:
        head, row, queries, keys, of_queries, of_keys, _origin = place_of(number, where, ROWS * CONSUMERS, RAGGED)
        number = draw_tile(queue, taken, turn, total_tiles, QUEUED)
        turn += 1
        if row < queries:
            begin, count, _, _ = blocks_of(row, ROWS * CONSUMERS, queries, keys, left, right, LEFT, RIGHT, BLOCK)
            key_head = head // share
            far, batch, first = of_queries
            row += first
            _, key_batch, first_key = of_keys
            key = first_key + (begin + count) * BLOCK
            phase_q = (tiles_done & 1) ^ 1
            tiles_done += 1
            # the first consumer can begin when it has queries and a block of keys
            mbarrier.wait(q_empty.index(0), phase_q)
            mbarrier.expect(q_full.index(0), q.block_type.nbytes)
            load(q, [far, batch, head, row, 0], q_full.index(0), q_blocks.index(0))
            for j in range(count):
                key -= BLOCK
                place = done % STAGES
                phase = (done // STAGES & 1) ^ 1
                mbarrier.wait(k_empty.index(place), phase)
                mbarrier.expect(k_full.index(place), k.block_type.nbytes)
                load(k, [far, key_batch, key_head, key, 0], k_full.index(place), k_blocks.index(place))
                if j == 0:
                    for consumer in gl.static_range(1, CONSUMERS):
                        mbarrier.wait(q_empty.index(consumer), phase_q)
                        mbarrier.expect(q_full.index(consumer), q.block_type.nbytes)
                        at = row + consumer * ROWS
                        load(q, [far, batch, head, at, 0], q_full.index(consumer), q_blocks.index(consumer))
                mbarrier.wait(v_empty.index(place), phase)
                mbarrier.expect(v_full.index(place), v.block_type.nbytes)
                load(v, [far, key_batch, key_head, key, 0], v_full.index(place), v_blocks.index(place))
                done += 1


@gluon.jit
def _behind(position, block, ALIBI: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    """How far the keys of a block are behind each query."""
    distance = 0
    if ALIBI:
        column = gl.arange(0, BLOCK, layout=LAYOUT).to(gl.float32)
        distance = gl.expand_dims((position - block * BLOCK).to(gl.float32), 1) - gl.expand_dims(column, 0)
    return distance


@gluon.jit
def _hidden(scores, block, first_seen, last_seen, LEFT: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    """Scores of one block, minus infinity where a query does not see the key."""
    column = gl.expand_dims(block * BLOCK + gl.arange(0, BLOCK, layout=LAYOUT), 0)
    seen = column <= gl.expand_dims(last_seen, 1)
    if LEFT:
        seen = seen & (column >= gl.expand_dims(first_seen, 1))
    return gl.where(seen, scores, float("-inf"))


@gluon.jit
def _consume(
    CONSUMER: gl.constexpr, q_ring, k_ring, v_ring, queue, out_blocks, order, out, slopes, sinks, lse, logsumexp, where,
    total_tiles, left, right, scale, coarse, cap, slope_stride, sink_stride,
    BLOCK: gl.constexpr, STAGES: gl.constexpr, D: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
    RAGGED: gl.constexpr, QUEUED: gl.constexpr, PINGPONG: gl.constexpr, EVERY: gl.constexpr, SOFTCAP: gl.constexpr,
    BOUNDED: gl.constexpr, FOLDED: gl.constexpr, ALIBI: gl.constexpr, SINKS: gl.constexpr, LSE: gl.constexpr,
    LOGSUMEXP: gl.constexpr,
):  # fmt: skip
    q_blocks, q_full, q_empty = q_ring
    k_blocks, k_full, k_empty = k_ring
    v_blocks, v_full, v_empty = v_ring
    dtype: gl.constexpr = q_blocks.dtype
    scored: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK, 16])
    summed: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=summed, k_width=2)
    by_row: gl.constexpr = gl.SliceLayout(1, scored)
    by_column: gl.constexpr = gl.SliceLayout(0, scored)
    of_sums: gl.constexpr = gl.SliceLayout(1, summed)
    none = gl.zeros([ROWS, BLOCK], gl.float32, layout=scored)
    q = q_blocks.index(CONSUMER).reshape([ROWS, D])
    out_block = out_blocks.index(CONSUMER)
    last = cap if SOFTCAP else scale
    huge = HUGE / last
    number = gl.program_id(0)
    turn = 0
    tiles_done = 0
    done = 0  # blocks
    issued = 0  # turns at the tensor cores
    while number < total_tiles:
        head, row, queries, keys, of_queries, _of_keys, origin = place_of(number, where, ROWS * CONSUMERS, RAGGED)
        if row < queries:
            begin, count, _, _ = blocks_of(row, ROWS * CONSUMERS, queries, keys, left, right, LEFT, RIGHT, BLOCK)
            row += CONSUMER * ROWS
            _, _, whole_from, whole_to = blocks_of(row, ROWS, queries, keys, left, right, LEFT, RIGHT, BLOCK)
            query = row + gl.arange(0, ROWS, layout=by_row)
            position = query + (keys - queries)
            first_seen = position - left
            last_seen = gl.full([ROWS], 0, gl.int32, layout=by_row) + (keys - 1)
            if RIGHT:
                last_seen = gl.minimum(last_seen, position + right)
            slope = 0.0
            if ALIBI:
                slope = gl.load(slopes + head * slope_stride) * LOG2_E
            top = gl.full([ROWS], float("-inf"), gl.float32, layout=by_row)
            total = gl.full([ROWS], 0.0, gl.float32, layout=by_row)
            sunk = float("-inf")
            if SINKS:
                sunk = gl.load(sinks + head * sink_stride).to(gl.float32) * LOG2_E
                top = gl.full([ROWS], 0.0, gl.float32, layout=by_row) + sunk
                total = gl.where(top == float("-inf"), 0.0, 1.0)
            if BOUNDED:  # the sink's weight is added in the end
                total = gl.full([ROWS], 0.0, gl.float32, layout=by_row)
            acc = gl.zeros([ROWS, D], gl.float32, layout=summed)
            block = begin + count - 1

            place = done % STAGES
            phase = done // STAGES & 1
            mbarrier.wait(q_full.index(CONSUMER), tiles_done & 1)
            tiles_done += 1
            mbarrier.wait(k_full.index(place), phase)
            keys_there = k_blocks.index(place).reshape([BLOCK, D]).permute((1, 0))
            scores = warpgroup_mma(q, keys_there, none, use_acc=False, is_async=True)
            scores = warpgroup_mma_wait(0, deps=(scores,))
            mbarrier.arrive(k_empty.index(place), count=1)
            behind = _behind(position, block, ALIBI, BLOCK, by_column)
            scores = scores_of(scores, behind, slope, scale, cap, SOFTCAP, ALIBI, BOUNDED, FOLDED)
            if (block >= whole_to) | (block < whole_from):
                scores = _hidden(scores, block, first_seen, last_seen, LEFT, BLOCK, by_column)
            weights, top, total, kept = softmax_step(scores, top, total, last, coarse, huge, BOUNDED, FOLDED, EVERY)

            for _block in range(1, count):
                value_place = done % STAGES
                value_phase = done // STAGES & 1
                done += 1
                block -= 1
                place = done % STAGES
                phase = done // STAGES & 1
                factors = gl.convert_layout(weights.to(dtype), operand)
                mbarrier.wait(k_full.index(place), phase)
                if PINGPONG:
                    # the first consumer's first turn is nobody's gift
                    mbarrier.wait(order.index(CONSUMER), (issued & 1) ^ (1 if CONSUMER == 0 else 0))
                keys_there = k_blocks.index(place).reshape([BLOCK, D]).permute((1, 0))
                scores = warpgroup_mma(q, keys_there, none, use_acc=False, is_async=True)
                mbarrier.wait(v_full.index(value_place), value_phase)
                acc = warpgroup_mma(factors, v_blocks.index(value_place).reshape([BLOCK, D]), acc, is_async=True)
                if PINGPONG:
                    mbarrier.arrive(order.index((CONSUMER + 1) % CONSUMERS), count=1)
                    issued += 1
                scores = warpgroup_mma_wait(1, deps=(scores,))
                mbarrier.arrive(k_empty.index(place), count=1)
                behind = _behind(position, block, ALIBI, BLOCK, by_column)
                scores = scores_of(scores, behind, slope, scale, cap, SOFTCAP, ALIBI, BOUNDED, FOLDED)
                if (block >= whole_to) | (block < whole_from):
                    scores = _hidden(scores, block, first_seen, last_seen, LEFT, BLOCK, by_column)
                weights, top, total, kept = softmax_step(scores, top, total, last, coarse, huge, BOUNDED, FOLDED, EVERY)
                acc = warpgroup_mma_wait(0, deps=(acc,))
                mbarrier.arrive(v_empty.index(value_place), count=1)
                if not BOUNDED:
                    acc = acc * gl.expand_dims(gl.convert_layout(kept, of_sums), 1)

            # the next tile's queries can come
            mbarrier.arrive(q_empty.index(CONSUMER), count=1)
            place = done % STAGES
            phase = done // STAGES & 1
            done += 1
            factors = gl.convert_layout(weights.to(dtype), operand)
            mbarrier.wait(v_full.index(place), phase)
            acc = warpgroup_mma(factors, v_blocks.index(place).reshape([BLOCK, D]), acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(v_empty.index(place), count=1)

            kept = 1.0
            if BOUNDED:
                total, top, kept = with_sink(total, sunk, cap)
            # of a query that sees nothing, total is 0
            inverse = kept / gl.where(total == 0.0, 1.0, total)
            acc = acc * gl.expand_dims(gl.convert_layout(inverse, of_sums), 1)
            tma.store_wait(0)  # the last tile's results have left the memory that these take
            out_block.reshape([ROWS, D]).store(acc.to(dtype))
            fence_async_shared()
            far, batch, first = of_queries
            store(out, [far, batch, head, first + row, 0], out_block)
            if FOLDED:
                top = gl.where((gl.abs(top) < HUGE) | (top == sunk), top, top / coarse * last)
            found = (top + gl.log2(total)) * LOG_2
            at_query = origin + query
            if LSE:
                gl.store(lse + at_query, found, mask=query < queries)
            if LOGSUMEXP:
                gl.store(logsumexp + at_query, found, mask=query < queries)
        number = drawn_tile(queue, turn, total_tiles, QUEUED)
        turn += 1
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=["sequences", "queries", "keys", "heads", "share", "tiles", "section", "batch_heads", "left",
                       "right"]
)  # fmt: skip
def forward(
    q,  # descriptors, as hopper_tiles.py says
    k,
    v,
    out,
    slopes,  # (H,) float32, or None, as all that a call does not ask for
    sinks,  # (H,)
    lse,  # (B, H, S) float32
    logsumexp,  # the same again, for backward
    ends_q,  # of sequences: they are the batch
    ends_k,
    sequences,
    taken,  # how many tiles were drawn, at first 0; None where each program has one
    queries,
    keys,
    heads,
    share,  # heads of one key head
    tiles,  # of a head
    section,
    batch_heads,
    left,
    right,
    scale,
    coarse,
    cap,
    slope_stride,
    sink_stride,
    BLOCK: gl.constexpr,
    STAGES: gl.constexpr,
    LEFT: gl.constexpr,
    RIGHT: gl.constexpr,
    SOFTCAP: gl.constexpr,
    BOUNDED: gl.constexpr,
    FOLDED: gl.constexpr,
    PINGPONG: gl.constexpr,
    EVERY: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,  # of a thread
    PRODUCER_REGISTERS: gl.constexpr,
) -> None:
    """The results of one tile or, with ``taken``, of all that the program draws."""
    D: gl.constexpr = q.block_type.shape[4]
    q_ring = ring_of(q, CONSUMERS, 1)
    k_ring = ring_of(k, STAGES, CONSUMERS)
    v_ring = ring_of(v, STAGES, CONSUMERS)
    queue = queue_of(CONSUMERS)
    out_blocks = gl.allocate_shared_memory(out.dtype, [CONSUMERS] + out.block_type.shape, out.layout)  # noqa: RUF005
    order = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    for consumer in gl.static_range(CONSUMERS):
        mbarrier.init(order.index(consumer), count=1)
    fence_async_shared()
    # a partition's arguments cannot be None
    RAGGED: gl.constexpr = ends_q is not None
    QUEUED: gl.constexpr = taken is not None
    ALIBI: gl.constexpr = slopes is not None
    SINKS: gl.constexpr = sinks is not None
    LSE: gl.constexpr = lse is not None
    LOGSUMEXP: gl.constexpr = logsumexp is not None
    taken_there = taken if QUEUED else 0
    slopes_there = slopes if ALIBI else 0
    sinks_there = sinks if SINKS else 0
    lse_there = lse if LSE else 0
    logsumexp_there = logsumexp if LOGSUMEXP else 0
    ends_q_there = ends_q if RAGGED else 0
    ends_k_there = ends_k if RAGGED else 0
    sequences_there = sequences if RAGGED else 0
    where = (queries, keys, heads, tiles, section, batch_heads, ends_q_there, ends_k_there, sequences_there)
    total = tiles * batch_heads
    # fmt: off
    # compile-time values stay such in tuples that stand in the call
    gl.warp_specialize([
        (_consume, (
            0, q_ring, k_ring, v_ring, queue, out_blocks, order, out, slopes_there, sinks_there, lse_there,
            logsumexp_there, where, total, left, right, scale, coarse, cap, slope_stride, sink_stride,
            BLOCK, STAGES, D, LEFT, RIGHT, RAGGED, QUEUED, PINGPONG, EVERY, SOFTCAP, BOUNDED, FOLDED, ALIBI, SINKS,
            LSE, LOGSUMEXP,
        )),
        (_consume, (
            1, q_ring, k_ring, v_ring, queue, out_blocks, order, out, slopes_there, sinks_there, lse_there,
            logsumexp_there, where, total, left, right, scale, coarse, cap, slope_stride, sink_stride,
            BLOCK, STAGES, D, LEFT, RIGHT, RAGGED, QUEUED, PINGPONG, EVERY, SOFTCAP, BOUNDED, FOLDED, ALIBI, SINKS,
            LSE, LOGSUMEXP,
        )),
        (_produce, (
            q, k, v, q_ring, k_ring, v_ring, queue, taken_there, where, share, total, left, right,
            BLOCK, STAGES, LEFT, RIGHT, RAGGED, QUEUED,
        )),
    ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])
    # fmt: on
