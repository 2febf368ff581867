"""``mla_decode`` for Hopper in Gluon: a warp that fetches, and two warpgroups that compute one tile together.

A tile is 64 heads of one query, or all heads of two or four queries. The producer brings its queries, and 64 latent
vectors at a time with their rotary parts into a ring of two places: one is multiplied while the other is filled, across
the ends of lists. Of the scores each warpgroup has the half for 32 keys, and of the sums the half for 256 lanes:
weights change hands in between. Lists and shares: ``shares.py``; what is left in parts a second launch adds up
(``merge`` in ``mla_kernels.py``).

What no query sees is in shared memory with the rest of its block. Its scores are minus infinity, and its latent vectors
are zeroed there before they are multiplied with weights: whatever it holds, nothing comes of it.
"""
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false
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

from portakernel_plugins.triton.attention.hopper_memory import load
from portakernel_plugins.triton.attention.online_softmax import HUGE
from portakernel_plugins.triton.attention.parts import note_list
from portakernel_plugins.triton.attention.scores import sees
from portakernel_plugins.triton.attention.shares import (
    blocks_of,
    lengths_of_all,
    list_at,
    one_of,
    sequence_of,
    shares_of,
)
from portakernel_plugins.triton.exponentials import LOG2_E, LOG_2

# Heads of a tile, keys of a block, and places of the ring: shared memory has no room for more.
ROWS, BLOCK, PLACES = gl.constexpr(64), gl.constexpr(64), gl.constexpr(2)
# What a program has warps for.
WARPS = gl.constexpr(8)


