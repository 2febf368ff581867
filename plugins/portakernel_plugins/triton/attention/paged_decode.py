"""Attention of few queries to long lists of keys in pages: one launch, its programs as many as the chip runs at once.

Each sequence has a list for each key head, and each program an equal share of all blocks (``shares.py``). A list that
lies in one program's share is written at once. Of others each program leaves its part in memory (``parts.py``), and
whichever is last to finish adds the parts up. It sets the list's counter back to zero, as which it is given to the
launch.
"""
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false
# Python's types do not see that Triton iterates over its ranges.
# mypy: disable-error-code="assignment, misc"

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import launch
from portakernel_plugins.triton.attention.bounded_scores import with_sink
from portakernel_plugins.triton.attention.counters import counters
from portakernel_plugins.triton.attention.head_parts import load_rows, negated, no_sums, store_rows, times
from portakernel_plugins.triton.attention.online_softmax import log_of_sum, over_keys
from portakernel_plugins.triton.attention.pages import EACH_ROW, Pages, scales_of_head
from portakernel_plugins.triton.attention.parts import keep_part, merged, places
from portakernel_plugins.triton.attention.results import Written
from portakernel_plugins.triton.attention.scores import Scoring
from portakernel_plugins.triton.attention.shares import (
    blocks_of,
    lengths_of_all,
    list_at,
    one_of,
    sequence_of,
    shares_of,
)
from portakernel_plugins.triton.attention.tiles import rows_of_tile, shapes
from portakernel_plugins.triton.attention.words import WIDTHS, halves, in_order
from portakernel_plugins.triton.exponentials import LOG2_E, LOG_2
from portakernel_plugins.triton.launching.configurations import configuration

# Rows of a tile, of queries times the heads of a key head: of more, prefill's kernel has the sequence.
_MOST_ROWS = 64
# Up to so many are as fast as one: products have no fewer.
_FEW_ROWS = 16
# With fewer keys of all sequences and heads, and with more of one sequence, launches are as their names in
# `configurations.yaml` say.
_LEAST_KEYS, _FEW_KEYS, _LONG = 1 << 16, 1 << 18, 1 << 14
# Elements of parts that are added up at once.
_MERGED = 4096


