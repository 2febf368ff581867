"""The kernels of ``mla_decode``: products and sums over shares of all blocks, and what parts come to.

Each sequence has a list for each of its tiles, and each program an equal share of all blocks (``shares.py``). A list
that lies in one program's share is written at once; parts of others (``parts.py``) a second launch adds up, which has
as many programs as it takes: of one long sequence every program has a part, 32 KiB for 16 heads, and one program alone
would read them for longer than all programs read the keys.
"""
# pyright: reportGeneralTypeIssues=false, reportOptionalOperand=false
# Python's types do not see that Triton iterates over its ranges.
# mypy: disable-error-code="assignment, misc, operator"

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.attention.head_parts import (
    add_product_of_rows,
    add_weighted_rows,
    load_rows,
    negated,
    no_sums,
    product_of_rows,
    store_rows,
    times,
    turned,
)
from portakernel_plugins.triton.attention.online_softmax import log_of_sum, weighed
from portakernel_plugins.triton.attention.pages import load_paged, places_of_block
from portakernel_plugins.triton.attention.parts import keep_part, merged, note_list, nth_noted
from portakernel_plugins.triton.attention.row_blocks import load_block
from portakernel_plugins.triton.attention.scores import sees
from portakernel_plugins.triton.attention.shares import (
    blocks_of,
    lengths_of_all,
    list_at,
    one_of,
    sequence_of,
    shares_of,
)
from portakernel_plugins.triton.attention.tiles import rows_of_tile
from portakernel_plugins.triton.exponentials import LOG2_E, LOG_2


@triton.jit
def _lists_of(counts, blocks, HEADS: tl.constexpr, BLOCK_M: tl.constexpr, WIDE: tl.constexpr):
    """How many tiles each sequence has; and the blocks of each, in 64 bits where their row may be so long."""
    lists = tl.cdiv(counts * HEADS, BLOCK_M)
    if WIDE:
        blocks = blocks.to(tl.int64)
    return lists, blocks


