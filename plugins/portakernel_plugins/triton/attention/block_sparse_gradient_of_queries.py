"""The gradient of the queries of ``block_sparse_attention``: a tile of them goes through forward's lists of keys."""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import cdiv, grid_of, launch
from portakernel_plugins.triton.attention.block_lists import arguments_of, list_of, tile_of_program
from portakernel_plugins.triton.attention.block_sparse import Sparse
from portakernel_plugins.triton.attention.head_parts import load_rows, no_sums, store_rows, times
from portakernel_plugins.triton.attention.masks import ids_of
from portakernel_plugins.triton.attention.row_blocks import sources
from portakernel_plugins.triton.attention.row_terms import Terms
from portakernel_plugins.triton.attention.sums_over_keys import over_keys
from portakernel_plugins.triton.attention.tiles import rows_of_tile, shapes


@triton.jit(
    do_not_specialize=[
        "batches", "queries", "keys", "key_heads", "tiles", "left", "right",
        "partial_batch", "partial_head", "partial_room", "full_batch", "full_head", "full_room",
    ]
)  # fmt: skip
def _of_queries(
    q,
    k,
    k_rest,  # as row_blocks.sources gives them, and so is v_rest
    v,
    v_rest,
    grad,  # of out (B, S, H, E)
    shift,  # (B, H, S) float32, contiguous, and so is delta
    delta,
    grad_q,  # (B, S, H, D), contiguous
    partial_counts,  # as block_lists.Lists has them
    partial_indices,
    partial_batch,
    partial_head,
    partial_room,
    full_counts,
    full_indices,
    full_batch,
    full_head,
    full_room,
    query_ids,  # (B, S), contiguous, or None, as all that a mask does not read
    key_ids,  # (B, T)
    prefix,  # (B,)
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
    HEADS: tl.constexpr,  # of one key head
    ROWS: tl.constexpr,  # of a block of the lists, and so are COLUMNS
    COLUMNS: tl.constexpr,
    CUT: tl.constexpr,  # the last block of keys has fewer
    MASK: tl.constexpr,
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
    tile, head, key_head, batch = tile_of_program(tiles, key_heads, HEADS)
    if batch >= batches:  # the grid's second dimension may have more than there are
        return

    query, _, there = rows_of_tile(tile, head, queries, 1, BLOCK_M)
    position = query + (keys - queries)
    at_query = query.to(tl.int64)
    at_head = head.to(tl.int64)
    at_row = (batch * key_heads * HEADS + at_head) * queries + at_query
    if not DESCRIBED:
        k += batch * k_batch + key_head.to(tl.int64) * k_head
        v += batch * v_batch + key_head.to(tl.int64) * v_head
    q_rows = load_rows(
        q + batch * q_batch + at_head * q_head, at_query * q_row, q_lane, None, BLOCK_D, REST_D, D, False, WIDEN
    )
    grads = load_rows(
        grad + batch * grad_batch + at_head * grad_head, at_query * grad_row, grad_lane, None, BLOCK_E, REST_E, E,
        False, WIDEN,
    )  # fmt: skip
    row_shift = tl.load(shift + at_row)
    row_delta = tl.load(delta + at_row)
    of_batch = None
    if prefix is not None:
        of_batch = tl.load(prefix + batch)
    if key_ids is not None:
        key_ids += batch * keys
    of_queries = ids_of(query_ids, batch * queries + at_query, None)

    sums = no_sums(BLOCK_M, BLOCK_D, REST_D)
    row = tile * BLOCK_M // ROWS
    for part in tl.static_range(2):  # blocks that are seen whole, and those that the mask cuts
        if part == 0:
            counts, indices, batch_rows, head_rows, room = full_counts, full_indices, full_batch, full_head, full_room
        else:
            counts, indices = partial_counts, partial_indices
            batch_rows, head_rows, room = partial_batch, partial_head, partial_room
        if counts is not None:
            listed, stop = list_of(counts, indices, batch, head, row, batch_rows, head_rows, room, COLUMNS)
            sums = over_keys(
                sums, q_rows, grads, k, k_rest, v, v_rest, batch, 0, key_head, None, at_query, None, there, position,
                None, row_shift, row_delta, keys, 0, stop, left, right, scale, cap, k_row, k_lane, v_row, v_lane, 0,
                True, CUT or (part == 1 and (LEFT or RIGHT or MASK is not None)), SOFTCAP, LEFT and part == 1,
                RIGHT and part == 1, D, BLOCK_D, REST_D, E, BLOCK_E, REST_E, BLOCK_N, q.dtype.element_ty, PRECISION,
                WIDEN, DESCRIBED, False, listed, COLUMNS, MASK if part == 1 else None, head, of_queries, key_ids,
                of_batch,
            )  # fmt: skip
    sums = times(sums, tl.zeros_like(row_delta) + factor, REST_D)
    store_rows(grad_q, ((batch * queries + at_query) * key_heads * HEADS + at_head) * D, 1, there, sums, REST_D, D)


def launch_of_queries(terms: Terms, sparse: Sparse, grad_q: Tensor) -> None:
    """Writes the gradient of the queries, contiguous."""
    q, k, v = terms.q, terms.k, terms.v
    (B, S, H, _), (_, T, G, _) = q.shape, v.shape
    options, sizes = {**sparse.options("attention.gradient_of_queries", q, v)}, shapes(q, v)
    read = sources(k, v, options["BLOCK_N"], sizes, options.pop("DESCRIBED", False))
    tiles = cdiv(S, options["BLOCK_M"])
    launch(
        _of_queries,
        grid_of(B * H * tiles),
        q,
        *read,
        terms.grad,
        terms.shift,
        terms.delta,
        grad_q,
        *arguments_of(sparse.partial),
        *arguments_of(sparse.full),
        *sparse.masking.arguments,
        B,
        S,
        T,
        G,
        tiles,
        *terms.numbers,
        *terms.row_strides,
        HEADS=H // G,
        CUT=T % sparse.block[1] != 0,
        DESCRIBED=read[0] is not k,
        **sparse.flags,
        **sizes,
        **options,
    )
