"""Queries shared among programs where blocks of keys are few: each leaves its sums, and a second launch adds them up.

With few key heads a block of keys has the queries of many heads to go through, and there are not enough programs for
the chip. The steps of each of its loops, over all heads, are shared: parts need no particular number of heads, and how
many parts there are is a number of the launch. Sums are float32, added in the order of the parts and rounded once, so
that equal calls give equal bits.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import cdiv, grid_of, launch, program_index
from portakernel_plugins.triton.attention.scores import Scoring
from portakernel_plugins.triton.launching.configurations import configuration

# Of all heads, for which a part is worth its sums: they are written and read once, 8 bytes for 4 * 1024 multiplications
# and additions. An H100 does four times as many in that time.
_FEWEST_QUERIES = 1024
# Of sums to be added up: as many as were measured.
_MOST_PARTS = 16


@triton.jit
def share_of(steps, part, parts):
    """Where a part of so many ``steps`` begins and ends; the last parts may have none."""
    each = tl.cdiv(steps, parts)
    first = tl.minimum(part * each, steps)
    return first, tl.minimum(first + each, steps)


@triton.jit
def _add_up(sums, gradient, at, count, parts, factor):
    """``gradient``: ``factor`` times the sum over ``parts`` of ``sums``, of ``count`` elements each."""
    inside = at < count
    total = tl.load(sums + at, mask=inside, other=0.0)
    for _ in range(1, parts):
        sums += count
        total += tl.load(sums + at, mask=inside, other=0.0)
    tl.store(gradient + at, (total * factor).to(gradient.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "parts"])
def _add_parts(
    sums,  # (parts, B, T, G, WIDTH) float32
    gradient,  # (B, T, G, WIDTH), contiguous
    other_sums,  # the same of the other gradient, where both are asked for
    other_gradient,
    rows,  # B * T * G
    parts,
    factor,
    other_factor,
    WIDTH: tl.constexpr,
    OTHER_WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    at = program_index() * BLOCK + tl.arange(0, BLOCK)
    rows = tl.cast(rows, tl.int64)
    _add_up(sums, gradient, at, rows * WIDTH, parts, factor)
    if other_sums is not None:
        _add_up(other_sums, other_gradient, at, rows * OTHER_WIDTH, parts, other_factor)


def part_count(programs: int, wanted: int, block: int, queries: int, heads: int, how: Scoring, ragged: bool) -> int:
    """How many programs share the queries of each block of keys, where there are ``programs`` and ``wanted`` fit.

    ``block`` keys are seen by some of so many ``queries`` of each of ``heads``. Where some blocks have far more to do
    than others, as under a causal mask or of sequences that are ``ragged``, the one with most has twice the mean: a
    quarter of a program's share is then the most that one may have.
    """
    uneven = ragged or (how.left < 0) != (how.right < 0)
    parts = (4 * wanted + programs // 2) // programs if uneven else wanted // programs
    return max(1, min(parts, _MOST_PARTS, how.seeing(block, queries) * heads // _FEWEST_QUERIES))


@dataclass(frozen=True, slots=True)
class Sums:
    """Memory for what programs that share the queries of a block of keys leave, of gradients that are asked for."""

    count: int
    k: Tensor | None
    v: Tensor | None

    @classmethod
    def of(cls, grad_k: Tensor | None, grad_v: Tensor | None, count: int) -> Sums:
        """For ``count`` parts."""
        both = (None if x is None else x.new_empty((count, *x.shape), dtype=torch.float32) for x in (grad_k, grad_v))
        return cls(count, *both)

    def add_up(self, grad_k: Tensor | None, grad_v: Tensor | None, factor: float) -> None:
        """Writes both gradients, contiguous; that for keys is ``factor`` times its sum."""
        given = ((self.k, grad_k, factor), (self.v, grad_v, 1.0))
        (sums, gradient, by), *others = [(x, y, by) for x, y, by in given if x is not None and y is not None]
        other_sums, other_gradient, other_by = others[0] if others else (None, None, 1.0)
        width, other_width = gradient.shape[-1], 0 if other_gradient is None else other_gradient.shape[-1]
        rows = gradient.numel() // width
        how = configuration("attention.sum_of_parts", gradient.device, max(width, other_width))
        launch(
            _add_parts,
            grid_of(cdiv(rows * max(width, other_width), how.elements)),
            sums,
            gradient,
            other_sums,
            other_gradient,
            rows,
            self.count,
            by,
            other_by,
            WIDTH=width,
            OTHER_WIDTH=other_width,
            BLOCK=how.elements,
            **how.options,
        )
