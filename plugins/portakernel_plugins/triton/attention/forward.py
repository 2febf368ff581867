"""``attention`` in Triton; its gradients are in ``backward.py``, sequences of different lengths in ``varlen.py``.

A program has a tile of queries and goes through the keys that they see, block by block (``online_softmax.py``), so that
``out = acc / total`` and ``lse = log(2) * (top + log2(total))``. Blocks that every query of the tile sees whole are
computed without a mask; those that the window's edges or the end of the keys cut, in loops of their own.

Where queries are few, the heads of one key head share a tile, and several programs share its keys (``split_keys.py``).
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import grid_of, launch, program_index
from portakernel_plugins.triton.attention.bounded_scores import with_sink
from portakernel_plugins.triton.attention.head_parts import load_rows, negated, no_sums, store_rows, times
from portakernel_plugins.triton.attention.online_softmax import log_of_sum, over_keys
from portakernel_plugins.triton.attention.pages import EACH_ROW, Pages, scales_of_head
from portakernel_plugins.triton.attention.results import Results, Written
from portakernel_plugins.triton.attention.row_blocks import sources
from portakernel_plugins.triton.attention.scores import Scoring, scoring
from portakernel_plugins.triton.attention.sequences import Sequences, ends_of, tile_count, tile_of_sequence
from portakernel_plugins.triton.attention.split_keys import Parts, split_count
from portakernel_plugins.triton.attention.tiles import room_of, rows_of_tile, seen_blocks, shapes, tiles_of_queries
from portakernel_plugins.triton.exponentials import LOG2_E, LOG_2

Window = tuple[int, int]


@triton.jit(
    do_not_specialize=["sequences", "batches", "queries", "keys", "key_heads", "tiles", "splits", "left", "right"]
)
def _forward(
    q,
    k,
    k_rest,  # as row_blocks.sources gives them, and so is v_rest
    v,
    v_rest,
    slopes,  # (H,) float32, or None, as all that a call does not ask for
    bias,  # (B, H, S, T)
    sinks,  # (H,)
    out,  # (B, S, H, E); with SPLIT (splits, B, S, H, E) float32
    lse,  # (B, H, S) float32; with SPLIT (splits, B, S, H), in units of log(2)
    logsumexp,  # the same again, for backward
    ends_q,  # of sequences: they are the batch, which is one row of tokens in memory
    ends_k,
    sequences,
    batches,
    queries,
    keys,
    key_heads,
    tiles,
    splits,
    left,
    right,
    scale,
    coarse,
    cap,
    q_batch,
    q_row,
    q_head,
    q_lane,
    k_batch,
    k_row,
    k_head,
    k_lane,
    v_batch,
    v_row,
    v_head,
    v_lane,
    out_batch,
    out_row,
    out_head,
    out_lane,
    bias_batch,
    bias_head,
    bias_row,
    bias_column,
    slope_stride,
    sink_stride,
    table,  # keys and values are in pages, whose strides stand for those of batches: as Pages.arguments gives them
    lengths,
    k_scale,
    v_scale,
    table_row,
    few,  # of sequences with so many queries and less, which are another kernel's
    HEADS: tl.constexpr,  # of one key head
    PACKED: tl.constexpr,  # 1, or HEADS
    SPLIT: tl.constexpr,
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
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    DESCRIBED: tl.constexpr = False,
    PAGE: tl.constexpr = 0,
    SCALED: tl.constexpr = 0,
    FORMAT: tl.constexpr = "",
    CAST: tl.constexpr = "",
) -> None:
    # heads of one key head side by side, so that they read its keys together; then tiles, the longest first
    program = program_index()
    split = 0
    if SPLIT:
        split = (program % splits).to(tl.int32)
        program = program // splits
    share: tl.constexpr = HEADS // PACKED
    first_head = (program % share).to(tl.int32)
    program = program // share
    tile = tiles - 1 - (program % tiles).to(tl.int32)
    program = program // tiles
    key_head = (program % key_heads).to(tl.int32)
    batch = program // key_heads
    if batch >= batches:  # the grid's second dimension may have more than there are
        return

    rows = queries
    first_query = 0
    first_key = 0
    if ends_q is not None:
        tile, first_query, queries, first_key, keys, sequence = tile_of_sequence(
            tile, ends_q, ends_k, sequences, queries, PACKED, BLOCK_M
        )
        if tile * BLOCK_M >= queries * PACKED:
            return
        if PAGE > 0:
            if (queries <= few) | (sequence == sequences):
                return
            first_key = 0
            keys = tl.load(lengths + sequence)
            table += sequence.to(tl.int64) * table_row
        q += first_query * q_row
        if not DESCRIBED:
            k += first_key * k_row
            v += first_key * v_row
        out += first_query * out_row

    first_head += key_head * HEADS
    query, head, there = rows_of_tile(tile, first_head, queries, PACKED, BLOCK_M)
    ahead = keys - queries
    position = query + ahead
    at_query = query.to(tl.int64)
    at_head = head.to(tl.int64)
    heads = key_heads * HEADS

    if not DESCRIBED:
        k += batch * k_batch + key_head.to(tl.int64) * k_head
        v += batch * v_batch + key_head.to(tl.int64) * v_head
    block = load_rows(
        q + batch * q_batch, at_query * q_row + at_head * q_head, q_lane, None, BLOCK_D, REST_D, D, False, WIDEN
    )
    if NEGATED:
        block = negated(block, REST_D)
    slope = None
    bias_rows = at_query
    if slopes is not None:
        slope = (tl.load(slopes + at_head * slope_stride) * LOG2_E)[:, None]
    if bias is not None:
        bias += batch * bias_batch
        bias_rows = at_head * bias_head + at_query * bias_row

    sunk = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    if sinks is not None and split == 0:
        sunk = tl.load(sinks + at_head * sink_stride).to(tl.float32) * LOG2_E
    top = sunk
    total = tl.where(sunk == float("-inf"), 0.0, 1.0)
    if BOUNDED:  # the sink's weight is added in the end
        total = tl.zeros_like(sunk)
    acc = no_sums(BLOCK_M, BLOCK_E, REST_E)

    first = tile * BLOCK_M // PACKED
    last = tl.minimum((tile + 1) * BLOCK_M, queries * PACKED) - 1
    last = last // PACKED
    begin, whole_from, whole_to, stop = seen_blocks(first, last, ahead, keys, left, right, LEFT, RIGHT, BLOCK_N)
    if SPLIT:
        each = tl.cdiv(tl.cdiv(stop - begin, BLOCK_N), splits) * BLOCK_N
        begin += split * each
        stop = tl.minimum(stop, begin + each)
        whole_from = tl.minimum(tl.maximum(whole_from, begin), tl.maximum(stop, begin))
        whole_to = tl.minimum(tl.maximum(whole_to, whole_from), stop // BLOCK_N * BLOCK_N)
        whole_to = tl.maximum(whole_to, whole_from)
    starts, stops = (begin, whole_from, whole_to), (tl.minimum(whole_from, stop), whole_to, stop)
    paged = None
    scale_v = 1.0
    if PAGE > 0:
        lowest = 0
        if LEFT:
            lowest = tl.maximum(first + ahead - left, 0)
        scale_k, scale_v = scales_of_head(k_scale, v_scale, key_head, SCALED)
        paged = (table, k_batch, v_batch, lowest, scale_k, scale_v, key_heads)
    for part in tl.static_range(0 if LEFT else 1, 3):  # an edge, whole blocks, the other edge
        acc, total, top = over_keys(
            acc, total, top, block, k, k_rest, v, v_rest, batch, first_key, key_head, bias, bias_rows, position,
            slope, keys, starts[part], stops[part], left, right, scale, coarse, cap, k_row, k_lane, v_row, v_lane,
            bias_column, part != 1, SOFTCAP, LEFT, RIGHT, BOUNDED, FOLDED, D, BLOCK_D, REST_D, E, BLOCK_E, REST_E,
            BLOCK_N, q.dtype.element_ty, PRECISION, WIDEN, DESCRIBED, ends_q is not None, paged, PAGE, SCALED, FORMAT,
            CAST,
        )  # fmt: skip

    kept = 1.0
    if BOUNDED:
        total, top, kept = with_sink(total, sunk, cap)
    if SCALED > 0 and SCALED < EACH_ROW:
        kept = kept * scale_v
    # of a query that sees nothing, total is 0
    acc = times(acc, kept / tl.where(total == 0.0, 1.0, total), REST_E)
    found = log_of_sum(total, top, sunk, cap if SOFTCAP else scale, coarse, FOLDED)
    at_lse = (batch * heads + at_head) * rows + first_query + at_query
    if SPLIT:
        at_lse = (batch * rows + first_query + at_query) * heads + at_head
        before = tl.cast(split, tl.int64) * batches * rows * heads
        out += before * E
        lse += before
    else:
        found *= LOG_2
    store_rows(out + batch * out_batch, at_query * out_row + at_head * out_head, out_lane, there, acc, REST_E, E)
    if lse is not None:
        tl.store(lse + at_lse, found, mask=there)
    if logsumexp is not None:
        tl.store(logsumexp + at_lse, found, mask=there)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alibi_slopes: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    causal: bool,
    scale: float | None,
    window: Window,
    softcap: float,
    return_lse: bool,
    out: Results | None = None,
    save: bool = False,
) -> Results:
    """The contract's formula; with ``save`` the log-sum-exp ``(B, H, S)`` too.

    ``q``: (B, S, H, D), ``k``: (B, T, G, D), ``v``: (B, T, G, E), of one dtype and any strides.
    """
    (B, S, H, _), E = q.shape, v.shape[3]
    written = Written.of(q, (B, S, H, E), (B, H, S), out, return_lse, save)
    if B and S:
        how = scoring(q, k, causal, scale, window, softcap)
        launch_forward(q, k, v, alibi_slopes, bias, sinks, written, how)
    return written.results()


def launch_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    written: Written,
    how: Scoring,
    sequences: Sequences | None = None,
    pages: Pages | None = None,
    few_queries: int = 0,
) -> None:
    """``sequences`` are those of a batch of one, as which ``q``, ``k`` and ``v`` come.

    With ``pages`` these hold ``k`` and ``v``, and sequences of up to ``few_queries`` queries are left out.
    """
    y, lse, logsumexp = written.y, written.lse, written.logsumexp
    y = y if sequences is None else y.unsqueeze(0)
    (B, S, H, _), (_, T, G, _) = q.shape, v.shape
    queries, keys = (S, T) if sequences is None else sequences.longest
    changed = how.softcap > 0 or slopes is not None
    sides = how.left, how.right
    tiling = tiles_of_queries(q, queries, H // G, room_of(q, v, bias), sides, changed, pages is not None)
    options, blocks = {**tiling.options}, shapes(q, v)
    read = sources(k, v, options["BLOCK_N"], blocks, options.pop("DESCRIBED", False) and pages is None)
    tiles = tile_count(S, tiling.packed, options["BLOCK_M"], sequences)
    programs = B * H // tiling.packed * tiles
    few_stages = options.pop("FEW_STAGES", 0)
    if few_stages and type(programs) is int and programs <= tiling.programs:
        options["num_stages"] = few_stages
    # of sequences one may be far longer than the others: its keys are shared by as many as can be
    few = tiling.few_parts if sequences is None else 0
    parts = split_count(programs, queries, how.visible(queries, keys), options["BLOCK_N"], tiling.programs, few)
    into = Parts.of(y, parts) if parts > 1 else None
    plain = slopes is None and bias is None
    folded = how.is_folded and plain
    turned_round = folded and how.last_factor < 0.0
    target, first_lse = (y, lse) if into is None else (into.values, into.shares)
    launch(
        _forward,
        grid_of(programs * parts),
        q,
        *read,
        slopes,
        bias,
        sinks,
        target,
        first_lse,
        logsumexp if into is None else None,
        *ends_of(sequences),
        B,
        S,
        T,
        G,
        tiles,
        parts,
        how.left,
        how.right,
        -how.scale if turned_round else how.scale,
        how.coarse,
        how.cap,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        *target.stride()[-4:],
        *((0, 0, 0, 0) if bias is None else bias.stride()),
        0 if slopes is None else slopes.stride(0),
        0 if sinks is None else sinks.stride(0),
        *((None,) * 6 if pages is None else (*pages.arguments, few_queries)),
        HEADS=H // G,
        PACKED=tiling.packed,
        SPLIT=into is not None,
        BOUNDED=how.is_bounded and plain,
        FOLDED=folded,
        NEGATED=turned_round,
        **how.flags,
        **({} if pages is None else pages.flags),
        DESCRIBED=read[0] is not k,
        **blocks,
        **options,
    )
    if into is not None:
        ends = None if pages is None or sequences is None else sequences.of_queries
        into.merge(y, lse, logsumexp, ends, few_queries)
