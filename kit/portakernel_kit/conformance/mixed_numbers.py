"""Rows that differ from each other, and blocks of a row that do: what one scale, one maximum or one sum has to hold."""

from __future__ import annotations

import math
from collections.abc import Set

import torch
from torch import Tensor

from portakernel.contract.case import Values
from portakernel.words.dtypes import parse_dtype

# A sum of 2**16 squares of numbers up to 2**55 is finite in float32, where ops accumulate.
LARGEST_EXPONENT = 55

_BLOCKS = (16, 32, 64, 128)
# How far another magnitude is from an ordinary row's: not far up, since ops promise few digits of small exponentials.
_DOWN, _UP = -8.0, 0.5
_PEAK = 3.0


def largest_exponent(dtype: str) -> int:
    """Where large numbers of the dtype end: at its largest, or where their squares can still be summed."""
    return min(math.frexp(torch.finfo(getattr(torch, dtype)).max)[1], LARGEST_EXPONENT)


def mixed(normal: Tensor, kinds: Set[Values], dtype: str, source: torch.Generator) -> Tensor:
    """``normal`` numbers made into rows of different kinds; extreme ones as far as ``kinds`` has them.

    A row is ordinary, or of another magnitude, or each of its blocks is, of which some are zeros; or it has a peak
    early or late, ties, or one number beside a block of zeros. Of a row in eight each extreme kind: large, tiny, zeros.
    """
    if normal.numel() == 0 or normal.dim() == 0:
        return normal
    shape, rows = normal.shape, normal.reshape(-1, normal.shape[-1])
    count, columns = rows.shape
    row, column = torch.arange(count).unsqueeze(-1), torch.arange(columns)

    def any_of(number: int) -> Tensor:
        return torch.randint(number, (count, 1), generator=source)

    def magnitudes(*of: int) -> Tensor:
        return torch.exp2(_DOWN + (_UP - _DOWN) * torch.rand(*of, dtype=torch.float64, generator=source))

    # the block's length and the peak's place are the row's own
    block = column // torch.tensor(_BLOCKS)[any_of(len(_BLOCKS))]
    by_block = magnitudes(count, columns) * (torch.rand(count, columns, generator=source) < 0.7)
    place = torch.where(any_of(2) == 0, any_of(min(columns, 8)), columns - 1 - any_of(min(columns, 8)))
    zero = torch.zeros_like(rows)
    made = [
        rows,
        rows * magnitudes(count, 1),
        rows * by_block[row, block],
        rows * torch.where(column == place, _PEAK, 1.0),
        # -0 among them
        rows.round(),
        torch.where((column == place) | (block != block[row, place]), rows, zero.copysign(rows)),
    ]
    limits, known = torch.finfo(getattr(torch, dtype)), parse_dtype(dtype)
    extreme: list[Tensor] = []
    if "large" in kinds:
        top = largest_exponent(dtype)
        extreme.append(rows.sign() * torch.exp2(top - 4 + 4 * rows.abs().tanh()).clamp(max=limits.max))
    if "tiny" in kinds:
        extreme.append(rows * 2.0 ** (known.min_exponent - known.mantissa_bits // 2))
    if "zeros" in kinds:
        extreme.append(zero.copysign(rows))
    kind = any_of(8)
    ordinary = torch.stack(made)[any_of(len(made)).squeeze(-1), row.squeeze(-1)]
    for number, values in enumerate(extreme):
        ordinary = torch.where(kind == number, values, ordinary)
    return ordinary.reshape(shape)
