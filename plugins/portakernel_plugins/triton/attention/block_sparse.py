"""``block_sparse_attention`` in Triton; its gradients are in ``block_sparse_gradients.py``.

A program has a tile of queries and goes through the blocks of keys on the two lists of its row of blocks, with
``attention``'s loop: those seen whole without a mask, then those that the mask cuts. What is on neither is not read.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring import masks
from portakernel.authoring.triton import cdiv, grid_of, launch
from portakernel_plugins.triton.attention.block_lists import Lists, arguments_of, list_of, tile_of_program
from portakernel_plugins.triton.attention.bounded_scores import with_sink
from portakernel_plugins.triton.attention.head_parts import load_rows, negated, no_sums, store_rows, times
from portakernel_plugins.triton.attention.masks import Masking, ids_of
from portakernel_plugins.triton.attention.online_softmax import log_of_sum, over_keys
from portakernel_plugins.triton.attention.results import Results, Written
from portakernel_plugins.triton.attention.row_blocks import sources
from portakernel_plugins.triton.attention.scores import Scoring, scoring
from portakernel_plugins.triton.attention.tiles import room_of, rows_of_tile, shapes
from portakernel_plugins.triton.exponentials import LOG2_E, LOG_2
from portakernel_plugins.triton.launching.configurations import configuration

OP = "block_sparse_attention"


@triton.jit(
    do_not_specialize=[
        "batches", "queries", "keys", "key_heads", "tiles", "left", "right",
        "partial_batch", "partial_head", "partial_room", "full_batch", "full_head", "full_room",
    ]
)  # fmt: skip
def _forward(
    q,
    k,
    k_rest,  # as row_blocks.sources gives them, and so is v_rest
    v,
    v_rest,
    sinks,  # (H,), or None, as all that a call does not ask for
    out,  # (B, S, H, E)
    lse,  # (B, H, S) float32
    logsumexp,  # the same again, for backward
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
    query_ids,  # (B, S), contiguous
    key_ids,  # (B, T)
    prefix,  # (B,)
    batches,
    queries,
    keys,
    key_heads,
    tiles,
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
    sink_stride,
    HEADS: tl.constexpr,  # of one key head
    ROWS: tl.constexpr,  # of a block of the lists, and so are COLUMNS
    COLUMNS: tl.constexpr,
    CUT: tl.constexpr,  # the last block of keys has fewer
    MASK: tl.constexpr,
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
) -> None:
    tile, head, key_head, batch = tile_of_program(tiles, key_heads, HEADS)
    if batch >= batches:  # the grid's second dimension may have more than there are
        return

    query, _, there = rows_of_tile(tile, head, queries, 1, BLOCK_M)
    position = query + (keys - queries)
    at_query = query.to(tl.int64)
    at_head = head.to(tl.int64)
    if not DESCRIBED:
        k += batch * k_batch + key_head.to(tl.int64) * k_head
        v += batch * v_batch + key_head.to(tl.int64) * v_head
    block = load_rows(
        q + batch * q_batch + at_head * q_head, at_query * q_row, q_lane, None, BLOCK_D, REST_D, D, False, WIDEN
    )
    if NEGATED:
        block = negated(block, REST_D)
    of_batch = None
    if prefix is not None:
        of_batch = tl.load(prefix + batch)
    if key_ids is not None:
        key_ids += batch * keys
    of_queries = ids_of(query_ids, batch * queries + at_query, None)

    sunk = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    if sinks is not None:
        sunk = tl.zeros_like(sunk) + tl.load(sinks + at_head * sink_stride).to(tl.float32) * LOG2_E
    top = sunk
    total = tl.where(sunk == float("-inf"), 0.0, 1.0)
    if BOUNDED:  # the sink's weight is added in the end
        total = tl.zeros_like(sunk)
    acc = no_sums(BLOCK_M, BLOCK_E, REST_E)

    row = tile * BLOCK_M // ROWS
    for part in tl.static_range(2):  # blocks that are seen whole, and those that the mask cuts
        if part == 0:
            counts, indices, batch_rows, head_rows, room = full_counts, full_indices, full_batch, full_head, full_room
        else:
            counts, indices = partial_counts, partial_indices
            batch_rows, head_rows, room = partial_batch, partial_head, partial_room
        if counts is not None:
            listed, stop = list_of(counts, indices, batch, head, row, batch_rows, head_rows, room, COLUMNS)
            acc, total, top = over_keys(
                acc, total, top, block, k, k_rest, v, v_rest, batch, 0, key_head, None, at_query, position, None, keys,
                0, stop, left, right, scale, coarse, cap, k_row, k_lane, v_row, v_lane, 0,
                CUT or (part == 1 and (LEFT or RIGHT or MASK is not None)), SOFTCAP, LEFT and part == 1,
                RIGHT and part == 1, BOUNDED, FOLDED, D, BLOCK_D, REST_D, E, BLOCK_E, REST_E, BLOCK_N,
                q.dtype.element_ty, PRECISION, WIDEN, DESCRIBED, False, None, 0, 0, "", "", listed, COLUMNS,
                MASK if part == 1 else None, head, of_queries, key_ids, of_batch,
            )  # fmt: skip

    kept = 1.0
    if BOUNDED:
        total, top, kept = with_sink(total, sunk, cap)
    # of a query that sees nothing, total is 0
    acc = times(acc, kept / tl.where(total == 0.0, 1.0, total), REST_E)
    found = log_of_sum(total, top, sunk, cap if SOFTCAP else scale, coarse, FOLDED) * LOG_2
    at_lse = (batch * key_heads * HEADS + at_head) * queries + at_query
    store_rows(out + batch * out_batch + at_head * out_head, at_query * out_row, out_lane, there, acc, REST_E, E)
    if lse is not None:
        tl.store(lse + at_lse, found, mask=there)
    if logsumexp is not None:
        tl.store(logsumexp + at_lse, found, mask=there)


@dataclass(frozen=True, slots=True)
class Sparse:
    """What of a call decides which pairs of a query and a key there are; ``block`` is the queries and keys of one."""

    partial: Lists | None
    full: Lists | None
    masking: Masking
    how: Scoring
    block: tuple[int, int]

    @property
    def flags(self) -> dict[str, Any]:
        """What is compiled into a kernel."""
        return {"ROWS": self.block[0], "COLUMNS": self.block[1], "MASK": self.masking.function, **self.how.flags}

    def programs(self, kernel: str, q: Tensor, v: Tensor) -> int:
        """How many programs of ``kernel`` fill the chip."""
        return configuration(kernel, q.device, room_of(q, v, None), q.element_size()).programs

    def options(self, kernel: str, q: Tensor, v: Tensor) -> Mapping[str, Any]:
        """How ``kernel`` is launched: its tiles lie within blocks."""
        options = configuration(kernel, q.device, room_of(q, v, None), q.element_size()).options
        rows, columns = (min(options[f"BLOCK_{side}"], size) for side, size in zip("MN", self.block, strict=True))
        # what has half as many rows has half as many threads
        warps = max(options["num_warps"] * rows // options["BLOCK_M"], 1)
        return {**options, "BLOCK_M": rows, "BLOCK_N": columns, "num_warps": warps}


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    partial_count: Tensor,
    partial_index: Tensor,
    full_count: Tensor | None = None,
    full_index: Tensor | None = None,
    *,
    query_ids: Tensor | None = None,
    key_ids: Tensor | None = None,
    prefix: Tensor | None = None,
    sinks: Tensor | None = None,
    q_partial_count: Tensor | None = None,
    q_partial_index: Tensor | None = None,
    q_full_count: Tensor | None = None,
    q_full_index: Tensor | None = None,
    mask: str,
    window: tuple[int, int],
    block: str,
    scale: float | None,
    softcap: float,
    return_lse: bool,
    out: Results | None = None,
    save: bool = False,
) -> Results:
    """The contract's formula; with ``save`` the log-sum-exp ``(B, H, S)`` too.

    ``q``: (B, S, H, D), ``k``: (B, T, G, D), ``v``: (B, T, G, E), of one dtype and any strides.
    """
    partial, full = (
        masks.paired(OP, name, *pair)
        for name, pair in (("partial", (partial_count, partial_index)), ("full", (full_count, full_index)))
    )
    masks.paired(OP, "q_partial", q_partial_count, q_partial_index)  # backward's
    masks.paired(OP, "q_full", q_full_count, q_full_index)
    (B, S, H, _), E = q.shape, v.shape[3]
    masking = Masking.of(OP, mask, query_ids, key_ids, prefix)
    written = Written.of(q, (B, S, H, E), (B, H, S), out, return_lse, save)
    if B and S:
        how = scoring(q, k, masking.is_causal, scale, window, softcap)
        lists = Lists.of(partial), Lists.of(full)
        _launch_forward(q, k, v, sinks, written, Sparse(*lists, masking, how, masks.BLOCKS[block]))
    return written.results()


def _launch_forward(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, written: Written, sparse: Sparse) -> None:
    y, how = written.y, sparse.how
    (B, S, H, _), (_, T, G, _) = q.shape, v.shape
    options, sizes = {**sparse.options("attention.block_sparse", q, v)}, shapes(q, v)
    read = sources(k, v, options["BLOCK_N"], sizes, options.pop("DESCRIBED", False))
    tiles = cdiv(S, options["BLOCK_M"])
    turned_round = how.is_folded and how.last_factor < 0.0
    launch(
        _forward,
        grid_of(B * H * tiles),
        q,
        *read,
        sinks,
        y,
        written.lse,
        written.logsumexp,
        *arguments_of(sparse.partial),
        *arguments_of(sparse.full),
        *sparse.masking.arguments,
        B,
        S,
        T,
        G,
        tiles,
        how.left,
        how.right,
        -how.scale if turned_round else how.scale,
        how.coarse,
        how.cap,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        *y.stride(),
        0 if sinks is None else sinks.stride(0),
        HEADS=H // G,
        CUT=T % sparse.block[1] != 0,
        BOUNDED=how.is_bounded,
        FOLDED=how.is_folded,
        NEGATED=turned_round,
        DESCRIBED=read[0] is not k,
        **sparse.flags,
        **sizes,
        **options,
    )
