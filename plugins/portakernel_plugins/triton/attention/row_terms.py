"""What attention's gradients take of each query: its weights' normaliser, and ``delta = sum(grad * out)``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import cdiv, grid_of, launch, program_index
from portakernel_plugins.triton.attention.scores import Scoring
from portakernel_plugins.triton.attention.sequences import Sequences, ends_of
from portakernel_plugins.triton.exponentials import LOG2_E
from portakernel_plugins.triton.launching.configurations import configuration


@triton.jit(do_not_specialize=["sequences", "rows", "queries", "heads"])
def _row_terms(
    out,  # (B, S, H, E)
    grad,  # the same
    lse,  # (B, H, S) float32, contiguous, and so are shift, delta and sunk
    sinks,  # (H,). None: there are none, or no gradient is wanted
    shift,
    delta,
    sunk,
    ends,  # of sequences of queries
    sequences,
    rows,  # B * H * S
    queries,
    heads,
    out_batch,
    out_row,
    out_head,
    out_lane,
    grad_batch,
    grad_row,
    grad_head,
    grad_lane,
    sink_stride,
    E: tl.constexpr,
    BLOCK_E: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row = program_index() * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    query = row % queries
    head = row // queries % heads
    batch = row // queries // heads
    lane = tl.arange(0, BLOCK_E).to(tl.int64)[None, :]
    mask = inside[:, None] & (lane < E)
    if ends is not None:
        # what is in no sequence has no part in the sinks' gradient
        mask = mask & (query < tl.load(ends + sequences))[:, None]
    at = (batch * out_batch + query * out_row + head * out_head)[:, None] + lane * out_lane
    found = tl.load(out + at, mask=mask, other=0.0).to(tl.float32)
    at = (batch * grad_batch + query * grad_row + head * grad_head)[:, None] + lane * grad_lane
    found *= tl.load(grad + at, mask=mask, other=0.0).to(tl.float32)
    sum_ = tl.sum(found, axis=1)
    normaliser = tl.load(lse + row, mask=inside, other=0.0) * LOG2_E
    # a query that sees nothing has no weights: less than infinity, every score is -inf
    normaliser = tl.where(normaliser == float("-inf"), float("inf"), normaliser)
    tl.store(delta + row, sum_, mask=inside)
    tl.store(shift + row, normaliser, mask=inside)
    if sinks is not None:
        sink = tl.load(sinks + head * sink_stride, mask=inside, other=0.0).to(tl.float32) * LOG2_E
        tl.store(sunk + row, -tl.exp2(sink - normaliser) * sum_, mask=inside)


@dataclass(frozen=True, slots=True)
class Terms:
    """A call's tensors with what both kernels of gradients take of each query.

    ``shift (B, H, S)`` is lse in units of log(2), infinity where a query sees nothing; ``sunk (B, H, S)`` the gradient
    of each query's sink, where it is wanted.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    slopes: Tensor | None
    bias: Tensor | None
    grad: Tensor
    shift: Tensor
    delta: Tensor
    sunk: Tensor | None
    how: Scoring
    sequences: Sequences | None

    @property
    def numbers(self) -> tuple[int | float, ...]:
        """Of the scores, as kernels take them."""
        how = self.how
        return how.left, how.right, how.factor, how.scale, how.cap

    @property
    def row_strides(self) -> tuple[int, ...]:
        """Those of queries, keys, values and the gradient, as kernels take them."""
        return (*self.q.stride(), *self.k.stride(), *self.v.stride(), *self.grad.stride())

    @property
    def strides(self) -> tuple[int, ...]:
        """All, as kernels take them; 0 for what is not there."""
        return (
            *self.row_strides,
            *((0, 0, 0, 0) if self.bias is None else self.bias.stride()),
            0 if self.slopes is None else self.slopes.stride(0),
        )


def row_terms(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    out: Tensor,
    lse: Tensor,
    how: Scoring,
    sequences: Sequences | None = None,
) -> Terms:
    """Of a batch that has queries; ``sinks`` is None where their gradient is not wanted."""
    (B, S, H, _), E = q.shape, v.shape[3]
    shift, delta = (q.new_empty(B, H, S, dtype=torch.float32) for _ in range(2))
    sunk = None if sinks is None else torch.empty_like(delta)
    entry = configuration("attention.row_terms", q.device, E)
    ends, _, count = ends_of(sequences)
    launch(
        _row_terms,
        grid_of(cdiv(B * H * S, entry.rows)),
        out,
        grad,
        lse.contiguous(),
        sinks,
        shift,
        delta,
        sunk,
        ends,
        count,
        B * H * S,
        S,
        H,
        *out.stride(),
        *grad.stride(),
        0 if sinks is None else sinks.stride(0),
        E=E,
        BLOCK_E=entry.columns,
        ROWS=entry.rows,
        **entry.options,
    )
    return Terms(q, k, v, slopes, bias, grad, shift, delta, sunk, how, sequences)
