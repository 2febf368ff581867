"""Attention's forward for Hopper in Gluon: a warp that fetches, and warpgroups that compute.

The producer, one warp, has the copy engine bring 64 queries for each consumer, and blocks of keys and values into two
rings of shared memory. A consumer, a warpgroup of four warps, goes through the blocks from the end of the keys to their
beginning, so that the masked ones come first. While it makes the weights of one block, the tensor cores work at the
products of the next block's scores, and at its own values:

issue scores of block j + 1 | issue weights of block j * values | wait for the scores | weights of block j + 1 | ...

Weights go from registers into the products. With PINGPONG the consumers take turns at issuing, so that one computes
exponentials while the other one's products are on.

A program takes tile after tile (``hopper_tiles.py``). Nothing starts anew between tiles: blocks are counted on, and
their number says which place of a ring they have and which phase of its barriers, so that the next tile's first blocks
arrive while the results of this one are stored. Barriers: ``full`` is completed by the copy engine's bytes, ``empty``
by the consumers, each of which arrives once.
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

from portakernel_plugins.triton.attention.hopper_memory import load, ring_of, store
from portakernel_plugins.triton.attention.hopper_softmax import softmax_step
from portakernel_plugins.triton.attention.hopper_tiles import blocks_of, rounds_of, tile_at, tile_number
from portakernel_plugins.triton.attention.online_softmax import HUGE
from portakernel_plugins.triton.exponentials import LOG2_E, LOG_2

# What one warpgroup's product has.
ROWS = gl.constexpr(64)
# Three warpgroups have 160 registers a thread: with heads of 64 they reached four fifths of what two do on an H100.
CONSUMERS = gl.constexpr(2)


@gluon.jit
def _produce(
    q, k, v, q_ring, k_ring, v_ring, where, left, right,
    BLOCK: gl.constexpr, STAGES: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
):  # fmt: skip
    queries, keys, heads, share, tiles, section, batch_heads, rounds = where
    q_blocks, q_full, q_empty = q_ring
    k_blocks, k_full, k_empty = k_ring
    v_blocks, v_full, v_empty = v_ring
    done = 0
    for turn in range(rounds):
        number = tile_number(gl.program_id(0), gl.num_programs(0), turn)
        tile, at = tile_at(number, tiles, section, batch_heads)
        batch = at // heads
        head = at % heads
        row = tile * (ROWS * CONSUMERS)
        begin, count, _, _ = blocks_of(row, ROWS * CONSUMERS, queries, keys, left, right, LEFT, RIGHT, BLOCK)
        key_head = head // share
        key = (begin + count) * BLOCK
        # the first consumer can begin when it has queries and a block of keys
        mbarrier.wait(q_empty.index(0), (turn & 1) ^ 1)
        mbarrier.expect(q_full.index(0), q.block_type.nbytes)
        load(q, [batch, head, row, 0], q_full.index(0), q_blocks.index(0))
        for j in range(count):
            key -= BLOCK
            place = done % STAGES
            phase = (done // STAGES & 1) ^ 1
            mbarrier.wait(k_empty.index(place), phase)
            mbarrier.expect(k_full.index(place), k.block_type.nbytes)
            load(k, [batch, key_head, key, 0], k_full.index(place), k_blocks.index(place))
            if j == 0:
                for consumer in gl.static_range(1, CONSUMERS):
                    mbarrier.wait(q_empty.index(consumer), (turn & 1) ^ 1)
                    mbarrier.expect(q_full.index(consumer), q.block_type.nbytes)
                    load(q, [batch, head, row + consumer * ROWS, 0], q_full.index(consumer), q_blocks.index(consumer))
            mbarrier.wait(v_empty.index(place), phase)
            mbarrier.expect(v_full.index(place), v.block_type.nbytes)
            load(v, [batch, key_head, key, 0], v_full.index(place), v_blocks.index(place))
            done += 1


@gluon.jit
def _hidden(scores, block, first_seen, last_seen, LEFT: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    """Scores of one block, minus infinity where a query does not see the key."""
    column = gl.expand_dims(block * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, LAYOUT)), 0)
    seen = column <= gl.expand_dims(last_seen, 1)
    if LEFT:
        seen = seen & (column >= gl.expand_dims(first_seen, 1))
    return gl.where(seen, scores, float("-inf"))


@gluon.jit
def _consume(
    CONSUMER: gl.constexpr, q_ring, k_ring, v_ring, out_blocks, order, out, sinks, lse, logsumexp, where, left, right,
    scale, coarse, sink_stride, BLOCK: gl.constexpr, STAGES: gl.constexpr, D: gl.constexpr,
    LEFT: gl.constexpr, RIGHT: gl.constexpr, PINGPONG: gl.constexpr, EVERY: gl.constexpr,
    SINKS: gl.constexpr, LSE: gl.constexpr, LOGSUMEXP: gl.constexpr,
):  # fmt: skip
    queries, keys, heads, _share, tiles, section, batch_heads, rounds = where
    q_blocks, q_full, q_empty = q_ring
    k_blocks, k_full, k_empty = k_ring
    v_blocks, v_full, v_empty = v_ring
    dtype: gl.constexpr = q_blocks.dtype
    scored: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK, 16])
    summed: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=summed, k_width=2)
    by_row: gl.constexpr = gl.SliceLayout(1, scored)
    of_sums: gl.constexpr = gl.SliceLayout(1, summed)
    none = gl.zeros([ROWS, BLOCK], gl.float32, layout=scored)
    q = q_blocks.index(CONSUMER).reshape([ROWS, D])
    out_block = out_blocks.index(CONSUMER)
    done = 0  # blocks
    issued = 0  # turns at the tensor cores
    for turn in range(rounds):
        number = tile_number(gl.program_id(0), gl.num_programs(0), turn)
        tile, at = tile_at(number, tiles, section, batch_heads)
        row = tile * (ROWS * CONSUMERS)
        begin, count, _, _ = blocks_of(row, ROWS * CONSUMERS, queries, keys, left, right, LEFT, RIGHT, BLOCK)
        row += CONSUMER * ROWS
        _, _, whole_from, whole_to = blocks_of(row, ROWS, queries, keys, left, right, LEFT, RIGHT, BLOCK)
        query = row + gl.arange(0, ROWS, layout=by_row)
        position = query + (keys - queries)
        first_seen = position - left
        last_seen = gl.full([ROWS], 0, gl.int32, layout=by_row) + (keys - 1)
        if RIGHT:
            last_seen = gl.minimum(last_seen, position + right)
        top = gl.full([ROWS], float("-inf"), gl.float32, layout=by_row)
        total = gl.full([ROWS], 0.0, gl.float32, layout=by_row)
        sunk = float("-inf")
        if SINKS:
            sunk = gl.load(sinks + at % heads * sink_stride).to(gl.float32) * LOG2_E
            top = gl.full([ROWS], 0.0, gl.float32, layout=by_row) + sunk
            total = gl.where(top == float("-inf"), 0.0, 1.0)
        acc = gl.zeros([ROWS, D], gl.float32, layout=summed)
        huge = HUGE / scale
        block = begin + count - 1

        place = done % STAGES
        phase = done // STAGES & 1
        mbarrier.wait(q_full.index(CONSUMER), turn & 1)
        mbarrier.wait(k_full.index(place), phase)
        keys_there = k_blocks.index(place).reshape([BLOCK, D]).permute((1, 0))
        scores = warpgroup_mma(q, keys_there, none, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=(scores,))
        mbarrier.arrive(k_empty.index(place), count=1)
        if (block >= whole_to) | (block < whole_from):
            scores = _hidden(scores, block, first_seen, last_seen, LEFT, BLOCK, scored)
        weights, top, total, kept = softmax_step(scores, top, total, scale, coarse, huge, EVERY)

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
            if (block >= whole_to) | (block < whole_from):
                scores = _hidden(scores, block, first_seen, last_seen, LEFT, BLOCK, scored)
            weights, top, total, kept = softmax_step(scores, top, total, scale, coarse, huge, EVERY)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(v_empty.index(value_place), count=1)
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

        # of a query that sees nothing, total is 0
        inverse = 1.0 / gl.where(total == 0.0, 1.0, total)
        acc = acc * gl.expand_dims(gl.convert_layout(inverse, of_sums), 1)
        tma.store_wait(0)  # the last tile's results have left the memory that these take
        out_block.reshape([ROWS, D]).store(acc.to(dtype))
        fence_async_shared()
        store(out, [at // heads, at % heads, row, 0], out_block)
        top = gl.where((gl.abs(top) < HUGE) | (top == sunk), top, top / coarse * scale)
        found = (top + gl.log2(total)) * LOG_2
        at_query = at.to(gl.int64) * queries + query
        if LSE:
            gl.store(lse + at_query, found, mask=query < queries)
        if LOGSUMEXP:
            gl.store(logsumexp + at_query, found, mask=query < queries)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["queries", "keys", "heads", "share", "tiles", "section", "batch_heads", "left", "right"])
def forward(
    q,  # descriptors of (B, H, S, D), (B, G, T, D) and (B, H, S, E)
    k,
    v,
    out,
    sinks,  # (H,), or None, as all that a call does not ask for
    lse,  # (B, H, S) float32
    logsumexp,  # the same again, for backward
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
    sink_stride,
    BLOCK: gl.constexpr,
    STAGES: gl.constexpr,
    LEFT: gl.constexpr,
    RIGHT: gl.constexpr,
    PERSISTENT: gl.constexpr,
    PINGPONG: gl.constexpr,
    EVERY: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,  # of a thread
    PRODUCER_REGISTERS: gl.constexpr,
) -> None:
    """The results of one tile or, with ``PERSISTENT``, of all that the program has."""
    D: gl.constexpr = q.block_type.shape[3]
    q_ring = ring_of(q, CONSUMERS, 1)
    k_ring = ring_of(k, STAGES, CONSUMERS)
    v_ring = ring_of(v, STAGES, CONSUMERS)
    out_blocks = gl.allocate_shared_memory(out.dtype, [CONSUMERS] + out.block_type.shape, out.layout)  # noqa: RUF005
    order = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    for consumer in gl.static_range(CONSUMERS):
        mbarrier.init(order.index(consumer), count=1)
    fence_async_shared()
    rounds = 1
    if PERSISTENT:
        rounds = rounds_of(gl.program_id(0), gl.num_programs(0), tiles * batch_heads)
    where = (queries, keys, heads, share, tiles, section, batch_heads, rounds)
    # a partition's arguments cannot be None
    SINKS: gl.constexpr = sinks is not None
    LSE: gl.constexpr = lse is not None
    LOGSUMEXP: gl.constexpr = logsumexp is not None
    sinks_there = sinks if SINKS else 0
    lse_there = lse if LSE else 0
    logsumexp_there = logsumexp if LOGSUMEXP else 0
    # fmt: off
    # compile-time values stay such in tuples that stand in the call
    gl.warp_specialize([
        (_consume, (
            0, q_ring, k_ring, v_ring, out_blocks, order, out, sinks_there, lse_there, logsumexp_there, where, left,
            right, scale, coarse, sink_stride, BLOCK, STAGES, D, LEFT, RIGHT, PINGPONG, EVERY, SINKS, LSE, LOGSUMEXP,
        )),
        (_consume, (
            1, q_ring, k_ring, v_ring, out_blocks, order, out, sinks_there, lse_there, logsumexp_there, where, left,
            right, scale, coarse, sink_stride, BLOCK, STAGES, D, LEFT, RIGHT, PINGPONG, EVERY, SINKS, LSE, LOGSUMEXP,
        )),
        (_produce, (q, k, v, q_ring, k_ring, v_ring, where, left, right, BLOCK, STAGES, LEFT, RIGHT)),
    ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])
    # fmt: on