@gluon.jit
def _seen(share_part, tile, count, keys, left, right, HEADS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """Of a tile and its blocks from the first to the last: its first query and head, and what it sees there.

    The keys from ``begin`` to ``stop``, of which the first may be below ``lowest``. All of its queries see those from
    ``whole_from`` to ``whole_to``.
    """
    first, last = share_part
    query = tile * ROWS // HEADS
    head = tile * ROWS % HEADS
    last_query = query
    if HEADS < ROWS:
        last_query = gl.minimum(query + ROWS // HEADS, count) - 1
    ahead = keys - count
    begin = first * BLOCK
    stop = gl.minimum(last * BLOCK, keys)
    lowest = begin
    whole_from = begin
    whole_to = stop
    if LEFT:
        lowest = gl.maximum(query + ahead - left, begin)
        whole_from = gl.maximum(last_query + ahead - left, begin)
        begin = lowest // BLOCK * BLOCK
    if RIGHT:
        whole_to = gl.minimum(stop, query + ahead + right + 1)
        stop = gl.minimum(stop, last_query + ahead + right + 1)
    return query, head, begin, stop, lowest, whole_from, whole_to


@gluon.jit
def _same(x):
    """``x``, of which the compiler is to know that all threads of a warp have the same.

    Where it does not, whatever a loop runs over is in registers of each thread, addresses of products included.
    """
    return gl.inline_asm_elementwise(
        "shfl.sync.idx.b32 $0, $1, 0, 31, -1;", "=r,r", [x], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.constexpr_function
def _lines_of_a_product(together, rows, width):
    """A product's rows as they are stored: ``together`` neighbours are 16 bytes of a thread, and four threads a line.

    A product leaves each thread two neighbours of every eight, and which row a warp has is the same: what changes hands
    does so within four threads.
    """
    within = [[0, 1 << n] for n in range((width // 2).bit_length() - 1)]
    own = together.bit_length() - 1
    threads = [*within[own : own + 2], [1, 0], [2, 0], [4, 0]]
    warps = [[16, 0], [32, 0], [0, width // 2]]
    return gl.DistributedLinearLayout([*within[:own], [8, 0], *within[own + 2 :]], threads, warps, [], [rows, width])


@gluon.jit
def _row_of(layout: gl.constexpr):
    return gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))


@gluon.jit
def _lanes(rows, stride, layout: gl.constexpr, C: gl.constexpr):
    """Where the lanes of rows are that begin there."""
    lane = gl.arange(0, C, layout=gl.SliceLayout(0, layout))
    return gl.expand_dims(rows, 1) + gl.expand_dims(lane * stride, 0)


@gluon.jit
def _written(row, query, head, count, HEADS: gl.constexpr):
    """Of each row of a tile its query, its head, and whether it is there: the last queries may fill half a tile."""
    query = query + row // HEADS
    return query.to(gl.int64), (head + row % HEADS).to(gl.int64), query < count


@gluon.jit
def _produce(
    queries_read, cache_read, q_memory, ring, noted, share, lists, begin, stop, starts, lengths, table, table_row, most,
    left, right,
    HEADS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    q_latent, q_rope = queries_read
    latent, rope = cache_read
    q_latents, q_ropes, q_full, q_empty = q_memory
    latents, ropes, full, empty = ring
    sequence, first_row, count, keys, list_blocks, first_block, tile, list_begin = lists
    at = begin
    lists_done = 0
    done = 0  # blocks
    while at < stop:
        list_stop = list_begin + list_blocks
        if list_blocks > 0:
            upto = gl.minimum(stop, list_stop)
            before = first_block - list_begin
            query, head, key, end, _, _, _ = _seen(
                (before + at, before + upto), tile, count, keys, left, right, HEADS, LEFT, RIGHT
            )
            mbarrier.wait(q_empty.index(0), (lists_done & 1) ^ 1)
            lists_done += 1
            mbarrier.expect(q_full.index(0), q_latent.block_type.nbytes + q_rope.block_type.nbytes)
            load(q_latent, [0, 0, first_row + query, head, 0], q_full.index(0), q_latents.index(0))
            load(q_rope, [0, 0, first_row + query, head, 0], q_full.index(0), q_ropes.index(0))
            pages = table + sequence.to(gl.int64) * table_row
            while key < end:
                page = gl.load(pages + key // PAGE)
                place = done % PLACES
                mbarrier.wait(empty.index(place), (done // PLACES & 1) ^ 1)
                mbarrier.expect(full.index(place), latent.block_type.nbytes + rope.block_type.nbytes)
                load(latent, [0, page, 0, key % PAGE, 0], full.index(place), latents.index(place))
                load(rope, [0, page, 0, key % PAGE, 0], full.index(place), ropes.index(place))
                done += 1
                key += BLOCK
            # here, where nobody waits for it
            if (list_begin >= begin) & (upto < list_stop):
                note_list(noted, gl.program_id(0), first_row, count, tile, (list_stop - 1) // share)
            at = upto
        list_begin = list_stop
        tile += 1
        if (tile * ROWS >= count * HEADS) & (at < stop):
            sequence += 1
            tile = 0
            first_row, count, keys, list_blocks, first_block = sequence_of(
                sequence, starts, lengths, most, left, LEFT, BLOCK
            )


@gluon.jit
def _consume(
    q_memory, ring, sinks, results, parts, lists, begin, stop, starts, lengths, most, left, right, scale, coarse,
    sink_stride,
    HEADS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, FOLDED: gl.constexpr, SINKS: gl.constexpr,
    LSE: gl.constexpr, C: gl.constexpr, R: gl.constexpr,
):  # fmt: skip
    q_latents, q_ropes, q_full, q_empty = q_memory
    latents, ropes, full, empty = ring
    out, out_row, out_head, out_lane, lse = results
    values, shares = parts
    dtype: gl.constexpr = latents.dtype
    scored: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16])
    summed: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 256, 16])
    lines: gl.constexpr = _lines_of_a_product(8, ROWS, C)
    wide_lines: gl.constexpr = _lines_of_a_product(4, ROWS, C)
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=summed, k_width=2)
    by_row: gl.constexpr = gl.SliceLayout(1, scored)
    by_column: gl.constexpr = gl.SliceLayout(0, scored)
    of_sums: gl.constexpr = gl.SliceLayout(1, summed)
    in_lines: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    of_lines: gl.constexpr = gl.SliceLayout(1, in_lines)
    none = gl.zeros([ROWS, BLOCK], gl.float32, layout=scored)
    q_latent = q_latents.index(0).reshape([ROWS, C])
    q_rope = q_ropes.index(0).reshape([ROWS, R])
    huge = HUGE / scale
    row = gl.arange(0, ROWS, layout=by_row)
    sequence, first_row, count, keys, list_blocks, first_block, tile, list_begin = lists
    at = begin
    lists_done = 0
    done = 0  # blocks
    while at < stop:
        list_stop = list_begin + list_blocks
        if list_blocks > 0:
            upto = gl.minimum(stop, list_stop)
            before = first_block - list_begin
            query, head, key, end, lowest, whole_from, whole_to = _seen(
                (before + at, before + upto), tile, count, keys, left, right, HEADS, LEFT, RIGHT
            )
            at_head = head + row % HEADS
            sunk = gl.full([ROWS], float("-inf"), gl.float32, layout=by_row)
            if SINKS and at == list_begin:
                sunk = gl.load(sinks + at_head * sink_stride).to(gl.float32) * LOG2_E
            top = sunk
            sums = gl.zeros([ROWS, BLOCK], gl.float32, layout=scored)
            acc = gl.zeros([ROWS, C], gl.float32, layout=summed)
            mbarrier.wait(q_full.index(0), lists_done & 1)
            lists_done += 1
            if key >= end:
                mbarrier.arrive(q_empty.index(0), count=1)
            while key < end:
                place = done % PLACES
                mbarrier.wait(full.index(place), done // PLACES & 1)
                block = latents.index(place).reshape([BLOCK, C])
                rope = ropes.index(place).reshape([BLOCK, R])
                cut = (key < whole_from) | (key + BLOCK > whole_to)
                if cut:
                    column = key + gl.arange(0, BLOCK, layout=of_lines)
                    seen = gl.expand_dims((column >= lowest) & (column < end), 1)
                    block.store(gl.where(seen, block.load(in_lines), 0.0))
                    fence_async_shared()
                z = warpgroup_mma(q_latent, block.permute((1, 0)), none, use_acc=False, is_async=True)
                z = warpgroup_mma(q_rope, rope.permute((1, 0)), z, is_async=True)
                z = warpgroup_mma_wait(0, deps=(z,))
                if key + BLOCK >= end:  # the next list's queries can come
                    mbarrier.arrive(q_empty.index(0), count=1)
                if not FOLDED:
                    z = z * scale
                if cut:
                    column = key + gl.arange(0, BLOCK, layout=by_column)
                    inside = gl.expand_dims((column >= lowest) & (column < end), 0)
                    if HEADS < ROWS:
                        position = gl.expand_dims(keys - count + query + row // HEADS, 1)
                        inside = sees(inside, position - gl.expand_dims(column, 0), left, right, LEFT, RIGHT)
                    z = gl.where(inside, z, float("-inf"))
                higher = gl.max(z, 1)
                if FOLDED:
                    factor = gl.where(gl.abs(higher) < huge, scale, coarse)
                    higher = higher * factor
                    z = z * gl.expand_dims(factor, 1)
                higher = gl.maximum(top, higher)
                # of a row that has seen nothing yet, the differences were NaN
                base = gl.where(higher == float("-inf"), 0.0, higher)
                weights = gl.exp2(z - gl.expand_dims(base, 1))
                kept = gl.exp2(top - base)
                # rows are added up in the end: until then nothing changes hands for them
                sums = sums * gl.expand_dims(kept, 1) + weights
                top = higher
                acc = acc * gl.expand_dims(gl.convert_layout(kept, of_sums), 1)
                factors = gl.convert_layout(weights.to(dtype), operand)
                acc = warpgroup_mma(factors, block, acc, is_async=True)
                acc = warpgroup_mma_wait(0, deps=(acc,))
                mbarrier.arrive(empty.index(place), count=1)
                done += 1
                key += BLOCK

            base = gl.where(top == float("-inf"), 0.0, top)
            total = gl.sum(sums, 1) + gl.exp2(sunk - base)
            # of a row that sees nothing, total is 0
            inverse = 1.0 / gl.where(total == 0.0, 1.0, total)
            acc = acc * gl.expand_dims(gl.convert_layout(inverse, of_sums), 1)
            if FOLDED:
                top = gl.where((gl.abs(top) < HUGE) | (top == sunk), top, top / coarse * scale)
            found = top + gl.log2(total)
            if (list_begin >= begin) & (upto == list_stop):
                y = gl.convert_layout(acc.to(dtype), lines)
                to_row, to_head, live = _written(_row_of(lines), query, head, count, HEADS)
                to_row = (first_row + to_row) * out_row + to_head * out_head
                gl.store(out + _lanes(to_row, out_lane, lines, C), y, mask=gl.expand_dims(live, 1))
                if LSE:
                    of_row, of_head, there = _written(row, query, head, count, HEADS)
                    gl.store(lse + of_head * most + first_row + of_row, found * LOG_2, mask=there)
            else:
                part = (2 * gl.program_id(0) + (upto < list_stop).to(gl.int32)) * ROWS
                left_row = _row_of(wide_lines)
                _, _, left_live = _written(left_row, query, head, count, HEADS)
                to = _lanes((part + left_row).to(gl.int64) * C, 1, wide_lines, C)
                gl.store(values + to, gl.convert_layout(acc, wide_lines), mask=gl.expand_dims(left_live, 1))
                gl.store(shares + part + row, found)
            at = upto
        list_begin = list_stop
        tile += 1
        if (tile * ROWS >= count * HEADS) & (at < stop):
            sequence += 1
            tile = 0
            first_row, count, keys, list_blocks, first_block = sequence_of(
                sequence, starts, lengths, most, left, LEFT, BLOCK
            )


@gluon.jit(do_not_specialize=["sequences", "rows", "left", "right"])
def decode(
    q_latent,  # descriptors: of blocks of ROWS heads of a query, or of all heads of some
    q_rope,
    latent,  # of BLOCK rows of a page
    rope,
    sinks,  # (H,), or None, as all that a call does not ask for
    out,  # (S, H, C)
    out_row,
    out_head,
    out_lane,
    lse,  # (H, S) float32
    values,
    shares,
    noted,
    starts,
    table,
    lengths,
    table_row,
    sequences,
    rows,
    left,
    right,
    scale,
    coarse,
    sink_stride,
    HEADS: gl.constexpr,
    SEQUENCES: gl.constexpr,
    LEFT: gl.constexpr,
    RIGHT: gl.constexpr,
    FOLDED: gl.constexpr,
    LEAST: gl.constexpr,
    PAGE: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
) -> None:
    """Writes what lists come to that lie in a program's share, and leaves parts of others."""
    C: gl.constexpr = q_latent.block_type.shape[4]
    R: gl.constexpr = q_rope.block_type.shape[4]
    program = gl.program_id(0)
    # each warp has them all, up to 256: what is found of them takes no other's answer
    of_a_thread: gl.constexpr = min(SEQUENCES, 256) // 32 if SEQUENCES > 32 else 1
    number = gl.arange(0, SEQUENCES, layout=gl.BlockedLayout([of_a_thread], [32], [WARPS], [0]))
    all_rows, counts, all_keys = lengths_of_all(starts, lengths, sequences, number)
    blocks, skipped = blocks_of(counts, all_keys, rows, left, LEFT, BLOCK)
    tiles = (counts * HEADS + ROWS - 1) // ROWS
    ends, whole, share = shares_of(blocks, tiles, gl.num_programs(0), LEAST)
    begin = program * share
    stop = gl.minimum(begin + share, whole)
    note_list(noted, program, 0, 0, 0, 0)
    if begin >= stop:
        return
    sequence = gl.sum((ends <= begin).to(gl.int32), 0)
    chosen = number == sequence
    first_row = one_of(all_rows, chosen)
    count = one_of(counts, chosen)
    keys = one_of(all_keys, chosen)
    list_blocks = one_of(blocks, chosen)
    first_block = one_of(skipped, chosen)
    tile, list_begin = list_at(begin, one_of(ends, chosen), one_of(tiles, chosen), list_blocks)

    # Gluon unpacks no lists
    q_latents = gl.allocate_shared_memory(q_latent.dtype, [1] + q_latent.block_type.shape, q_latent.layout)  # noqa: RUF005
    q_ropes = gl.allocate_shared_memory(q_rope.dtype, [1] + q_rope.block_type.shape, q_rope.layout)  # noqa: RUF005
    latents = gl.allocate_shared_memory(latent.dtype, [PLACES] + latent.block_type.shape, latent.layout)  # noqa: RUF005
    ropes = gl.allocate_shared_memory(rope.dtype, [PLACES] + rope.block_type.shape, rope.layout)  # noqa: RUF005
    q_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full.index(0), count=1)
    mbarrier.init(q_empty.index(0), count=1)
    for place in gl.static_range(PLACES):
        mbarrier.init(full.index(place), count=1)
        mbarrier.init(empty.index(place), count=1)
    fence_async_shared()
    # a partition's arguments cannot be None
    SINKS: gl.constexpr = sinks is not None
    LSE: gl.constexpr = lse is not None
    sinks_there = sinks if SINKS else 0
    lse_there = lse if LSE else 0
    # fmt: off
    lists = (
        _same(sequence), _same(first_row), _same(count), _same(keys), _same(list_blocks), _same(first_block),
        _same(tile), _same(list_begin),
    )
    begin = _same(begin)
    stop = _same(stop)
    q_memory = (q_latents, q_ropes, q_full, q_empty)
    ring = (latents, ropes, full, empty)
    # compile-time values stay such in tuples that stand in the call
    gl.warp_specialize([
        (_consume, (
            q_memory, ring, sinks_there, (out, out_row, out_head, out_lane, lse_there), (values, shares), lists, begin,
            stop, starts, lengths, rows, left, right, scale, coarse, sink_stride,
            HEADS, LEFT, RIGHT, FOLDED, SINKS, LSE, C, R,
        )),
        (_produce, (
            (q_latent, q_rope), (latent, rope), q_memory, ring, noted, share, lists, begin, stop, starts, lengths,
            table, table_row, rows, left, right,
            HEADS, LEFT, RIGHT, PAGE,
        )),
    ], [1], [PRODUCER_REGISTERS])
    # fmt: on
