"""What comes before and after the Hopper kernel of attention's gradients, row by row of the queries.

That kernel leaves the queries' gradients in float32, tile after tile of 64 by 64, in the order in which a warpgroup has
them: a product's column 8 * j + 2 * c + k of row 16 * w + 8 * i + r is number (j, w, r, c, i, k) of its tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from portakernel.authoring.triton import program_index
from portakernel_plugins.triton.attention.sequences import tile_of_sequence
from portakernel_plugins.triton.exponentials import LOG2_E


@triton.jit
def _queries_of(number, ends_q, ends_k, sequences, queries, BLOCK: tl.constexpr):
    """The queries of a block, which of them there are, and whether they are in a sequence at all.

    Some numbers are no block of any sequence.
    """
    query = number * BLOCK + tl.arange(0, BLOCK)
    inside = query < queries
    known = True
    if ends_q is not None:
        block, first, own, _, _, sequence = tile_of_sequence(number, ends_q, ends_k, sequences, queries, 1, BLOCK)
        query = first + block * BLOCK + tl.arange(0, BLOCK)
        inside = query < first + own
        known = sequence < sequences
    return query, inside, known


@triton.jit(do_not_specialize=["sequences", "batches", "queries", "heads", "blocks"])
def before(
    out,  # (B, S, H, D)
    grad,  # the same
    lse,  # (B, H, S) float32, contiguous, and so is sunk
    sinks,  # (H,). None: there are none, or no gradient is wanted
    terms,  # (B, H, 2, blocks * BLOCK)
    sums,  # as many numbers as queries in whole blocks have
    sunk,
    ends_q,  # of sequences: they are the batch
    ends_k,
    sequences,
    batches,
    queries,
    heads,
    blocks,
    out_batch,
    out_row,
    out_head,
    out_lane,
    grad_batch,
    grad_row,
    grad_head,
    grad_lane,
    sink_stride,
    BLOCK: tl.constexpr,
    D: tl.constexpr,
) -> None:
    """Of a block of queries: ``terms``, the sinks' gradients, and zeros where its own will be summed.

    In ``terms`` are of each head first ``shift``, lse in units of log(2), then ``delta = sum(grad * out)``.
    """
    program = program_index()
    number = program % blocks
    at = program // blocks
    if at >= batches * heads:  # the grid's second dimension may have more than there are
        return
    head = at % heads
    batch = at // heads
    query, inside, known = _queries_of(number, ends_q, ends_k, sequences, queries, BLOCK)
    read = (inside & known)[:, None]  # what is in no sequence has no part in the sinks' gradient
    lane = tl.arange(0, D).to(tl.int64)[None, :]
    there = (batch * out_batch + head * out_head + query * out_row)[:, None] + lane * out_lane
    found = tl.load(out + there, mask=read, other=0.0).to(tl.float32)
    there = (batch * grad_batch + head * grad_head + query * grad_row)[:, None] + lane * grad_lane
    found *= tl.load(grad + there, mask=read, other=0.0).to(tl.float32)
    delta = tl.sum(found, axis=1)
    shift = tl.load(lse + at * queries + query, mask=inside, other=float("-inf")) * LOG2_E
    # a query that sees nothing has no weights, nor has one that is not there: less than infinity, a score is -inf
    shift = tl.where(shift == float("-inf"), float("inf"), shift)
    term = terms + (at * 2 * blocks + number) * BLOCK + tl.arange(0, BLOCK)
    tl.store(term, shift)
    tl.store(term + blocks * BLOCK, delta)
    if sinks is not None:
        sink = tl.load(sinks + head * sink_stride).to(tl.float32) * LOG2_E
        tl.store(sunk + at * queries + query, -tl.exp2(sink - shift) * delta, mask=inside)
    tl.store(sums + program * (BLOCK * D) + tl.arange(0, BLOCK * D), tl.zeros([BLOCK * D], tl.float32))


@triton.jit(do_not_specialize=["sequences", "batches", "queries", "heads", "blocks"])
def after(
    sums,
    grad_q,  # (B, S, H, D), contiguous
    ends_q,  # of sequences: they are the batch
    ends_k,
    sequences,
    batches,
    queries,
    heads,
    blocks,
    factor,
    BLOCK: tl.constexpr,
    D: tl.constexpr,
) -> None:
    """The gradients of a block of queries, in the order of memory, scaled and rounded."""
    program = program_index()
    number = program % blocks
    at = program // blocks
    if at >= batches * heads:
        return
    head = at % heads
    batch = at // heads
    query, inside, _known = _queries_of(number, ends_q, ends_k, sequences, queries, BLOCK)
    found = tl.load(sums + program * (BLOCK * D) + tl.arange(0, BLOCK * D)) * factor
    # tiles of a block are side by side where its rows have two, and one above the other where they have one
    found = found.reshape(BLOCK // 64, D // 64, 8, 4, 8, 4, 2, 2)
    found = found.permute(0, 3, 6, 4, 1, 2, 5, 7).reshape(BLOCK, D)
    row = (batch * queries + query) * heads + head
    there = row[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(grad_q + there, found.to(grad_q.dtype.element_ty), mask=inside[:, None])
