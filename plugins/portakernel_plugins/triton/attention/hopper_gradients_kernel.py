"""Attention's gradients for Hopper in Gluon, all in one kernel: five products of a block where two kernels need seven.

A program has 128 keys of one key head, 64 for each consumer, and goes through the blocks of queries that see them, of
all heads of the key head. Scores stand the other way round, a key in a row, so that the weights ``P.T`` and the scores'
gradients ``dS.T`` go from registers into products whose sums stay in registers; ``shift`` and ``delta`` are the terms
of a query that ``hopper_gradients_rows.py`` makes, ``z`` scores with all changes (``scores.py``):

    S.T = K @ Q.T        P.T = exp2(z(S.T) - shift)           grad_v += P.T @ grad
    dP.T = V @ grad.T    dS.T = P.T * (dP.T - delta) * z'     grad_k += dS.T @ Q        grad_q += dS @ K

The last sum is over keys: each program has a part of it. ``dS`` of both consumers goes through shared memory, each
makes one half of the product, and the copy engine adds it to ``sums``, float32, in no fixed order: equal calls may give
other bits there. A consumer's tensor cores have in turn

dP.T, while it makes P | P.T @ grad, dS.T @ Q | dS @ K | S.T of the next block, while the product before is sent off

Nothing may be on from one round of the loop to the next: ptxas then has every product waited for at once. To issue dP.T
of the next block a round earlier was 1 to 11 % slower on an H100. Barriers are as in ``hopper_kernel.py``; ``written``
is completed by both consumers.

Sequences of different lengths are as in ``hopper_tiles.py``; blocks of queries are numbered as their tiles would be, so
that each sequence's ``terms`` and ``sums`` are padded to whole blocks.
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

from portakernel_plugins.triton.attention.hopper_memory import add, load, ring_of, store
from portakernel_plugins.triton.attention.hopper_softmax import each_has
from portakernel_plugins.triton.attention.hopper_tiles import FAR, blocks_of, tile_at
from portakernel_plugins.triton.attention.scores import changed
from portakernel_plugins.triton.attention.sequences import first_tile, tile_of_sequence
from portakernel_plugins.triton.exponentials import LOG2_E

# Keys of a consumer, which are what one warpgroup's product has; and queries of the product that it adds to memory.
ROWS = gl.constexpr(64)
CONSUMERS = gl.constexpr(2)
# Places for dS: who writes one knows by the other's last arrival that what was there has been read.
_PLACES = gl.constexpr(2)
# A query that no block has.
_NEVER = gl.constexpr(1 << 30)


@gluon.jit
def _place(where, RAGGED: gl.constexpr, BLOCK: gl.constexpr):
    """The program's key head among all of the batch, and its first key; of its sequence how many queries and keys ...

    ... there are, where the copy engine has both sides, and the number of its first block of queries. A program whose
    keys begin behind them, or are seen by no query, has nothing to do.
    """
    queries, keys, key_heads, _share, tiles, section, batch_heads, _blocks, ends_q, ends_k, sequences = where
    tile, at = tile_at(gl.program_id(0), tiles, section, batch_heads)
    # under a causal mask the first keys are seen by most queries
    tile = tiles - 1 - tile
    of_queries = (0, at // key_heads, 0)
    of_keys = of_queries
    first_block = 0
    if RAGGED:
        tile, first_k, keys, first_q, queries, sequence = tile_of_sequence(
            tile, ends_k, ends_q, sequences, keys, 1, ROWS * CONSUMERS
        )
        of_queries = (FAR, first_q.to(gl.int32) + queries, FAR - queries)
        of_keys = (FAR, first_k.to(gl.int32) + keys, FAR - keys)
        first_block = first_tile(first_q, sequence, 1, BLOCK).to(gl.int32)
    return at, tile * (ROWS * CONSUMERS), queries, keys, of_queries, of_keys, first_block


@gluon.jit
def _produce(
    q, k, v, grad, terms, q_ring, grad_ring, shift_blocks, delta_blocks, k_blocks, v_blocks, here, where, left, right,
    STAGES: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, BLOCK: gl.constexpr, RAGGED: gl.constexpr,
):  # fmt: skip
    key_heads = where[2]
    share = where[3]
    at, key, queries, keys, of_queries, of_keys, first_block = _place(where, RAGGED, BLOCK)
    if (key < keys) & (queries > 0):
        # seen from a key, the window's sides change places
        begin, count, _, _ = blocks_of(key, ROWS * CONSUMERS, keys, queries, right, left, RIGHT, LEFT, BLOCK)
        key_head = at % key_heads
        far, batch, first_query = of_queries
        _, key_batch, first_key = of_keys
        key += first_key
        q_blocks, q_full, q_empty = q_ring
        grad_blocks, grad_full, grad_empty = grad_ring
        mbarrier.expect(here.index(0), k.block_type.nbytes * CONSUMERS)
        for consumer in gl.static_range(CONSUMERS):
            load(k, [far, key_batch, key_head, key + consumer * ROWS, 0], here.index(0), k_blocks.index(consumer))
        for i in range(share * count):
            block = begin + i % count
            head = key_head * share + i // count
            query = first_query + block * BLOCK
            term = (at * share + i // count) * 2
            column = (first_block + block) * BLOCK
            place = i % STAGES
            phase = (i // STAGES & 1) ^ 1
            mbarrier.wait(q_empty.index(place), phase)
            mbarrier.expect(q_full.index(place), q.block_type.nbytes + terms.block_type.nbytes)
            load(q, [far, batch, head, query, 0], q_full.index(place), q_blocks.index(place))
            load(terms, [term, column], q_full.index(place), shift_blocks.index(place))
            if i == 0:
                mbarrier.expect(here.index(1), v.block_type.nbytes * CONSUMERS)
                for consumer in gl.static_range(CONSUMERS):
                    row = key + consumer * ROWS
                    load(v, [far, key_batch, key_head, row, 0], here.index(1), v_blocks.index(consumer))
            mbarrier.wait(grad_empty.index(place), phase)
            mbarrier.expect(grad_full.index(place), grad.block_type.nbytes + terms.block_type.nbytes)
            load(grad, [far, batch, head, query, 0], grad_full.index(place), grad_blocks.index(place))
            load(terms, [term + 1, column], grad_full.index(place), delta_blocks.index(place))


@gluon.jit
def _half(block, CONSUMER: gl.constexpr):
    """Of a block with 128 columns this consumer's; all of one that has 64."""
    HALVED: gl.constexpr = block.shape[1] == ROWS * CONSUMERS
    return block.slice(CONSUMER * ROWS, ROWS, dim=1) if HALVED else block


