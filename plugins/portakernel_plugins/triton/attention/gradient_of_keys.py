"""Attention's gradients for keys and values: a program has a block of keys and goes through the queries that see it.

With ``P`` the softmax's weights, ``g`` the gradient of ``out`` and ``delta = sum(g * out)`` of a query:

    grad_v = P.T @ g                                        over the queries of all heads of the key head
    dS     = P * (g @ v.T - delta)                          of a score; times the softcap's slope of a product
    grad_k = scale * dS.T @ q

Where blocks of keys are few, several programs share the queries of each (``split_queries.py``).
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import grid_of, launch, program_index
from portakernel_plugins.triton.attention.head_parts import load_rows, no_sums, store_rows, times
from portakernel_plugins.triton.attention.row_blocks import sources
from portakernel_plugins.triton.attention.row_terms import Terms
from portakernel_plugins.triton.attention.sequences import ends_of, tile_count, tile_of_sequence
from portakernel_plugins.triton.attention.split_queries import Sums, part_count
from portakernel_plugins.triton.attention.sums_over_queries import over_queries
from portakernel_plugins.triton.attention.tiles import room_of, seen_blocks, shapes
from portakernel_plugins.triton.launching.configurations import configuration


@triton.jit(
    do_not_specialize=["sequences", "batches", "queries", "keys", "key_heads", "blocks", "parts", "left", "right"]
)
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
    grad_k,  # (B, T, G, D), contiguous; with SPLIT (parts, B, T, G, D) float32
    grad_v,  # (B, T, G, E); the same
    ends_q,  # of sequences: they are the batch, which is one row of tokens in memory
    ends_k,
    sequences,
    batches,
    queries,
    keys,
    key_heads,
    blocks,
    parts,
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
    SPLIT: tl.constexpr,
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
    # parts of one block side by side; the first keys are seen by most queries, where there is a causal mask
    program = program_index()
    part = 0
    if SPLIT:
        part = (program % parts).to(tl.int32)
        program = program // parts
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
        block, first_row, keys, first_query, queries, _sequence = tile_of_sequence(
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
    for stretch in tl.static_range(0 if RIGHT else 1, 3):  # an edge, whole blocks, the other edge
        sums_k, sums_v = over_queries(
            sums_k, sums_v, k_rows, v_rows, q, q_rest, grad, grad_rest, batch, first_query, first_head.to(tl.int32),
            shift, delta, slopes, bias, column, rows_apart, queries, ahead, starts[stretch], stops[stretch], left,
            right, scale, cap, q_row, q_head, q_lane, grad_row, grad_head, grad_lane, bias_head, bias_row, bias_column,
            slope_stride, part, parts, HEADS, grad_k is not None, grad_v is not None, stretch != 1, SOFTCAP, LEFT,
            RIGHT, D, BLOCK_D, REST_D, E, BLOCK_E, REST_E, BLOCK_M, k.dtype.element_ty, PRECISION, WIDEN, DESCRIBED,
            ends_q is not None, SPLIT,
        )  # fmt: skip

    at = (batch * keys_apart + first_row + at_key) * key_heads + key_head
    if SPLIT:
        at += tl.cast(part, tl.int64) * batches * keys_apart * key_heads
    if grad_k is not None:
        if not SPLIT:  # else when the parts are added up
            sums_k = times(sums_k, tl.zeros_like(column).to(tl.float32) + factor, REST_D)
        store_rows(grad_k, at * D, 1, there, sums_k, REST_D, D)
    if grad_v is not None:
        store_rows(grad_v, at * E, 1, there, sums_v, REST_E, E)


def launch_gradient_of_keys(terms: Terms, grad_k: Tensor | None, grad_v: Tensor | None) -> None:
    """Writes what is asked for, of a batch that is not empty and has keys."""
    q, k, v, bias, slopes = terms.q, terms.k, terms.v, terms.bias, terms.slopes
    (B, S, H, _), (_, T, G, _) = q.shape, v.shape
    width = room_of(q, v, bias)
    entry = configuration("attention.gradient_of_keys", q.device, width, q.element_size())
    options = {**entry.options}
    if options.pop("APART", False) and grad_k is not None and grad_v is not None:
        launch_gradient_of_keys(terms, grad_k, None)
        launch_gradient_of_keys(terms, None, grad_v)
        return
    sizes = shapes(q, v)
    read = sources(q, terms.grad, options["BLOCK_M"], sizes, options.pop("DESCRIBED", False))
    blocks = tile_count(T, 1, options["BLOCK_N"], terms.sequences)
    queries = S if terms.sequences is None else terms.sequences.longest[0]
    ragged = terms.sequences is not None
    parts = part_count(B * G * blocks, entry.programs, options["BLOCK_N"], queries, H // G, terms.how, ragged)
    into = Sums.of(grad_k, grad_v, parts) if parts > 1 else None
    launch(
        _gradient_of_keys,
        grid_of(B * G * blocks * parts),
        *read[:2],
        k,
        v,
        *read[2:],
        terms.shift,
        terms.delta,
        slopes,
        bias,
        grad_k if into is None else into.k,
        grad_v if into is None else into.v,
        *ends_of(terms.sequences),
        B,
        S,
        T,
        G,
        blocks,
        parts,
        *terms.numbers,
        *terms.strides,
        HEADS=H // G,
        SPLIT=into is not None,
        DESCRIBED=read[0] is not q,
        **terms.how.flags,
        **sizes,
        **options,
    )
    if into is not None:
        into.add_up(grad_k, grad_v, terms.how.factor)
