"""The dimensions of a drawn request: ones that the op admits, at the levels wished for, of tensors small enough."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from portakernel.contract import Contract
from portakernel.contract.case import Case
from portakernel.contract.shape_binding import unfit
from portakernel.contract.sizes import parse_size
from portakernel.words.dtypes import DTYPES
from portakernel_kit.conformance.claims import elements, in_tiles, piece_counts, possible
from portakernel_kit.conformance.drawn.levels import LARGE, MOST_LEADING, RANK, SIZES, size_level
from portakernel_kit.conformance.op_faults import OpFault

# The truth is computed on the CPU, in float64: up to here that takes some milliseconds, of one large size some more.
# One request in ten has several blocks of what kernels take at once on a CPU.
_MOST_ELEMENTS = (1 << 11,) * 3 + (1 << 14,) * 3 + (1 << 16,) * 3 + (1 << 19,)
_MOST_FLOPS = 50_000_000
_MOST_OF_LARGE, _MOST_FLOPS_OF_LARGE = 1 << 20, 200_000_000
_LARGEST_BITS = 12.0
# What a call moves of inputs and results, for each element of the largest that there may be.
_BYTES = 16
# And what it computes, in a mode that bounds them: there each program takes its time, whose tile is seldom smaller.
_FLOPS, _TILE = 64, 16
# How many times what exact dimensions come to by themselves.
_FEW = 8
# A long row is few programs there, many small ones are many.
_SHARE_OF_ORDINARY = 4
# Vocabularies, contexts, rows of a table: what production has of one dimension.
_LARGE_BITS = 18.0
# Most dimensions of models are multiples of these, and what is next to one is the edge of a tile.
_STEPS = (8, 8, 16, 64, 128)
# So often dimensions are drawn again before a wish for one is given up.
_PATIENCE = 25
_MOST_TRIES = 20_000


@dataclass(slots=True)
class _Sizes:
    """The dimensions of one request; ``tops`` are the logarithms that they stay below."""

    contract: Contract
    wishes: dict[str, str]
    chance: random.Random
    tops: dict[str, float]
    dims: dict[str, int]
    exact: Mapping[str, int]

    def again(self, name: str) -> None:
        """Another size of this dimension, where it is not an exact one."""
        if name in self.exact:
            self.dims[name] = self.exact[name]
            return
        wish = self.wishes.get(name, "")
        if wish == "0" and not _may_be_empty(self.contract, name):
            wish = "1"
        self.dims[name] = _size(self.chance, self.tops[name], wish)

    def make_hold(self, failing: list[str]) -> None:
        """Draws again the dimensions of what a requirement does not admit, often as multiples of each other."""
        for name in failing:
            self.again(name)
        if len(failing) == 2 and self.chance.random() < 0.8:
            multiple = self.dims[failing[1]] * self.chance.randint(1, 8)
            if multiple <= LARGE and self.wishes.get(failing[0], "") in ("", size_level(multiple)):
                self.dims[failing[0]] = multiple

    def shrink(self, bits: float) -> None:
        """A smaller size of one dimension, of ``bits`` too many if any: of what is not wished to be large first."""
        open_ones = [name for name in self.dims if name not in self.exact]
        ordinary = [name for name in open_ones if not self.wishes.get(name, "").startswith("large")]
        small = all(self.tops[name] <= 1.0 or self.dims[name] <= 1 for name in ordinary)
        names = open_ones if small or not ordinary else ordinary
        name = max(names, key=lambda n: (self.dims[n] if bits else 1, self.chance.random()))
        self.tops[name] = max(self.tops[name] - max(bits / 3, 0.5), 1.0)
        self.again(name)


def sized(
    contract: Contract,
    case: Case,
    dtypes: Mapping[str, str],
    wishes: Mapping[str, str],
    chance: random.Random,
    most: int | None,
    exact: Mapping[str, int],
) -> Case:
    """``case`` with dimensions, ``exact`` ones among them, of tensors of up to ``most`` elements.

    What of the wishes for them the op does not admit is not fulfilled.

    Raises:
        OpFault: no dimensions could be found that the op admits.
    """
    made = contract.at(case.parameters)
    leading = {tensor.leading for tensor in made.tensors if tensor.leading}
    large = any(wishes.get(name, "").startswith("large") for name in contract.dims)
    up_to, flops = (_MOST_OF_LARGE, _MOST_FLOPS_OF_LARGE) if large else (chance.choice(_MOST_ELEMENTS), _MOST_FLOPS)
    tile = 1
    if most is not None:
        up_to = min(up_to, most if large else most // _SHARE_OF_ORDINARY)
        flops, tile = min(flops, _FLOPS * most), _TILE
    # not the same ones are the large ones each time
    tops = {name: chance.uniform(1.0, _LARGEST_BITS) for name in contract.dims}
    tops |= {name: _LARGEST_BITS for name in tops if wishes.get(name, "").startswith("large")}
    sizes = _Sizes(contract, {n: wishes[n] for n in contract.dims if n in wishes}, chance, tops, {}, exact)
    for name in contract.dims:
        sizes.again(name)
    tries = 0
    while True:
        tries += 1
        if tries > _MOST_TRIES:
            raise OpFault(f"{contract.op}: no dimensions that its requirements admit came up in {_MOST_TRIES} draws")
        if tries % _PATIENCE == 0 and sizes.wishes:
            del sizes.wishes[chance.choice(list(sizes.wishes))]
        if failing := _failing(contract, sizes.dims, contract.values(case.parameters)):
            sizes.make_hold(failing)
            continue
        dims = sizes.dims
        rows = next((dims[name] for name in leading), 1)
        fixed = {name: size for name, size in dims.items() if name not in leading}
        shaped = replace(case, dims=fixed, leading=_split(rows, wishes.get(RANK), chance) if leading else ())
        bits = _bits_too_many(contract, shaped, dims, dtypes, up_to, flops, tile, exact)
        if not bits and possible(contract, shaped):
            return shaped
        sizes.shrink(bits)


@cache
def _may_be_empty(contract: Contract, name: str) -> bool:
    """Whether some case of the op says what is true where the dimension is 0."""
    leads = any(t.leading == name for t in contract.at(contract.values()).tensors)
    return any(case.dims.get(name) == 0 or (leads and 0 in case.leading) for case in contract.cases)


def _size(chance: random.Random, top: float, level: str) -> int:
    """A size of this level, up to ``2**top`` unless it is a large one; of any level where none is wished for."""
    if not level:
        level = chance.choice(SIZES[1:-2])
    if level in ("0", "1"):
        return int(level)
    if level.startswith("large"):
        # wished for by name; where even that is too large, the smallest of them
        size = max(
            int(2 ** chance.uniform(math.log2(LARGE), max(_LARGE_BITS - (_LARGEST_BITS - top), 12.1))), LARGE + 8
        )
        return size // 8 * 8 if level.endswith("8 * k") else size // 8 * 8 + chance.randint(1, 7)
    power = 1 << chance.randint(1, max(int(top), 2))
    if level in ("2**k", "2**k - 1", "2**k + 1"):
        return power + {"2**k": 0, "2**k - 1": -1, "2**k + 1": 1}[level]
    size = min(int(2 ** chance.uniform(0.0, max(top, 4.7))), LARGE - 64)
    step = chance.choice(_STEPS)
    if level == "8 * k":
        size = max(size // step * step, 3 * step)
        return size if size_level(size) == level else size + step  # a power of two and a step is none
    beside = size // step * step + chance.choice((-1, 1))
    if chance.random() < 0.3 and size_level(beside) == level:
        return beside
    size = max(size // 2 * 2 + 1, 11)
    while size_level(size) != level:
        size += 2
    return size


def _failing(contract: Contract, dims: Mapping[str, int], values: Mapping[str, Any]) -> list[str]:
    """The dimensions of a requirement that does not hold, or of pieces or indices that cannot be."""
    for condition in contract.requirements:
        if names := unfit(condition, dims, values):
            return [name for name in names if name in dims]
    for tensor in contract.tensors:
        kind = tensor.draw.kind
        if kind not in ("segments", "index"):
            continue
        below = max(tensor.draw.bounds, key=lambda name: dims.get(name, 0))
        count = parse_size(tensor.sizes[0].removeprefix("*")).name
        # what belongs to no piece has no result, and of nothing there is no index
        empty, full = (count, below) if kind == "segments" else (below, count)
        if empty is not None and full is not None and dims[empty] == 0 and dims[full] > 0:
            return [empty, full]
    return []


def _bits_too_many(
    contract: Contract,
    case: Case,
    dims: Mapping[str, int],
    dtypes: Mapping[str, str],
    most: int,
    flops: int,
    tile: int,
    exact: Mapping[str, int],
) -> float:
    """The logarithm of how many times too large the request is; 0 where it is not, or is as small as can be."""
    # the formulas compute what masks hide too, and of an empty dimension the others are in memory all the same
    itemsizes = {name: DTYPES[dtype].itemsize for name, dtype in dtypes.items()}
    counts = (parameter.name for parameter in contract.parameters if parameter.usual)
    choosing = {name: case.parameters[name] for name in (*contract.choosers, *counts)}
    full = replace(
        case,
        leading=tuple(max(size, 1) for size in case.leading),
        dims={name: max(size, 1) for name, size in case.dims.items()},
    )
    values, filled = contract.values(choosing), {name: max(size, 1) for name, size in dims.items()}
    least = {name: exact.get(name, 1) for name in dims}
    bare_cost = contract.cost(in_tiles(contract, least, tile), itemsizes, values)
    flops = max(flops, bare_cost.flops)
    if exact:  # where those alone are as much, there is room for a few of all else
        bare = replace(full, leading=(1,) * len(full.leading), dims={name: least[name] for name in full.dims})
        most = max(most, _FEW * elements(contract, bare))
    times = elements(contract, full) / most
    # one of the pieces may be all there is
    for shares in (filled, {name: 1 if name in piece_counts(contract) else size for name, size in filled.items()}):
        cost = contract.cost(shares, itemsizes, values)
        tiles = contract.cost(in_tiles(contract, shares, tile), itemsizes, values)
        times = max(times, cost.bytes / max(_BYTES * most, 2 * bare_cost.bytes), tiles.flops / flops)
    return math.log2(times) if times > 1.0 else 0.0


def _split(rows: int, wish: str | None, chance: random.Random) -> tuple[int, ...]:
    """Leading dimensions whose product is ``rows``: as many as wished for, none at all of one row alone."""
    rank = int(wish) if wish is not None else chance.choice((0, 1, 1, 1, 2, 2, 3))
    if rank == 0:
        return () if rows == 1 else (rows,)
    sizes = [1] * rank
    left = rows
    for place in range(rank - 1):
        if left > 1:
            sizes[place] = chance.choice([size for size in range(1, min(left, 64) + 1) if left % size == 0])
            left //= sizes[place]
    sizes[-1] = left
    if rank == MOST_LEADING or chance.random() < 0.5:
        chance.shuffle(sizes)
    return tuple(sizes)