@triton.jit(do_not_specialize=["sequences", "rows", "key_heads", "most", "left", "right"])
def _decode(
    q,
    k,
    v,
    slopes,
    sinks,
    out,  # (S, H, E)
    lse,  # (H, S) float32
    values,  # (2 * programs, BLOCK_M, E) float32: the parts
    shares,  # (2 * programs, BLOCK_M) float32: log2(sum(2 ** s)) of each
    counters,  # (B, G) int32: how many parts of a list are there; zeros
    starts,
    table,
    lengths,
    k_scale,
    v_scale,
    table_row,
    sequences,
    rows,
    key_heads,
    most,
    left,
    right,
    scale,
    coarse,
    cap,
    q_row,
    q_head,
    q_lane,
    k_page,
    k_row,
    k_head,
    k_lane,
    v_page,
    v_row,
    v_head,
    v_lane,
    out_row,
    out_head,
    out_lane,
    slope_stride,
    sink_stride,
    HEADS: tl.constexpr,
    SEQUENCES: tl.constexpr,
    SOFTCAP: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    BOUNDED: tl.constexpr,
    FOLDED: tl.constexpr,
    NEGATED: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    REST_D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_E: tl.constexpr,
    REST_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    LIVE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LEAST: tl.constexpr,
    PAGE: tl.constexpr,
    SCALED: tl.constexpr,
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    WORDS: tl.constexpr = v.dtype.element_ty == tl.int32
    MATH: tl.constexpr = tl.float16 if WORDS else q.dtype.element_ty
    program = tl.program_id(0)
    all_rows, counts, all_keys = lengths_of_all(starts, lengths, sequences, tl.arange(0, SEQUENCES))
    blocks, skipped = blocks_of(counts, all_keys, most, left, LEFT, BLOCK_N)
    ends, whole, share = shares_of(blocks, key_heads, tl.num_programs(0), LEAST)
    begin = program * share
    stop = tl.minimum(begin + share, whole)
    if begin >= stop:
        return

    # the first list of the share; others are found one after the other
    sequence = tl.sum((ends <= begin).to(tl.int32), 0)
    chosen = tl.arange(0, SEQUENCES) == sequence
    first_row = one_of(all_rows, chosen)
    count = one_of(counts, chosen)
    keys = one_of(all_keys, chosen)
    list_blocks = one_of(blocks, chosen)
    first_block = one_of(skipped, chosen)
    key_head, list_begin = list_at(begin, one_of(ends, chosen), key_heads, list_blocks)
    at = begin
    while at < stop:
        list_stop = list_begin + list_blocks
        if list_blocks > 0:
            upto = tl.minimum(stop, list_stop)
            query, head, live = rows_of_tile(0, key_head * HEADS, count, HEADS, BLOCK_M)
            position = query + keys - count
            at_query = first_row.to(tl.int64) + query
            at_head = head.to(tl.int64)
            block = load_rows(q, at_query * q_row + at_head * q_head, q_lane, None, BLOCK_D, REST_D, D, False, WIDEN)
            if NEGATED:
                block = negated(block, REST_D)
            slope = None
            if slopes is not None:
                slope = (tl.load(slopes + at_head * slope_stride) * LOG2_E)[:, None]
            sunk = tl.full((BLOCK_M,), float("-inf"), tl.float32)
            if sinks is not None and at == list_begin:
                sunk = tl.load(sinks + at_head * sink_stride).to(tl.float32) * LOG2_E
            top = sunk
            total = tl.where(sunk == float("-inf"), 0.0, 1.0)
            if BOUNDED:
                total = tl.zeros_like(sunk)
            acc = no_sums(BLOCK_M, BLOCK_E, REST_E)

            lowest = tl.cast(0, tl.int32)
            if LEFT:
                lowest = tl.maximum(keys - count - left, 0)
            pages_row = table + sequence.to(tl.int64) * table_row
            scale_k, scale_v = scales_of_head(k_scale, v_scale, key_head, SCALED)
            if q.dtype.element_ty != MATH:
                block, units = halves(block, REST_D)
                scale_k *= units[:, None]
            paged = (pages_row, k_page, v_page, lowest, scale_k, scale_v, key_heads)
            before = first_block - list_begin
            acc, total, top = over_keys(
                acc, total, top, block, k + key_head.to(tl.int64) * k_head, None, v + key_head.to(tl.int64) * v_head,
                None, 0, 0, key_head, None, at_query, position, slope, keys, (before + at) * BLOCK_N,
                tl.minimum((before + upto) * BLOCK_N, keys), left, right, scale, coarse, cap, k_row, k_lane, v_row,
                v_lane, 0, True, SOFTCAP, LEFT, RIGHT, BOUNDED, FOLDED, D, BLOCK_D, REST_D, E, BLOCK_E, REST_E, BLOCK_N,
                MATH, PRECISION, WIDEN, False, False, paged, PAGE, SCALED, FORMAT, CAST,
            )  # fmt: skip

            if WORDS:
                acc = (in_order(acc[0]),)
            kept = 1.0
            if BOUNDED:
                total, top, kept = with_sink(total, sunk, cap)
            if SCALED > 0 and SCALED < EACH_ROW:
                kept = kept * scale_v
            acc = times(acc, kept / tl.where(total == 0.0, 1.0, total), REST_E)
            found = log_of_sum(total, top, sunk, cap if SOFTCAP else scale, coarse, FOLDED)

            if (list_begin >= begin) & (upto == list_stop):
                store_rows(out, at_query * out_row + at_head * out_head, out_lane, live, acc, REST_E, E)
                if lse is not None:
                    tl.store(lse + at_head * rows + at_query, found * LOG_2, mask=live)
            else:
                first_part = list_begin // share
                last_part = (list_stop - 1) // share
                keep_part(values, shares, program, upto < list_stop, live, acc, found, E, REST_E)
                tl.debug_barrier()  # all of the part is there before it is counted
                counter = counters + sequence * key_heads + key_head
                done = tl.atomic_add(counter, 1, sem="acq_rel")
                if done == last_part - first_part:
                    tl.store(counter, 0)
                    _merge(
                        values, shares, out, lse, first_part, last_part, count, first_row, key_head * HEADS, rows,
                        out_row, out_head, out_lane, HEADS, LIVE, PARTS, BLOCK_M, E, BLOCK_E, REST_E,
                    )  # fmt: skip

            at = upto
        list_begin = list_stop
        key_head += 1
        if (list_blocks == 0) | (key_head == key_heads) and at < stop:
            sequence += 1
            key_head = tl.cast(0, tl.int32)
            first_row, count, keys, list_blocks, first_block = sequence_of(
                sequence, starts, lengths, most, left, LEFT, BLOCK_N
            )


@triton.jit
def _merge(
    values,
    shares,
    out,
    lse,
    first_part,
    last_part,
    queries,
    first_row,
    first_head,
    rows,
    out_row,
    out_head,
    out_lane,
    HEADS: tl.constexpr,
    LIVE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    E: tl.constexpr,
    BLOCK_E: tl.constexpr,
    REST_E: tl.constexpr,
):
    """Writes what the parts of a list come to, of the ``LIVE`` rows that there may be."""
    acc, found = merged(
        values, shares, first_part, last_part, 0, queries * HEADS, 0, PARTS, LIVE, BLOCK_M, E, BLOCK_E, REST_E
    )
    query, head, live = rows_of_tile(0, first_head, queries, HEADS, LIVE)
    at_query = first_row.to(tl.int64) + query
    at_head = head.to(tl.int64)
    store_rows(out, at_query * out_row + at_head * out_head, out_lane, live, acc, REST_E, E)
    if lse is not None:
        tl.store(lse + at_head * rows + at_query, found * LOG_2, mask=live)


def most_queries(heads: int) -> int:
    """How many queries a sequence may have here, with so many ``heads`` of each key head; 0: none."""
    return _MOST_ROWS // heads


def _configured(rows: int, keys: int, longest: int, words: bool) -> str:
    """Which entry of the configurations a tile of ``rows`` has with so many ``keys`` of all sequences and heads."""
    if rows > _FEW_ROWS:
        return "attention.paged_decode_many_rows"
    if keys < _FEW_KEYS:
        return "attention.paged_decode_" + ("least_keys" if keys < _LEAST_KEYS else "few_keys")
    if words:
        return "attention.paged_decode_words"
    return "attention.paged_decode" + ("_long" if longest >= _LONG else "")


def launch_decode(
    q: Tensor,
    pages: Pages,
    starts: Tensor,
    slopes: Tensor | None,
    sinks: Tensor | None,
    written: Written,
    how: Scoring,
    queries: int,
) -> None:
    """Writes what sequences of up to ``queries`` queries give; ``q``: (S, H, D), ``starts``: (B+1,)."""
    y, (S, H, _), (_, _, G, E) = written.y, q.shape, pages.values.shape
    B, heads = len(pages.lengths), H // G
    width = max(q.shape[2], E)
    blocks: Mapping[str, Any] = shapes(q.unsqueeze(0), pages.values)
    plain = slopes is None
    bounded, folded = how.is_bounded and plain, how.is_folded and plain
    # weights in units that do not change are too small for float16
    values_read = pages.values
    if not (bounded or blocks["REST_E"]) and blocks["BLOCK_E"] in WIDTHS:
        values_read = pages.values_as_read(q.dtype)
    live = 1 << (queries * heads - 1).bit_length()
    kernel = _configured(live, B * G * pages.longest, pages.longest, values_read is not pages.values)
    tiling = configuration(kernel, q.device, width, q.element_size())
    options = dict(tiling.options)
    options |= {"LIVE": live, "BLOCK_M": max(_FEW_ROWS, live)}
    programs = tiling.programs
    values, shares = places(q, programs, options["BLOCK_M"], E)
    options["PARTS"] = max(1, _MERGED // (live * blocks["BLOCK_E"]))
    turned_round = folded and how.last_factor < 0.0
    launch(
        _decode,
        (programs, 1),
        q,
        pages.keys,
        values_read,
        slopes,
        sinks,
        y,
        written.lse,
        values,
        shares,
        counters(q.device, B * G),
        starts,
        *pages.arguments,
        B,
        S,
        G,
        queries,
        how.left,
        how.right,
        -how.scale if turned_round else how.scale,
        how.coarse,
        how.cap,
        *q.stride(),
        *pages.keys.stride(),
        *values_read.stride(),
        *y.stride(),
        0 if slopes is None else slopes.stride(0),
        0 if sinks is None else sinks.stride(0),
        HEADS=heads,
        SEQUENCES=max(16, 1 << (B - 1).bit_length()),
        BOUNDED=bounded,
        FOLDED=folded,
        NEGATED=turned_round,
        **how.flags,
        **pages.flags,
        **blocks,
        **options,
    )
