"""Sums over rows: the programs' float32 shares of the parameters' gradients, added up and rounded once.

No atomics: each share is a sum of certain rows in order, and the shares are added in a fixed order, so that equal calls
on one device give equal bits. How the sum is grouped depends on M and on the number of multiprocessors.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import Held, cdiv, per_device, prepared
from portakernel_plugins.triton.launching.configurations import configuration


@triton.jit(do_not_specialize=["number"])
def _sum(
    shares: tl.tensor,  # (number, columns) float32
    more_shares: tl.tensor,  # of another gradient. None: there is one alone
    total: tl.tensor,
    more_total: tl.tensor,
    number: tl.tensor,
    columns: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    row = tl.arange(0, BLOCK_M).to(tl.int64)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_row = column < columns
    inside = (row < number)[:, None] & in_row[None, :]
    at = row[:, None] * columns + column[None, :]
    block = tl.load(shares + at, mask=inside, other=0.0)
    if more_shares is not None:
        more_block = tl.load(more_shares + at, mask=inside, other=0.0)
        tl.store(more_total + column, tl.sum(more_block, axis=0).to(more_total.dtype.element_ty), mask=in_row)
    tl.store(total + column, tl.sum(block, axis=0).to(total.dtype.element_ty), mask=in_row)


def summed_shares(shares: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """For each of one or two ``(number, N)`` float32 tensors of shares their sum ``(N,)`` in ``dtype``."""
    number, n = shares[0].shape
    if not number:
        return [torch.zeros(n, dtype=dtype, device=part.device) for part in shares]
    totals = [torch.empty(n, dtype=dtype, device=part.device) for part in shares]
    held, columns = _plan("weight_gradients.sum", shares[0].device, number)
    more, more_total = (shares[1], totals[1]) if len(shares) == 2 else (None, None)
    held.launch((cdiv(n, columns), 1), shares[0], more, totals[0], more_total, number, n)
    return totals


@per_device
def _plan(kernel: str, device: torch.device, number: int) -> tuple[Held, int]:
    """What adds up ``number`` shares, and how many columns a program takes."""
    how = configuration(kernel, device, number)
    return prepared(_sum, {"BLOCK_M": how.columns, "BLOCK_N": how.rows, **how.options}), how.rows
