"""The loop of the gradients for keys and values: a block of keys' sums over the queries that see it.

Tiles are of keys by queries: what is summed over queries is multiplied as it was made.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.attention.block_lists import begin_of, first_entry
from portakernel_plugins.triton.attention.head_parts import add_weighted_rows, product_of_rows, turned
from portakernel_plugins.triton.attention.masks import allows, ids_of
from portakernel_plugins.triton.attention.row_blocks import load_block
from portakernel_plugins.triton.attention.scores import changed, load_bias, sees, weights_of
from portakernel_plugins.triton.attention.split_queries import share_of
from portakernel_plugins.triton.exponentials import LOG2_E


@triton.jit
def over_queries(
    sums_k,
    sums_v,
    k,
    v,
    q,
    q_rest,
    grad,
    grad_rest,
    batch,
    first_query,
    first_head,
    shift,
    delta,
    slopes,
    bias,
    column,
    rows_apart,
    queries,
    ahead,
    begin,
    stop,
    left,
    right,
    scale,
    cap,
    q_row,
    q_head,
    q_lane,
    grad_row,
    grad_head,
    grad_lane,
    bias_head,
    bias_row,
    bias_column,
    slope_stride,
    part,
    parts,
    HEADS: tl.constexpr,
    OF_K: tl.constexpr,
    OF_V: tl.constexpr,
    MASKED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    REST_D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_E: tl.constexpr,
    REST_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    DESCRIBED: tl.constexpr,
    RAGGED: tl.constexpr,
    SPLIT: tl.constexpr,
    listed=None,
    LISTED: tl.constexpr = 0,
    MASK: tl.constexpr = None,
    query_ids=None,
    key_ids=None,
    prefix=None,
):
    """Both sums with the queries from ``begin`` to ``stop`` of all heads: one loop, whose loads never run dry.

    With ``SPLIT`` only those of one of ``parts``. With ``LISTED``, the queries of a block, both ends count queries of
    the blocks that ``listed`` names. ``MASK`` is a function that says more of what is seen (``masks.py``), of what else
    it reads: ``query_ids`` point there.
    """
    lane = tl.arange(0, BLOCK_M)
    rows = lane.to(tl.int64)
    blocks = tl.cdiv(tl.maximum(stop - begin, 0), BLOCK_M)
    first_step = 0
    last_step = blocks * HEADS
    if SPLIT:
        first_step, last_step = share_of(last_step, part, parts)
    entry = first_entry(listed, stop, LISTED)
    for step in tl.range(first_step, last_step):
        member = tl.cast(0, tl.int32)
        if HEADS > 1:
            # never by 0: where there are no steps, loads of the first are issued ahead all the same, under a mask that
            # LLVM takes for true where a division by 0 would have come before it
            member = step // tl.maximum(blocks, 1)
        place = begin + (step - member * blocks) * BLOCK_M
        first, entry = begin_of(place, entry, listed, stop, BLOCK_M, LISTED)
        row = first + lane
        at = tl.cast(first, tl.int64)
        at_head = tl.cast(member, tl.int64)
        at_row = at_head * rows_apart + at
        slope = None
        bias_rows = None
        if slopes is not None:
            slope = tl.load(slopes + at_head * slope_stride) * LOG2_E
        if bias is not None:
            bias_rows = (rows * bias_row + (at_head * bias_head + at * bias_row))[None, :]
        inside = None
        across = None
        behind = None
        if MASKED:
            inside = row < queries
            across = inside[None, :]
            # of a query that is not there no weight is left
            row_shift = tl.load((shift + at_row) + lane, mask=inside, other=float("inf"))
            row_delta = tl.load((delta + at_row) + lane, mask=inside, other=0.0)
        else:
            row_shift = tl.load((shift + at_row) + lane)
            row_delta = tl.load((delta + at_row) + lane)
        if MASKED or slopes is not None:
            behind = (row + ahead)[None, :] - column[:, None]
        of_head = q
        grad_of_head = grad
        if not DESCRIBED:
            of_head += at_head * q_head
            grad_of_head += at_head * grad_head
        block = load_block(
            of_head, q_rest, batch, first_query, first, first_head + member, rows, q_row, q_lane, inside, BLOCK_M,
            BLOCK_D, REST_D, D, False, WIDEN, DESCRIBED, RAGGED,
        )  # fmt: skip
        z = product_of_rows(k, turned(block, REST_D), REST_D, PRECISION)
        added = load_bias(bias, bias_rows, column[:, None], across, bias_column)
        scores, bounded = changed(z, behind, slope, added, scale, cap, SOFTCAP)
        p = weights_of(scores, row_shift[None, :])
        if MASKED:
            seen = sees(across, behind, left, right, LEFT, RIGHT)
            if MASK is not None:
                of_queries = ids_of(query_ids, row, inside)
                head = first_head + member
                seen = seen & allows(MASK, batch, head, row + ahead, column, of_queries, key_ids, prefix, 0)
            p = tl.where(seen, p, 0.0)
        grads = load_block(
            grad_of_head, grad_rest, batch, first_query, first, first_head + member, rows, grad_row, grad_lane, inside,
            BLOCK_M, BLOCK_E, REST_E, E, False, WIDEN, DESCRIBED, RAGGED,
        )  # fmt: skip
        if OF_V:
            weights = p.to(DTYPE)
            if WIDEN:
                weights = weights.to(tl.float32)
            sums_v = add_weighted_rows(sums_v, weights, grads, REST_E, PRECISION)
        if OF_K:
            of_scores = p * (product_of_rows(v, turned(grads, REST_E), REST_E, PRECISION) - row_delta[None, :])
            if SOFTCAP:
                of_scores = of_scores * (1.0 - bounded * bounded)
            of_scores = of_scores.to(DTYPE)
            if WIDEN:
                of_scores = of_scores.to(tl.float32)
            sums_k = add_weighted_rows(sums_k, of_scores, block, REST_D, PRECISION)
    return sums_k, sums_v
