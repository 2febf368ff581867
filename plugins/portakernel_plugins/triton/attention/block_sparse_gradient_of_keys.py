"""The gradients of the keys and values of ``block_sparse_attention``: each block goes through lists of queries.

These are forward's lists turned round: for each block of keys and each head, the blocks of queries that see it.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import cdiv, grid_of, launch, program_index
from portakernel_plugins.triton.attention.block_lists import arguments_of, list_of
from portakernel_plugins.triton.attention.block_sparse import Sparse
from portakernel_plugins.triton.attention.head_parts import load_rows, no_sums, store_rows, times
from portakernel_plugins.triton.attention.masks import ids_of
from portakernel_plugins.triton.attention.row_blocks import sources
from portakernel_plugins.triton.attention.row_terms import Terms
from portakernel_plugins.triton.attention.split_queries import Sums, share_of
from portakernel_plugins.triton.attention.sums_over_queries import over_queries
from portakernel_plugins.triton.attention.tiles import shapes


@triton.jit(
    do_not_specialize=[
        "batches", "queries", "keys", "key_heads", "blocks", "parts", "left", "right",
        "partial_batch", "partial_head", "partial_room", "full_batch", "full_head", "full_room",
    ]
)  # fmt: skip
def _of_keys(
    q,
    q_rest,  # as row_blocks.sources gives them, and so is grad_rest
    k,
    v,
    grad,  # of out (B, S, H, E)
    grad_rest,
    shift,  # (B, H, S) float32, contiguous, and so is delta
    delta,
    grad_k,  # (B, T, G, D), contiguous; with SPLIT (parts, B, T, G, D) float32; None: not wanted
    grad_v,  # (B, T, G, E); the same
    partial_counts,  # as block_lists.Lists has them, of each block of keys
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
    HEADS: tl.constexpr,  # of one key head
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,  # of a block of the lists, and so are COLUMNS
    COLUMNS: tl.constexpr,
    CUT: tl.constexpr,  # the last block of queries has fewer
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
    # parts of one block, which have some of the heads each, side by side
    program = program_index()
    first_member = 0
    last_member = HEADS
    part_of_heads = 0
    if SPLIT:
        part_of_heads = (program % parts).to(tl.int32)
        program = program // parts
        first_member, last_member = share_of(HEADS, part_of_heads, parts)
    block = (program % blocks).to(tl.int32)
    program = program // blocks
    key_head = (program % key_heads).to(tl.int32)
    batch = program // key_heads
    if batch >= batches:  # the grid's second dimension may have more than there are
        return

    first_key = block * BLOCK_N
    column = first_key + tl.arange(0, BLOCK_N)
    there = column < keys
    column = tl.minimum(column, keys - 1)
    at_key = column.to(tl.int64)
    at_head = key_head.to(tl.int64)
    k_rows = load_rows(
        k + batch * k_batch + at_head * k_head, at_key * k_row, k_lane, None, BLOCK_D, REST_D, D, False, WIDEN
    )
    v_rows = load_rows(
        v + batch * v_batch + at_head * v_head, at_key * v_row, v_lane, None, BLOCK_E, REST_E, E, False, WIDEN
    )
    of_batch = None
    if prefix is not None:
        of_batch = tl.load(prefix + batch)
    if query_ids is not None:
        query_ids += batch * queries
    of_keys = ids_of(key_ids, batch * keys + at_key, None)

    sums_k = no_sums(BLOCK_N, BLOCK_D, REST_D)
    sums_v = no_sums(BLOCK_N, BLOCK_E, REST_E)
    row = first_key // COLUMNS
    for member in tl.range(first_member, last_member):
        head = key_head * HEADS + member
        of_head = tl.cast(head, tl.int64)
        at_row = (batch * key_heads * HEADS + of_head) * queries
        q_of_head = q
        grad_of_head = grad
        if not DESCRIBED:
            q_of_head += batch * q_batch + of_head * q_head
            grad_of_head += batch * grad_batch + of_head * grad_head
        for part in tl.static_range(2):  # blocks that see these keys whole, and those that the mask cuts
            if part == 0:
                counts, indices = full_counts, full_indices
                batch_rows, head_rows, room = full_batch, full_head, full_room
            else:
                counts, indices = partial_counts, partial_indices
                batch_rows, head_rows, room = partial_batch, partial_head, partial_room
            if counts is not None:
                listed, stop = list_of(counts, indices, batch, head, row, batch_rows, head_rows, room, ROWS)
                sums_k, sums_v = over_queries(
                    sums_k, sums_v, k_rows, v_rows, q_of_head, q_rest, grad_of_head, grad_rest, batch, 0, head,
                    shift + at_row, delta + at_row, None, None, column, queries, queries, keys - queries, 0, stop, left,
                    right, scale, cap, q_row, q_head, q_lane, grad_row, grad_head, grad_lane, 0, 0, 0, 0, 0, 1, 1,
                    grad_k is not None, grad_v is not None,
                    CUT or (part == 1 and (LEFT or RIGHT or MASK is not None)), SOFTCAP, LEFT and part == 1,
                    RIGHT and part == 1, D, BLOCK_D, REST_D, E, BLOCK_E, REST_E, BLOCK_M, k.dtype.element_ty, PRECISION,
                    WIDEN, DESCRIBED, False, False, listed, ROWS, MASK if part == 1 else None, query_ids, of_keys,
                    of_batch,
                )  # fmt: skip

    at = (batch * keys + at_key) * key_heads + key_head
    if SPLIT:
        at += tl.cast(part_of_heads, tl.int64) * batches * keys * key_heads
    if grad_k is not None:
        if not SPLIT:  # else when the parts are added up
            sums_k = times(sums_k, tl.zeros_like(column).to(tl.float32) + factor, REST_D)
        store_rows(grad_k, at * D, 1, there, sums_k, REST_D, D)
    if grad_v is not None:
        store_rows(grad_v, at * E, 1, there, sums_v, REST_E, E)


def launch_of_keys(terms: Terms, sparse: Sparse, grad_k: Tensor | None, grad_v: Tensor | None) -> None:
    """Writes the gradients that are asked for, contiguous; ``sparse`` has lists by blocks of keys."""
    q, k, v = terms.q, terms.k, terms.v
    (B, S, H, _), (_, T, G, _) = q.shape, v.shape
    options, sizes = {**sparse.options("attention.block_sparse_keys", q, v)}, shapes(q, v)
    if options.pop("APART", False) and grad_k is not None and grad_v is not None:
        launch_of_keys(terms, sparse, grad_k, None)
        launch_of_keys(terms, sparse, None, grad_v)
        return
    read = sources(q, terms.grad, options["BLOCK_M"], sizes, options.pop("DESCRIBED", False))
    blocks = cdiv(T, options["BLOCK_N"])
    parts = max(1, min(H // G, sparse.programs("attention.block_sparse_keys", q, v) // (B * G * blocks)))
    into = Sums.of(grad_k, grad_v, parts) if parts > 1 else None
    launch(
        _of_keys,
        grid_of(B * G * blocks * parts),
        *read[:2],
        k,
        v,
        *read[2:],
        terms.shift,
        terms.delta,
        grad_k if into is None else into.k,
        grad_v if into is None else into.v,
        *arguments_of(sparse.partial),
        *arguments_of(sparse.full),
        *sparse.masking.arguments,
        B,
        S,
        T,
        G,
        blocks,
        parts,
        *terms.numbers,
        *terms.row_strides,
        HEADS=H // G,
        SPLIT=into is not None,
        CUT=S % sparse.block[0] != 0,
        DESCRIBED=read[0] is not q,
        **sparse.flags,
        **sizes,
        **options,
    )
    if into is not None:
        into.add_up(grad_k, grad_v, terms.how.factor)
