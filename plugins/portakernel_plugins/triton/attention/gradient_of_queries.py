"""Attention's gradients for queries and bias: a program has a tile of queries and goes through the keys that they see.

With ``P`` the softmax's weights, ``g`` the gradient of ``out`` and ``delta = sum(g * out)`` of a query:

    grad_bias = dS = P * (g @ v.T - delta)
    grad_q    = scale * dS @ k                              dS times the softcap's slope
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
from portakernel_plugins.triton.attention.sums_over_keys import over_keys
from portakernel_plugins.triton.attention.tiles import room_of, rows_of_tile, seen_blocks, shapes
from portakernel_plugins.triton.exponentials import LOG2_E
from portakernel_plugins.triton.launching.configurations import configuration


@triton.jit(do_not_specialize=["sequences", "batches", "queries", "keys", "key_heads", "tiles", "left", "right"])
def _gradient_of_queries(
    q,
    k,
    k_rest,  # as row_blocks.sources gives them, and so is v_rest
    v,
    v_rest,
    grad,  # of out (B, S, H, E)
    shift,  # (B, H, S) float32, contiguous, and so is delta
    delta,
    slopes,  # (H,) float32, or None, as all that a call does not ask for
    bias,  # (B, H, S, T)
    grad_q,  # (B, S, H, D), contiguous
    grad_bias,  # (B, H, S, T), contiguous
    ends_q,  # of sequences: they are the batch, which is one row of tokens in memory
    ends_k,
    sequences,
    batches,
    queries,
    keys,
    key_heads,
    tiles,
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
    # heads of one key head side by side, so that they read its keys together; then tiles, the longest first
    program = program_index()
    head = (program % HEADS).to(tl.int32)
    program = program // HEADS
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
        tile, first_query, queries, first_key, keys, _sequence = tile_of_sequence(
            tile, ends_q, ends_k, sequences, queries, 1, BLOCK_M
        )
        if tile * BLOCK_M >= queries:
            return
        q += first_query * q_row
        if not DESCRIBED:
            k += first_key * k_row
            v += first_key * v_row
        grad += first_query * grad_row

    query, head, there = rows_of_tile(tile, head + key_head * HEADS, queries, 1, BLOCK_M)
    ahead = keys - queries
    position = query + ahead
    at_query = query.to(tl.int64)
    at_head = head.to(tl.int64)
    at_row = (batch * key_heads * HEADS + at_head) * rows + first_query + at_query
    if not DESCRIBED:
        k += batch * k_batch + key_head.to(tl.int64) * k_head
        v += batch * v_batch + key_head.to(tl.int64) * v_head
    q_rows = load_rows(
        q + batch * q_batch, at_query * q_row + at_head * q_head, q_lane, None, BLOCK_D, REST_D, D, False, WIDEN
    )
    grads = load_rows(
        grad + batch * grad_batch, at_query * grad_row + at_head * grad_head, grad_lane, None, BLOCK_E, REST_E, E,
        False, WIDEN,
    )  # fmt: skip
    row_shift = tl.load(shift + at_row)
    row_delta = tl.load(delta + at_row)
    slope = None
    bias_rows = at_query
    if slopes is not None:
        slope = (tl.load(slopes + at_head * slope_stride) * LOG2_E)[:, None]
    if bias is not None:
        bias += batch * bias_batch
        bias_rows = at_head * bias_head + at_query * bias_row
    of_bias = grad_bias
    if grad_bias is not None:
        of_bias = grad_bias + (at_row * keys)[:, None]

    sums = no_sums(BLOCK_M, BLOCK_D, REST_D)
    first = tile * BLOCK_M
    last = tl.minimum(first + BLOCK_M, queries) - 1
    begin, whole_from, whole_to, stop = seen_blocks(first, last, ahead, keys, left, right, LEFT, RIGHT, BLOCK_N)
    starts, stops = (begin, whole_from, whole_to), (tl.minimum(whole_from, stop), whole_to, stop)
    for part in tl.static_range(0 if LEFT else 1, 3):  # an edge, whole blocks, the other edge
        sums = over_keys(
            sums, q_rows, grads, k, k_rest, v, v_rest, batch, first_key, key_head, bias, bias_rows, of_bias, there,
            position, slope, row_shift, row_delta, keys, starts[part], stops[part], left, right, scale, cap, k_row,
            k_lane, v_row, v_lane, bias_column, grad_q is not None, part != 1, SOFTCAP, LEFT, RIGHT, D, BLOCK_D, REST_D,
            E, BLOCK_E, REST_E, BLOCK_N, q.dtype.element_ty, PRECISION, WIDEN, DESCRIBED, ends_q is not None,
        )  # fmt: skip
    if grad_q is not None:
        sums = times(sums, tl.zeros_like(row_delta) + factor, REST_D)
        at = ((batch * rows + first_query + at_query) * key_heads * HEADS + at_head) * D
        store_rows(grad_q, at, 1, there, sums, REST_D, D)


def launch_gradient_of_queries(terms: Terms, grad_q: Tensor | None, grad_bias: Tensor | None) -> None:
    """Writes what is asked for, of a batch that has queries; of ``grad_bias`` what the window shows."""
    q, k, v = terms.q, terms.k, terms.v
    (B, S, H, _), (_, T, G, _) = q.shape, v.shape
    width = room_of(q, v, terms.bias)
    options = {**configuration("attention.gradient_of_queries", q.device, width, q.element_size()).options}
    blocks = shapes(q, v)
    read = sources(k, v, options["BLOCK_N"], blocks, options.pop("DESCRIBED", False))
    tiles = tile_count(S, 1, options["BLOCK_M"], terms.sequences)
    launch(
        _gradient_of_queries,
        grid_of(B * H * tiles),
        q,
        *read,
        terms.grad,
        terms.shift,
        terms.delta,
        terms.slopes,
        terms.bias,
        grad_q,
        grad_bias,
        *ends_of(terms.sequences),
        B,
        S,
        T,
        G,
        tiles,
        *terms.numbers,
        *terms.strides,
        HEADS=H // G,
        DESCRIBED=read[0] is not k,
        **terms.how.flags,
        **blocks,
        **options,
    )
