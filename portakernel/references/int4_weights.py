"""Four-bit weights taken apart: nibbles, zeros, scales and groups, of any layout and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from portakernel.errors import ArgumentValueError
from portakernel.words.int4_layouts import INT4_LAYOUTS, WORD, Int4Layout

# What is subtracted where no zeros are stored.
MIDDLE = 8


def layout_called(name: str) -> Int4Layout:
    """The layout's table."""
    return INT4_LAYOUTS[name]


def _unpacked(words: Tensor, table: tuple[tuple[int, int], ...]) -> Tensor:
    """The elements ``(..., elements)`` of runs of words ``(..., words)``, from 0 to 15."""
    places = torch.tensor([word for word, _ in table], device=words.device)
    shifts = torch.tensor([4 * nibble for _, nibble in table], device=words.device, dtype=torch.int32)
    return ((words.index_select(-1, places) >> shifts) & 15).to(torch.uint8)


def _packed(elements: Tensor, table: tuple[tuple[int, int], ...]) -> Tensor:
    """The inverse of ``_unpacked``."""
    count = 1 + max(word for word, _ in table)
    words = torch.zeros((*elements.shape[:-1], count), dtype=torch.int32, device=elements.device)
    for nibble in range(WORD):
        held = sorted((word, place) for place, (word, at) in enumerate(table) if at == nibble)
        places = torch.tensor([place for _, place in held], device=elements.device)
        words |= elements.index_select(-1, places).int() << (4 * nibble)
    return words


def nibbles(weight: Tensor, layout: str, columns: int) -> Tensor:
    """``q``: ``(columns, N)``, uint8 from 0 to 15, of a weight of so many columns K in memory's order of them."""
    known = layout_called(layout)
    runs = (weight.t() if known.turned else weight).unsqueeze(-1) if known.words == 1 else weight
    elements = _unpacked(runs, known.table)
    if known.along == "N":
        return elements.transpose(0, 1).flatten(1)
    return elements.transpose(1, 2).flatten(0, 1)[:columns]


def weight_of(q: Tensor, layout: str) -> Tensor:
    """The words of ``q: (K, N)`` in a layout; what pads K is zero.

    Raises:
        ArgumentValueError: a layout without room for a part of a word, and K or N of no whole words.
    """
    known, (K, N) = layout_called(layout), q.shape
    span, size, name = len(known.table), *((K, "K") if known.along == "K" else (N, "N"))
    if size % span and not known.packed:
        text = f"{layout} packs {span} elements of {name} into a word; this weight has {name} = {size}"
        raise ArgumentValueError(f"pack_int4: {text}: its multiples are accepted, or a packed layout")
    if known.along == "N":
        runs = _packed(q.reshape(K, N // span, span).transpose(0, 1), known.table)
    else:
        padded = torch.nn.functional.pad(q, (0, 0, 0, -K % span))
        runs = _packed(padded.reshape(len(padded) // span, span, N).transpose(1, 2), known.table)
    runs = runs.squeeze(-1) if known.words == 1 else runs
    return (runs.t() if known.turned else runs).contiguous()


def stored_zeros(zeros: Tensor, layout: str) -> Tensor:
    """Zeros as they are stored, ``(groups, N)``, uint8."""
    known = layout_called(layout)
    if known.packed:
        return zeros
    words = (zeros.t() if known.turned_scales else zeros).unsqueeze(-1)
    return _unpacked(words, tuple((0, nibble) for nibble in known.zeros)).flatten(1)


def zeros_of(stored: Tensor, layout: str) -> Tensor:
    """The inverse of ``stored_zeros``.

    Raises:
        ArgumentValueError: N is of no whole words.
    """
    known, (groups, N) = layout_called(layout), stored.shape
    if known.packed:
        return stored.contiguous()
    if N % WORD:
        text = f"{layout} keeps the zeros of {WORD} columns of N in a word; this weight has N = {N}"
        raise ArgumentValueError(f"pack_int4: {text}: its multiples are accepted, a packed layout, or zero='none'")
    words = _packed(stored.reshape(groups, N // WORD, WORD), tuple((0, nibble) for nibble in known.zeros)).squeeze(-1)
    return (words.t() if known.turned_scales else words).contiguous()


def scales_of(scales: Tensor, layout: str) -> Tensor:
    """Scales ``(groups, N)`` as a layout has them, or its own as those: a view."""
    return scales.t() if layout_called(layout).turned_scales else scales


def group_size(columns: int, group: int, groups: int) -> int:
    """How many columns a group has where these are in order, one at least.

    Raises:
        ArgumentValueError: there are columns, and no groups.
    """
    if columns and not groups:
        raise ArgumentValueError(f"scales has no groups, but there are K = {columns} columns; give one group at least")
    return max(1, group if group > 0 else columns if group < 0 else -(-columns // max(groups, 1)))


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column of x each column of a weight in memory is, None for its own place, and the group of each."""

    places: Tensor | None
    groups: Tensor

    @classmethod
    def of(cls, order: Tensor | None, layout: str, group: int, columns: int, scales: Tensor) -> Columns:
        """Of a weight in ``layout`` with these ``scales``: ``(groups, N)``."""
        size = group_size(columns, group, len(scales))
        groups = torch.arange(columns, device=scales.device) // size
        if order is None:
            return cls(None, groups)
        if not layout_called(layout).packed:
            return cls(None, order.long())
        return cls(order[0].long(), order[1].long()) if order.dim() == 2 else cls(order.long(), groups)


def int4_parts(
    weight: Tensor, scales: Tensor, zeros: Tensor | None, *, columns: int, layout: str, zero: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``q``: (N, columns), uint8; scales (groups, N); what is subtracted, (groups, N), uint8, or None where it is 8.

    For plugins that pack a weight for somebody else's kernel; without ``order``, of one of whose layouts columns would
    be sorted.
    """
    q = nibbles(weight, layout, columns).t().contiguous()
    if zeros is None or zero == "none":
        return q, scales_of(scales, layout), None
    subtracted = stored_zeros(zeros, layout)
    return q, scales_of(scales, layout), subtracted + 1 if zero == "stored_plus_one" else subtracted
