"""Attention's gradients for keys and values: a program has a block of keys and goes through the queries that see it.

With ``P`` the softmax's weights, ``g`` the gradient of ``out`` and ``delta = sum(g * out)`` of a query:

    grad_v = P.T @ g                                        over the queries of all heads of the key head
    dS     = P * (g @ v.T - delta)                          of a score; times the softcap's slope of a product
    grad_k = scale * dS.T @ q

Tiles are of keys by queries: what is summed over queries is multiplied as it was made.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import grid_of, launch, program_index
from portakernel_plugins.triton.attention.head_parts import (
    add_weighted_rows,
    load_rows,
    no_sums,
    product_of_rows,
    store_rows,
    times,
    turned,
)  # fmt: skip
from portakernel_plugins.triton.attention.row_blocks import load_block, sources
from portakernel_plugins.triton.attention.row_terms import Terms
from portakernel_plugins.triton.attention.scores import changed, load_bias, sees, weights_of
from portakernel_plugins.triton.attention.sequences import ends_of, tile_count, tile_of_sequence
from portakernel_plugins.triton.attention.tiles import room_of, seen_blocks, shapes
from portakernel_plugins.triton.exponentials import LOG2_E
from portakernel_plugins.triton.launching.configurations import configuration


@triton.jit
def _over_queries(
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
):
    """Both sums with the queries from ``begin`` to ``stop`` of all heads: one loop, whose loads never run dry."""
    lane = tl.arange(0, BLOCK_M)
    rows = lane.to(tl.int64)
    blocks = tl.cdiv(tl.maximum(stop - begin, 0), BLOCK_M)
    for step in tl.range(0, blocks * HEADS):
        member = step // blocks
        first = begin + (step - member * blocks) * BLOCK_M
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
            p = tl.where(sees(across, behind, left, right, LEFT, RIGHT), p, 0.0)
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


@triton.jit(do_not_specialize=["sequences", "batches", "queries", "keys", "key_heads", "blocks", "left", "right"])
def _gradient_of_keys(
    q,
    q_rest,  # as row_blocks.sources gives them, and so is grad_rest
    k,
    v,
    grad,  # of out (B, S, H, E)
    grad_rest,
    shift,  # (B, H, S) float32, contiguous, and so is delta
    delta,
    slopes,  # (H,) float32, or None, as all that a call does not ask for
    bias,  # (B, H, S, T)
    grad_k,  # (B, T, G, D), contiguous
    grad_v,  # (B, T, G, E), contiguous
    ends_q,  # of sequences: they are the batch, which is one row of tokens in memory
    ends_k,
    sequences,
    batches,
    queries,
    keys,
    key_heads,
    blocks,
    left,
    right,
    factor,
    scale,
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
    grad_batch,
    grad_row,
    grad_head,
    grad_lane,
    bias_batch,
    bias_head,
    bias_row,
    bias_column,
    slope_stride,
    HEADS: tl.constexpr,  # of one key head
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
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    DESCRIBED: tl.constexpr = False,
) -> None:
    # the first keys are seen by most queries, where there is a causal mask
    program = program_index()
    block = (program % blocks).to(tl.int32)
    program = program // blocks
    key_head = (program % key_heads).to(tl.int32)
    batch = program // key_heads
    if batch >= batches:  # the grid's second dimension may have more than there are
        return

    rows_apart = queries
    keys_apart = keys
    first_row = 0
    first_query = 0
    if ends_k is not None:
        block, first_row, keys, first_query, queries = tile_of_sequence(
            block, ends_k, ends_q, sequences, keys, 1, BLOCK_N
        )
        if block * BLOCK_N >= keys:
            return
        k += first_row * k_row
        v += first_row * v_row
        if not DESCRIBED:
            q += first_query * q_row
            grad += first_query * grad_row
        shift += first_query
        delta += first_query

    first_key = block * BLOCK_N
    last_key = tl.minimum(first_key + BLOCK_N, keys) - 1
    column = first_key + tl.arange(0, BLOCK_N)
    there = column < keys
    column = tl.minimum(column, last_key)
    at_key = column.to(tl.int64)
    ahead = keys - queries
    at_head = key_head.to(tl.int64)
    k_rows = load_rows(
        k + batch * k_batch + at_head * k_head, at_key * k_row, k_lane, None, BLOCK_D, REST_D, D, False, WIDEN
    )
    v_rows = load_rows(
        v + batch * v_batch + at_head * v_head, at_key * v_row, v_lane, None, BLOCK_E, REST_E, E, False, WIDEN
    )
    sums_k = no_sums(BLOCK_N, BLOCK_D, REST_D)
    sums_v = no_sums(BLOCK_N, BLOCK_E, REST_E)
    # seen from a key, the window's sides change places
    begin, whole_from, whole_to, stop = seen_blocks(
        first_key, last_key, -ahead, queries, right, left, RIGHT, LEFT, BLOCK_M
    )
    first_head = at_head * HEADS
    if not DESCRIBED:
        q += batch * q_batch + first_head * q_head
        grad += batch * grad_batch + first_head * grad_head
    shift += (batch * key_heads * HEADS + first_head) * rows_apart
    delta += (batch * key_heads * HEADS + first_head) * rows_apart
    if slopes is not None:
        slopes += first_head * slope_stride
    if bias is not None:
        bias += batch * bias_batch + first_head * bias_head
    starts, stops = (begin, whole_from, whole_to), (tl.minimum(whole_from, stop), whole_to, stop)
    for part in tl.static_range(0 if RIGHT else 1, 3):  # an edge, whole blocks, the other edge
        sums_k, sums_v = _over_queries(
            sums_k, sums_v, k_rows, v_rows, q, q_rest, grad, grad_rest, batch, first_query, first_head.to(tl.int32),
            shift, delta, slopes, bias, column, rows_apart, queries, ahead, starts[part], stops[part], left, right,
            scale, cap, q_row, q_head, q_lane, grad_row, grad_head, grad_lane, bias_head, bias_row, bias_column,
            slope_stride, HEADS, grad_k is not None, grad_v is not None, part != 1, SOFTCAP, LEFT, RIGHT, D, BLOCK_D,
            REST_D, E, BLOCK_E, REST_E, BLOCK_M, k.dtype.element_ty, PRECISION, WIDEN, DESCRIBED, ends_q is not None,
        )  # fmt: skip

    at = (batch * keys_apart + first_row + at_key) * key_heads + key_head
    if grad_k is not None:
        sums_k = times(sums_k, tl.zeros_like(column).to(tl.float32) + factor, REST_D)
        store_rows(grad_k, at * D, 1, there, sums_k, REST_D, D)
    if grad_v is not None:
        store_rows(grad_v, at * E, 1, there, sums_v, REST_E, E)


def launch_gradient_of_keys(terms: Terms, grad_k: Tensor | None, grad_v: Tensor | None) -> None:
    """Writes what is asked for, of a batch that is not empty and has keys."""
    q, k, v, bias, slopes = terms.q, terms.k, terms.v, terms.bias, terms.slopes
    (B, S, H, _), (_, T, G, _) = q.shape, v.shape
    width = room_of(q, v, bias)
    options = {**configuration("attention.gradient_of_keys", q.device, width, q.element_size()).options}
    sizes = shapes(q, v)
    read = sources(q, terms.grad, options["BLOCK_M"], sizes, options.pop("DESCRIBED", False))
    blocks = tile_count(T, 1, options["BLOCK_N"], terms.sequences)
    launch(
        _gradient_of_keys,
        grid_of(B * G * blocks),
        *read[:2],
        k,
        v,
        *read[2:],
        terms.shift,
        terms.delta,
        slopes,
        bias,
        grad_k,
        grad_v,
        *ends_of(terms.sequences),
        B,
        S,
        T,
        G,
        blocks,
        *terms.numbers,
        *terms.strides,
        HEADS=H // G,
        DESCRIBED=read[0] is not q,
        **terms.how.flags,
        **sizes,
        **options,
    )
