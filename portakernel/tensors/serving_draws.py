"""What serving ops are given, drawn: lengths, page tables, slots, experts, lse; and NaN where nobody may look.

On the CPU, from one source of random numbers: for the conformance kit and for benchmarks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Generator, Tensor

from portakernel.contract.case import Draw

# The kinds of ``Draw`` that ``draw_serving`` draws.
SERVING = ("lengths", "pages", "slots", "experts")
# One length in so many is 0, one is the whole capacity; one slot in so many is none; one lse is minus infinity.
_ONE_IN = 5
# An lse that is far from others, and how far: beyond what a weight in float32 can tell from 0, twice over in a pair.
_FAR = 100.0


def depth(draw: Draw) -> int:
    """When an argument is drawn: lengths first (0), then the pages they need (1), then what the pages hold (2)."""
    return 2 if draw.poison else 1 if draw.lengths or draw.turned else 0


def draw_serving(
    draw: Draw,
    shape: Sequence[int],
    below: int,
    dims: Mapping[str, int],
    earlier: Mapping[str, Tensor],
    source: Generator,
) -> Tensor:
    """The elements of an argument of one of these kinds; ``earlier`` has those of the arguments that it depends on."""
    match draw.kind:
        case "lengths":
            return draw_lengths(tuple(shape), below, source)
        case "slots":
            return draw_slots(tuple(shape), below, source)
        case "experts":
            return draw_experts(tuple(shape), below, source, absent=draw.absent)
        case _:
            return draw_pages(earlier[draw.lengths].cpu(), tuple(shape), below, dims[draw.page], source)


def draw_lengths(shape: tuple[int, ...], most: int, source: Generator) -> Tensor:
    """Lengths from 0 to ``most``; one in five is 0, one in five ``most``."""
    drawn = torch.randint(most + 1, shape, generator=source)
    kinds = torch.randint(_ONE_IN, shape, generator=source)
    return drawn.masked_fill(kinds == 0, 0).masked_fill(kinds == 1, most)


def draw_pages(lengths: Tensor, shape: tuple[int, ...], pages: int, page: int, source: Generator) -> Tensor:
    """A page table ``(B, W)`` for sequences of these ``lengths``, of ``pages`` pages of ``page`` tokens.

    No page is two sequences', unless there are too few: then any may be any's, as prefixes are shared. What a sequence
    does not need is -1, ``pages``, or a page that is nobody's, where there is one. Either argument may stand for all
    sequences with one row.

    Raises:
        ValueError: the sequences need more pages than a row holds, or there are none.
    """
    rows, width = shape
    longest = [max(lengths.tolist(), default=0)] if rows == 1 else lengths.expand(rows).tolist()
    needed = [-(-length // page) for length in longest[:rows]]
    if any(count > (width if pages else 0) for count in needed):
        text = f"sequences of {max(longest)} tokens and less need {max(needed)} pages of {page} in a row"
        raise ValueError(f"{text}; there are {pages}, {width} in a row")
    if sum(needed) > pages:
        order = torch.randint(pages, (sum(needed),), generator=source)
    else:
        order = torch.randperm(pages, generator=source)
    nobodys = order[sum(needed) :].tolist() or [-1]
    beyond = torch.tensor([-1, pages, nobodys[0]])
    table = beyond[torch.randint(3, (rows, width), generator=source)]
    first = 0
    for row, count in enumerate(needed):
        table[row, :count] = order[first : first + count]
        first += count
    return table


def draw_slots(shape: tuple[int, ...], slots: int, source: Generator) -> Tensor:
    """Different places below ``slots``; one in five is -1, and as many as there are no places for."""
    count = math.prod(shape)
    drawn = torch.full((count,), -1)
    places = torch.randperm(slots, generator=source)[:count]
    drawn[: len(places)] = places
    drawn = drawn[torch.randperm(count, generator=source)]
    return drawn.masked_fill(torch.randint(_ONE_IN, (count,), generator=source) == 0, -1).reshape(shape)


def draw_experts(shape: tuple[int, ...], experts: int, source: Generator, *, absent: bool = False) -> Tensor:
    """Different experts below ``experts`` in each row; where there is a choice, no row picks one of the last quarter.

    Where some may be ``absent``, one in five is -1, and a row that picks more than there are has some twice.

    Raises:
        ValueError: a row picks more than there are, and none may be absent.
    """
    picked = shape[-1]
    if picked > experts and not absent:
        raise ValueError(f"each row picks {picked} of {experts} experts; give as many at least")
    among = max(min(picked, experts), experts - experts // 4)
    drawn = torch.rand((*shape[:-1], max(picked, among)), generator=source).argsort(-1)[..., :picked] % max(among, 1)
    if absent:
        drawn = drawn.masked_fill(torch.randint(_ONE_IN, shape, generator=source) == 0, -1)
    return drawn.contiguous()


def routed_experts(shape: tuple[int, ...], experts: int, source: Generator) -> Tensor:
    """What an even router picks: different experts below ``experts`` in each row, each as likely; as many at least."""
    return torch.rand((*shape[:-1], experts), generator=source).argsort(-1)[..., : shape[-1]].contiguous()


def draw_lse(shape: tuple[int, ...], source: Generator) -> Tensor:
    """Logarithms, in float64, a few around 0: one in five minus infinity, one 100 up or down, one of the same value."""
    drawn = 4 * torch.randn(shape, dtype=torch.float64, generator=source)
    kinds = torch.randint(2 * _ONE_IN, shape, generator=source)
    drawn = drawn.masked_fill(kinds < 2, -math.inf)
    drawn = torch.where(kinds == 2, drawn + _FAR, torch.where(kinds == 3, drawn - _FAR, drawn))
    return torch.where((kinds == 4) | (kinds == 5), 1.0, drawn)


def alive(lse: Tensor, named: Sequence[str], sizes: Sequence[str], shape: Sequence[int]) -> Tensor:
    """Of what elements of an argument of these ``sizes`` the ``lse``, its own sizes ``named``, is above minus infinity.

    ``shape`` is how the argument is stored: what is stored once for all is alive where one of them is.
    """
    kept = [size for size in sizes if size in named]
    seen = (lse > -math.inf).permute([list(named).index(size) for size in kept])
    for place, size in enumerate(sizes):
        if size not in named:
            seen = seen.unsqueeze(place)
        elif shape[place] == 1:
            seen = seen.any(place, keepdim=True)
    return seen


def reached(table: Tensor, lengths: Tensor, pages: int, page: int) -> Tensor:
    """Which tokens of which pages ``(pages, page)`` a sequence reaches; either argument may be one row for all."""
    count = max(len(table), len(lengths)) if len(table) and len(lengths) else 0
    table, lengths = table.expand(count, -1).long(), lengths.expand(count).long()
    held = (lengths[:, None] - page * torch.arange(table.shape[1])).clamp(0, page)
    most = torch.zeros(pages, dtype=torch.int64).scatter_reduce_(0, table[held > 0], held[held > 0], "amax")
    return torch.arange(page) < most[:, None]


def poisoned(cache: Tensor, seen: Tensor) -> Tensor:
    """``cache``, made of floats, NaN where nobody may look; ``seen`` has its first dimensions, or is of its shape."""
    return cache.masked_fill(~seen.reshape(*seen.shape, *[1] * (cache.dim() - seen.dim())), math.nan)
