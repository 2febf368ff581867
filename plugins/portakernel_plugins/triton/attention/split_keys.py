"""Keys shared among programs where queries are few: each leaves its part, and a second launch merges the parts.

Of a row each part holds ``out`` and ``log2(sum(2 ** s))`` of its own keys, in float32. Parts are merged in their order,
so that equal calls give equal bits.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import grid_of, launch, program_index
from portakernel_plugins.triton.attention.sequences import length_around
from portakernel_plugins.triton.exponentials import LOG_2, finite_or_zero
from portakernel_plugins.triton.launching.configurations import configuration

# Fewer blocks of keys are not worth a part.
_FEWEST_BLOCKS = 2
# Nor are up to so many keys of as many queries, whose parts take longer to write and merge than they save: on an H200
# 512 of both took 17.5 us in two parts (8 heads of 128), and in one 13.0 (12 heads); 2048 took 25.1 in two (2 heads),
# and in one 28.2 (4 heads).
_FEWEST_OF_MANY = 1024


@triton.jit(do_not_specialize=["batches", "queries", "splits"])
def _merge(
    values,  # (splits, B, S, H, E) float32
    shares,  # (splits, B, S, H) float32
    out,
    lse,  # (B, H, S) float32. None: not wanted
    logsumexp,  # the same
    batches,
    queries,
    splits,
    out_batch,
    out_row,
    out_head,
    out_lane,
    ends,  # of sequences, where those of few queries are left out
    sequences,
    few,
    HEADS: tl.constexpr,
    E: tl.constexpr,
    BLOCK_E: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    row = program_index()
    rows = tl.cast(batches, tl.int64) * queries * HEADS
    if row >= rows:
        return
    if ends is not None and length_around(row // HEADS, ends, sequences) <= few:
        return
    lane = tl.arange(0, BLOCK_E)
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    acc = tl.full((BLOCK_E,), 0.0, tl.float32)
    for first in range(0, splits, PARTS):
        part = first + tl.arange(0, PARTS)
        at = part.to(tl.int64) * rows + row
        share = tl.load(shares + at, mask=part < splits, other=float("-inf"))
        inside = (part < splits)[:, None] & (lane < E)[None, :]
        block = tl.load(values + at[:, None] * E + lane[None, :], mask=inside, other=0.0)
        higher = tl.maximum(top, tl.max(share, axis=0))
        base = finite_or_zero(higher)
        weight = tl.exp2(share - base)
        kept = tl.exp2(top - base)
        acc = acc * kept + tl.sum(block * weight[:, None], axis=0)
        total = total * kept + tl.sum(weight, axis=0)
        top = higher
    acc = acc / tl.where(total == 0.0, 1.0, total)
    found = (top + tl.log2(total)) * LOG_2

    head = row % HEADS
    query = row // HEADS % queries
    batch = row // HEADS // queries
    at = out + batch * out_batch + query * out_row + head * out_head + lane.to(tl.int64) * out_lane
    tl.store(at, acc.to(out.dtype.element_ty), mask=lane < E)
    at_lse = (batch * HEADS + head) * queries + query
    if lse is not None:
        tl.store(lse + at_lse, found)
    if logsumexp is not None:
        tl.store(logsumexp + at_lse, found)


def split_count(programs: int, queries: int, visible: int, block: int, wanted: int, few: int = 0) -> int:
    """How many programs share the ``visible`` keys of a tile, so that all ``programs`` tiles come to those wanted.

    Fewer than ``few`` are halved: what they would read faster does not make up for the merge.
    """
    if visible <= min(_FEWEST_OF_MANY, 2 * queries):
        return 1
    parts = wanted // programs
    if parts < few:
        parts //= 2
    return max(1, min(parts, visible // (block * _FEWEST_BLOCKS)))


@dataclass(frozen=True, slots=True)
class Parts:
    """Memory for what programs that share a tile's keys leave."""

    values: Tensor
    shares: Tensor

    @classmethod
    def of(cls, out: Tensor, count: int) -> Parts:
        """For ``count`` parts of ``out (B, S, H, E)``."""
        values = out.new_empty((count, *out.shape), dtype=torch.float32)
        return cls(values, out.new_empty((count, *out.shape[:-1]), dtype=torch.float32))

    def merge(
        self,
        out: Tensor,
        lse: Tensor | None,
        logsumexp: Tensor | None,
        ends: Tensor | None = None,
        few_queries: int = 0,
    ) -> None:
        """Adds the parts up; of sequences with these ``ends`` not for those of up to ``few_queries`` queries."""
        count, B, S, H, E = self.values.shape
        how = configuration("attention.merge", out.device, E)
        launch(
            _merge,
            grid_of(B * S * H),
            self.values,
            self.shares,
            out,
            lse,
            logsumexp,
            B,
            S,
            count,
            *out.stride(),
            ends,
            None if ends is None else len(ends) - 1,
            None if ends is None else few_queries,
            HEADS=H,
            E=E,
            BLOCK_E=how.columns,
            **{**how.options, "PARTS": min(how.options["PARTS"], 1 << (count - 1).bit_length())},
        )