@gluon.jit
def _hidden(weights, block, first_seen, last_seen, LEFT: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    """Weights of one block of queries, 0 where a query does not see the key."""
    query = gl.expand_dims(block * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, LAYOUT)), 0)
    seen = query >= gl.expand_dims(first_seen, 1)
    if LEFT:
        seen = seen & (query <= gl.expand_dims(last_seen, 1))
    return gl.where(seen, weights, 0.0)


@gluon.jit
def _consume(
    CONSUMER: gl.constexpr, q_ring, grad_ring, shift_blocks, delta_blocks, k_blocks, v_blocks, here, slopes_blocks,
    written, added_blocks, finished, sums, grad_k, grad_v, alibi, where, left, right, scale, cap, factor, alibi_stride,
    STAGES: gl.constexpr, D: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, BLOCK: gl.constexpr,
    RAGGED: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr,
):  # fmt: skip
    key_heads = where[2]
    share = where[3]
    blocks = where[7]
    at, first_key, queries, keys, _of_queries, of_keys, first_block = _place(where, RAGGED, BLOCK)
    q_blocks, q_full, q_empty = q_ring
    grad_blocks, grad_full, grad_empty = grad_ring
    dtype: gl.constexpr = q_blocks.dtype
    scored: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK, 16])
    summed: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    shared: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, ROWS, 16])
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=summed, k_width=2)
    by_key: gl.constexpr = gl.SliceLayout(1, scored)
    by_query: gl.constexpr = gl.SliceLayout(0, scored)
    none = gl.zeros([ROWS, BLOCK], gl.float32, layout=scored)
    nothing = gl.zeros([ROWS, ROWS], gl.float32, layout=shared)
    k = k_blocks.index(CONSUMER).reshape([ROWS, D])
    v = v_blocks.index(CONSUMER).reshape([ROWS, D])
    added = added_blocks.index(CONSUMER)

    if (first_key < keys) & (queries > 0):
        begin, count, _, _ = blocks_of(first_key, ROWS * CONSUMERS, keys, queries, right, left, RIGHT, LEFT, BLOCK)
        first_key += CONSUMER * ROWS
        _, _, whole_from, whole_to = blocks_of(first_key, ROWS, keys, queries, right, left, RIGHT, LEFT, BLOCK)
        if first_key + ROWS > keys:
            whole_from = _NEVER + 0
        key = first_key + gl.arange(0, ROWS, layout=by_key)
        position = key - (keys - queries)
        first_seen = gl.full([ROWS], 0, gl.int32, layout=by_key)
        if RIGHT:
            first_seen = position - right
        first_seen = gl.where(key < keys, first_seen, _NEVER)
        last_seen = position + left

        sums_k = gl.zeros([ROWS, D], gl.float32, layout=summed)
        sums_v = gl.zeros([ROWS, D], gl.float32, layout=summed)
        total = share * count
        first_at = at * share * blocks + first_block + begin
        mbarrier.wait(here.index(0), 0)
        mbarrier.wait(q_full.index(0), 0)
        q = q_blocks.index(0).reshape([BLOCK, D])
        scores = warpgroup_mma(k, q.permute((1, 0)), none, use_acc=False, is_async=True)
        mbarrier.wait(here.index(1), 0)
        scores = warpgroup_mma_wait(0, deps=(scores,))
        for i in range(total):
            block = begin + i % count
            place = i % STAGES
            phase = i // STAGES & 1
            q = q_blocks.index(place).reshape([BLOCK, D])
            grad = grad_blocks.index(place).reshape([BLOCK, D])
            mbarrier.wait(grad_full.index(place), phase)
            slopes = warpgroup_mma(v, grad.permute((1, 0)), none, use_acc=False, is_async=True)
            shift = shift_blocks.index(place).reshape([BLOCK]).load(by_query)
            behind = 0
            alibi_slope = None
            if ALIBI:
                alibi_slope = gl.load(alibi + (at % key_heads * share + i // count) * alibi_stride) * LOG2_E
                query = gl.arange(0, BLOCK, layout=by_query).to(gl.float32)
                behind = gl.expand_dims(query, 0) - gl.expand_dims((position - block * BLOCK).to(gl.float32), 1)
            z, bounded = changed(scores, behind, alibi_slope, None, scale, cap, SOFTCAP, each_has(BLOCK))
            weights = gl.exp2(gl.minimum(z - gl.expand_dims(shift, 0), 0.0))
            if (block >= whole_to) | (block < whole_from):
                weights = _hidden(weights, block, first_seen, last_seen, LEFT, BLOCK, scored)
            factors = gl.convert_layout(weights.to(dtype), operand)
            if SOFTCAP:
                weights = weights * (1.0 - bounded * bounded)
            delta = delta_blocks.index(place).reshape([BLOCK]).load(by_query)
            slopes = warpgroup_mma_wait(0, deps=(slopes,))
            slopes = (weights * (slopes - gl.expand_dims(delta, 0))).to(dtype)
            sums_v = warpgroup_mma(factors, grad, sums_v, is_async=True)

            other = i % _PLACES
            slopes_blocks.index(other * CONSUMERS + CONSUMER).store(slopes)
            fence_async_shared()
            mbarrier.arrive(written.index(other), count=1)
            factors = gl.convert_layout(slopes, operand)
            sums_k = warpgroup_mma(factors, q, sums_k, is_async=True)
            sums_v = warpgroup_mma_wait(1, deps=(sums_v,))
            mbarrier.arrive(grad_empty.index(place), count=1)

            # each consumer's keys, and half of what they give
            mbarrier.wait(written.index(other), i // _PLACES & 1)
            product = nothing
            for consumer in gl.static_range(CONSUMERS):
                found = slopes_blocks.index(other * CONSUMERS + consumer)
                theirs = k_blocks.index(consumer).reshape([ROWS, D])
                product = warpgroup_mma(
                    _half(found, CONSUMER).permute((1, 0)), _half(theirs, CONSUMER), product,
                    use_acc=consumer > 0, is_async=True,
                )  # fmt: skip
            sums_k = warpgroup_mma_wait(CONSUMERS, deps=(sums_k,))
            mbarrier.arrive(q_empty.index(place), count=1)

            # behind the last block its own once more, which nobody uses
            after = gl.minimum(i + 1, total - 1)
            place = after % STAGES
            mbarrier.wait(q_full.index(place), after // STAGES & 1)
            next_q = q_blocks.index(place).reshape([BLOCK, D])
            scores = warpgroup_mma(k, next_q.permute((1, 0)), none, use_acc=False, is_async=True)
            product = warpgroup_mma_wait(1, deps=(product,))
            # each thread's numbers beside each other, four at a time: hopper_gradients_rows.py says the same
            product = product.reshape([4, 2, 8, 8, 4, 2]).permute([3, 0, 2, 4, 1, 5]).reshape([2 * ROWS, ROWS // 2])
            tma.store_wait(0)  # the last block's has left the memory that this takes
            added.store(product)
            fence_async_shared()
            number = first_at + (i // count) * blocks + i % count
            add(sums, [(number * CONSUMERS + CONSUMER) * (2 * ROWS), 0], added)
            scores = warpgroup_mma_wait(0, deps=(scores,))

        far, batch, before = of_keys
        v_blocks.index(CONSUMER).reshape([ROWS, D]).store(sums_v.to(dtype))
        fence_async_shared()
        store(grad_v, [far, batch, at % key_heads, before + first_key, 0], v_blocks.index(CONSUMER))
        # the other consumer's last product has read these keys
        mbarrier.arrive(finished.index(0), count=1)
        mbarrier.wait(finished.index(0), 0)
        k.store((sums_k * factor).to(dtype))
        fence_async_shared()
        store(grad_k, [far, batch, at % key_heads, before + first_key, 0], k_blocks.index(CONSUMER))
        tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "sequences", "queries", "keys", "key_heads", "share", "tiles", "section", "batch_heads", "blocks", "left",
        "right",
    ]
)  # fmt: skip
def gradients(
    q,  # descriptors, as hopper_tiles.py says
    k,
    v,
    grad,
    terms,  # of (B * H * 2, blocks * BLOCK) float32: of each head shift and delta
    sums,  # of (B * H * blocks * 2 * 128, 32) float32
    grad_k,  # as k; of sequences, zeros where no query is
    grad_v,
    alibi,  # (H,) float32, or None, as all that a call does not ask for
    ends_q,  # of sequences: they are the batch
    ends_k,
    sequences,
    queries,
    keys,
    key_heads,
    share,  # heads of one key head
    tiles,  # of a key head
    section,
    batch_heads,  # B * G
    blocks,  # of a head's queries
    left,
    right,
    scale,  # of products, to scores in units of log(2) or, with SOFTCAP, to what the tangent is taken of
    cap,
    factor,  # of products, to scores
    alibi_stride,
    BLOCK: gl.constexpr,
    STAGES: gl.constexpr,
    LEFT: gl.constexpr,
    RIGHT: gl.constexpr,
    SOFTCAP: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,  # of a thread
    PRODUCER_REGISTERS: gl.constexpr,
) -> None:
    """The gradients of one tile of keys, and its part of those of the queries."""
    D: gl.constexpr = q.block_type.shape[4]
    # a partition's arguments cannot be None
    RAGGED: gl.constexpr = ends_q is not None
    ALIBI: gl.constexpr = alibi is not None
    ends_q_there = ends_q if RAGGED else 0
    ends_k_there = ends_k if RAGGED else 0
    sequences_there = sequences if RAGGED else 0
    alibi_there = alibi if ALIBI else 0
    q_ring = ring_of(q, STAGES, CONSUMERS)
    grad_ring = ring_of(grad, STAGES, CONSUMERS)
    shift_blocks = gl.allocate_shared_memory(gl.float32, [STAGES] + terms.block_type.shape, terms.layout)  # noqa: RUF005
    delta_blocks = gl.allocate_shared_memory(gl.float32, [STAGES] + terms.block_type.shape, terms.layout)  # noqa: RUF005
    k_blocks = gl.allocate_shared_memory(k.dtype, [CONSUMERS] + k.block_type.shape, k.layout)  # noqa: RUF005
    v_blocks = gl.allocate_shared_memory(v.dtype, [CONSUMERS] + v.block_type.shape, v.layout)  # noqa: RUF005
    slopes_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK], q.dtype)
    slopes_blocks = gl.allocate_shared_memory(q.dtype, [_PLACES * CONSUMERS, ROWS, BLOCK], slopes_layout)
    added_blocks = gl.allocate_shared_memory(gl.float32, [CONSUMERS] + sums.block_type.shape, sums.layout)  # noqa: RUF005
    here = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    written = gl.allocate_shared_memory(gl.int64, [_PLACES, 1], mbarrier.MBarrierLayout())
    finished = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(here.index(i), count=1)
        mbarrier.init(written.index(i), count=CONSUMERS)
    mbarrier.init(finished.index(0), count=CONSUMERS)
    fence_async_shared()
    where = (
        queries, keys, key_heads, share, tiles, section, batch_heads, blocks, ends_q_there, ends_k_there,
        sequences_there,
    )  # fmt: skip
    # fmt: off
    # compile-time values stay such in tuples that stand in the call
    gl.warp_specialize([
        (_consume, (
            0, q_ring, grad_ring, shift_blocks, delta_blocks, k_blocks, v_blocks, here, slopes_blocks, written,
            added_blocks, finished, sums, grad_k, grad_v, alibi_there, where, left, right, scale, cap, factor,
            alibi_stride, STAGES, D, LEFT, RIGHT, BLOCK, RAGGED, SOFTCAP, ALIBI,
        )),
        (_consume, (
            1, q_ring, grad_ring, shift_blocks, delta_blocks, k_blocks, v_blocks, here, slopes_blocks, written,
            added_blocks, finished, sums, grad_k, grad_v, alibi_there, where, left, right, scale, cap, factor,
            alibi_stride, STAGES, D, LEFT, RIGHT, BLOCK, RAGGED, SOFTCAP, ALIBI,
        )),
        (_produce, (
            q, k, v, grad, terms, q_ring, grad_ring, shift_blocks, delta_blocks, k_blocks, v_blocks, here, where, left,
            right, STAGES, LEFT, RIGHT, BLOCK, RAGGED,
        )),
    ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])
    # fmt: on