@triton.jit
def _over_blocks(
    acc,
    total,
    top,
    of_latent,
    of_rope,
    latent,
    rope,
    latent_blocks,
    rope_blocks,
    pages_row,
    position,
    begin,
    stop,
    lowest,
    keys,
    left,
    right,
    latent_scale,
    factor,
    scale,
    coarse,
    latent_page: tl.constexpr,
    latent_row: tl.constexpr,
    latent_lane: tl.constexpr,
    rope_page: tl.constexpr,
    rope_row: tl.constexpr,
    rope_lane: tl.constexpr,
    MASKED: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    FOLDED: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    REST_D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_E: tl.constexpr,
    REST_E: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """A tile's sums, normalisers and largest scores with the keys from ``begin`` to ``stop``.

    Unless ``MASKED`` all rows see them all, and TMA copies their blocks, of which each lies in one page.
    """
    page = tl.cast(0, tl.int32)
    if not MASKED:
        page = tl.load(pages_row + begin // PAGE, mask=begin < stop, other=0)
    for first in tl.range(begin, stop, BLOCK_N):
        column = first + tl.arange(0, BLOCK_N)
        if MASKED:
            pages, row = places_of_block(pages_row, first, lowest, keys, PAGE, BLOCK_N)
            block = load_paged(
                latent, pages, row, latent_page, latent_row, latent_lane, BLOCK_E, REST_E, E, False, WIDEN, DTYPE,
                FORMAT, CAST,
            )  # fmt: skip
            turning = load_paged(
                rope, pages, row, rope_page, rope_row, rope_lane, BLOCK_D, REST_D, D, True, WIDEN, DTYPE, FORMAT, CAST
            )
        else:
            # read a step ahead: else each copy would wait for where it begins
            ahead = tl.load(pages_row + tl.minimum(first + BLOCK_N, stop - 1) // PAGE)
            block = load_block(
                latent_blocks, None, page, 0, first % PAGE, 0, None, 0, 0, None, BLOCK_N, BLOCK_E, 0, E, False, WIDEN,
                True, False,
            )  # fmt: skip
            turning = load_block(
                rope_blocks, None, page, 0, first % PAGE, 0, None, 0, 0, None, BLOCK_N, BLOCK_D, 0, D, True, WIDEN,
                True, False,
            )  # fmt: skip
            page = ahead
        z = product_of_rows(of_latent, turned(block, REST_E), REST_E, PRECISION)
        z = add_product_of_rows(z, of_rope, turning, REST_D, PRECISION)
        if latent_scale is not None:
            z = z * factor
        if not FOLDED:
            z = z * scale
        if MASKED:
            inside = (column < keys) & (column >= lowest)
            behind = position[:, None] - column[None, :]
            z = tl.where(sees(inside[None, :], behind, left, right, LEFT, RIGHT), z, float("-inf"))
        p, kept, total, top = weighed(z, total, top, scale, coarse, FOLDED)
        weights = p.to(DTYPE)
        if WIDEN:
            weights = weights.to(tl.float32)
        acc = add_weighted_rows(times(acc, kept, REST_E), weights, block, REST_E, PRECISION)
    return acc, total, top


@triton.jit(do_not_specialize=["sequences", "rows", "left", "right"])
def decode(
    q_latent,
    q_rope,
    rope,
    latent,
    rope_blocks,  # descriptors, where TMA copies blocks of both
    latent_blocks,
    sinks,
    out,  # (S, H, E)
    lse,  # (H, S) float32
    values,
    shares,
    noted,
    starts,
    table,
    lengths,
    latent_scale,
    table_row,
    sequences,
    rows,
    left,
    right,
    scale,
    coarse,
    q_latent_row,
    q_latent_head,
    q_latent_lane,
    q_rope_row,
    q_rope_head,
    q_rope_lane,
    rope_page: tl.constexpr,
    rope_row: tl.constexpr,
    rope_lane: tl.constexpr,
    latent_page: tl.constexpr,
    latent_row: tl.constexpr,
    latent_lane: tl.constexpr,
    out_row,
    out_head,
    out_lane,
    sink_stride,
    HEADS: tl.constexpr,
    SEQUENCES: tl.constexpr,
    WIDE: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    FOLDED: tl.constexpr,
    NEGATED: tl.constexpr,
    D: tl.constexpr,  # of the rotary part
    BLOCK_D: tl.constexpr,
    REST_D: tl.constexpr,
    E: tl.constexpr,  # of latent vectors
    BLOCK_E: tl.constexpr,
    REST_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LEAST: tl.constexpr,
    PAGE: tl.constexpr,
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    DESCRIBED: tl.constexpr,
) -> None:
    """Writes what lists come to that lie in a program's share, and leaves parts of others."""
    program = tl.program_id(0)
    all_rows, counts, all_keys = lengths_of_all(starts, lengths, sequences, tl.arange(0, SEQUENCES))
    blocks, skipped = blocks_of(counts, all_keys, rows, left, LEFT, BLOCK_N)
    lists, blocks = _lists_of(counts, blocks, HEADS, BLOCK_M, WIDE)
    ends, whole, share = shares_of(blocks, lists, tl.num_programs(0), LEAST)
    begin = program * share
    stop = tl.minimum(begin + share, whole)
    note_list(noted, program, 0, 0, 0, 0)
    if begin >= stop:
        return

    # the first list of the share; others are found one after the other
    sequence = tl.sum((ends <= begin).to(tl.int32), 0)
    chosen = tl.arange(0, SEQUENCES) == sequence
    first_row = one_of(all_rows, chosen)
    count = one_of(counts, chosen)
    keys = one_of(all_keys, chosen)
    list_blocks = one_of(blocks, chosen).to(tl.int32)
    first_block = one_of(skipped, chosen)
    tile, list_begin = list_at(begin, one_of(ends, chosen), one_of(lists, chosen), list_blocks)
    factor = 1.0
    if latent_scale is not None:
        factor = tl.load(latent_scale)
    at = begin
    while at < stop:
        list_stop = list_begin + list_blocks
        if list_blocks > 0:
            upto = tl.minimum(stop, list_stop)
            query, head, live = rows_of_tile(tile, 0, count, HEADS, BLOCK_M)
            ahead = keys - count
            position = query + ahead
            at_query = first_row.to(tl.int64) + query
            at_head = head.to(tl.int64)
            of_latent = load_rows(
                q_latent, at_query * q_latent_row + at_head * q_latent_head, q_latent_lane, None, BLOCK_E, REST_E, E,
                False, WIDEN,
            )  # fmt: skip
            of_rope = load_rows(
                q_rope, at_query * q_rope_row + at_head * q_rope_head, q_rope_lane, None, BLOCK_D, REST_D, D, False,
                WIDEN,
            )  # fmt: skip
            if NEGATED:
                of_latent = negated(of_latent, REST_E)
                of_rope = negated(of_rope, REST_D)
            sunk = tl.full((BLOCK_M,), float("-inf"), tl.float32)
            if sinks is not None and at == list_begin:
                sunk = tl.load(sinks + at_head * sink_stride).to(tl.float32) * LOG2_E
            top = sunk
            total = tl.where(sunk == float("-inf"), 0.0, 1.0)
            acc = no_sums(BLOCK_M, BLOCK_E, REST_E)

            first_key = (first_block + at - list_begin).to(tl.int32) * BLOCK_N
            last_key = tl.minimum((first_block + upto - list_begin).to(tl.int32) * BLOCK_N, keys)
            first_query = tile * BLOCK_M // HEADS
            last_query = (tl.minimum((tile + 1) * BLOCK_M, count * HEADS) - 1) // HEADS
            lowest = tl.cast(0, tl.int32)
            if LEFT:
                lowest = tl.maximum(first_query + ahead - left, 0)
                first_key = tl.maximum(first_key, lowest // BLOCK_N * BLOCK_N)
            if RIGHT:
                last_key = tl.minimum(last_key, last_query + ahead + right + 1)
            pages_row = table + sequence.to(tl.int64) * table_row
            whole_from, whole_to = first_key, first_key
            if DESCRIBED:  # blocks that all rows see whole
                whole_to = last_key
                if LEFT:
                    whole_from = tl.maximum(first_key, tl.cdiv(last_query + ahead - left, BLOCK_N) * BLOCK_N)
                if RIGHT:
                    whole_to = tl.minimum(whole_to, first_query + ahead + right + 1)
                whole_to = tl.maximum(whole_to // BLOCK_N * BLOCK_N, whole_from)
            starts_at, stops_at = (
                (first_key, whole_from, whole_to),
                (tl.minimum(whole_from, last_key), whole_to, last_key),
            )
            for stretch in tl.static_range((0 if LEFT else 1) if DESCRIBED else 2, 3):
                acc, total, top = _over_blocks(
                    acc, total, top, of_latent, of_rope, latent, rope, latent_blocks, rope_blocks, pages_row, position,
                    starts_at[stretch], stops_at[stretch], lowest, keys, left, right, latent_scale, factor, scale,
                    coarse, latent_page, latent_row, latent_lane, rope_page, rope_row, rope_lane, stretch != 1, LEFT,
                    RIGHT, FOLDED, D, BLOCK_D, REST_D, E, BLOCK_E, REST_E, BLOCK_N, PAGE, FORMAT, CAST,
                    q_latent.dtype.element_ty, PRECISION, WIDEN,
                )  # fmt: skip

            acc = times(acc, factor / tl.where(total == 0.0, 1.0, total), REST_E)
            found = log_of_sum(total, top, sunk, scale, coarse, FOLDED)
            if (list_begin >= begin) & (upto == list_stop):
                store_rows(out, at_query * out_row + at_head * out_head, out_lane, live, acc, REST_E, E)
                if lse is not None:
                    tl.store(lse + at_head * rows + at_query, found * LOG_2, mask=live)
            else:
                keep_part(values, shares, program, upto < list_stop, live, acc, found, E, REST_E)
                if (list_begin >= begin) & (upto < list_stop):
                    note_list(noted, program, first_row, count, tile, (list_stop - 1) // share)
            at = upto
        list_begin = list_stop
        tile += 1
        if (tile * BLOCK_M >= count * HEADS) and at < stop:
            sequence += 1
            tile = tl.cast(0, tl.int32)
            first_row, count, keys, list_blocks, first_block = sequence_of(
                sequence, starts, lengths, rows, left, LEFT, BLOCK_N
            )


@triton.jit(do_not_specialize=["rows", "programs"])
def merge(
    values,
    shares,
    lists,  # as note_list leaves them
    out,
    lse,
    rows,
    programs,  # that left parts
    out_row,
    out_head,
    out_lane,
    HEADS: tl.constexpr,
    E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    ACROSS: tl.constexpr,  # how many programs have the lanes of the same rows
    SHARES: tl.constexpr,  # of how many shares the list is looked for, or 0: it begins in the program's own
) -> None:
    """Writes ``ROWS`` rows and ``LANES`` lanes of the list that begins in one program's share and ends in another's."""
    first_part = tl.program_id(0)
    if SHARES > 0:
        first_part = nth_noted(lists, first_part, programs, SHARES)
    first_row = tl.load(lists + 4 * first_part)
    count = tl.load(lists + 4 * first_part + 1)
    tile = tl.load(lists + 4 * first_part + 2)
    last_part = tl.load(lists + 4 * first_part + 3)
    live_rows = count * HEADS - tile * BLOCK_M
    group = tl.program_id(1) // ACROSS
    first = group * ROWS
    if (count == 0) | (first >= live_rows):
        return

    first_lane = tl.program_id(1) % ACROSS * LANES
    acc, found = merged(
        values, shares, first_part, last_part, first, live_rows, first_lane, PARTS, ROWS, BLOCK_M, E, LANES, 0
    )
    query, head, live = rows_of_tile(tile * (BLOCK_M // ROWS) + group, 0, count, HEADS, ROWS)
    at_query = first_row.to(tl.int64) + query
    at_head = head.to(tl.int64)
    lane = first_lane + tl.arange(0, LANES)
    to = out + (at_query * out_row + at_head * out_head)[:, None] + (lane.to(tl.int64) * out_lane)[None, :]
    tl.store(to, acc[0].to(out.dtype.element_ty), mask=live[:, None] & (lane < E)[None, :])
    if lse is not None and first_lane == 0:
        tl.store(lse + at_head * rows + at_query, found * LOG_2, mask=live)
