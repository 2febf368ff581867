"""Measured points as pieces: boxes of sizes in which one kernel was the best wherever it was measured.

Along some dimensions in turn neighbours with one winner make one box, where they are at most four times apart and no
point between them says otherwise. What lies between others belongs to nobody: nothing is carried beyond what was
measured.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from portakernel.tuning.ranking import Bounds

# How far apart, by ratio, neighbours may be whose winner is taken to hold between them.
FARTHEST = 4

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Point:
    """A measured size and its winner, empty where nothing was decided; ``ratio`` is its time over the default's.

    ``ready`` is who wins among those that need not be built, where the winner has to be.
    """

    dims: Mapping[str, int]
    winner: str
    why: str = ""
    ratio: Bounds | None = None
    ready: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of sizes, both ends included, and the points in it that made it."""

    bounds: Mapping[str, Range]
    points: tuple[Point, ...]

    @property
    def winner(self) -> str:
        """The kernel that was the best at every one of its points."""
        return self.points[0].winner

    @property
    def ready(self) -> str:
        """Who was it at every one of them among those that need not be built."""
        return self.points[0].ready

    def covers(self, dims: Mapping[str, int], but: str = "") -> bool:
        """Whether sizes lie within it, whatever the one called ``but`` is."""
        return all(low <= dims[name] <= high for name, (low, high) in self.bounds.items() if name != but)


def pieces(points: Sequence[Point], widths: Collection[str] = ()) -> tuple[Piece, ...]:
    """The boxes of points that have the same dimensions, the same for the same points in any order.

    ``widths`` are dimensions in which nothing is taken to hold between points: how wide rows are decides how they can
    be read, and a width that 8 does not divide lies between two that it divides.
    """
    names = sorted(points[0].dims) if points else []
    ordered = sorted(points, key=lambda point: [point.dims[name] for name in names])
    found = [Piece({name: (point.dims[name], point.dims[name]) for name in names}, (point,)) for point in ordered]
    for name in (name for name in names if name not in widths):
        found = _along(name, found, _Places(name, ordered))
    return tuple(found)


class _Places:
    """Points by their size in one dimension."""

    def __init__(self, name: str, points: Sequence[Point]) -> None:
        self._points = sorted(points, key=lambda point: point.dims[name])
        self._sizes = [point.dims[name] for point in self._points]

    def between(self, low: int, high: int) -> Sequence[Point]:
        """Those whose size lies between two, neither included."""
        return self._points[bisect_right(self._sizes, low) : bisect_left(self._sizes, high)]


def _along(name: str, boxes: Sequence[Piece], places: _Places) -> list[Piece]:
    """The boxes, those made one that are neighbours in ``name`` and alike in all other dimensions."""
    rows: dict[tuple[tuple[str, Range], ...], list[Piece]] = {}
    for box in boxes:
        rows.setdefault(tuple((n, r) for n, r in box.bounds.items() if n != name), []).append(box)
    found: list[Piece] = []
    for row in rows.values():
        row.sort(key=lambda box: box.bounds[name])
        last = row[0]
        for box in row[1:]:
            if _joins(name, last, box, places):
                bounds = {**last.bounds, name: (last.bounds[name][0], box.bounds[name][1])}
                last = Piece(bounds, (*last.points, *box.points))
            else:
                found.append(last)
                last = box
        found.append(last)
    return found


def _joins(name: str, low: Piece, high: Piece, places: _Places) -> bool:
    (_, end), (begin, _) = low.bounds[name], high.bounds[name]
    won = low.winner, low.ready
    if not low.winner or won != (high.winner, high.ready) or begin > FARTHEST * end:
        return False
    inside = (point for point in places.between(end, begin) if low.covers(point.dims, but=name))
    return all((point.winner, point.ready) == won for point in inside)


def gaps(found: Sequence[Piece], dims: Mapping[str, int]) -> Iterator[str]:
    """Why nothing that was measured holds for these sizes, dimension by dimension, where boxes differ in that alone."""
    for name, size in dims.items():
        row = sorted((p for p in found if name in p.bounds and p.covers(dims, but=name)), key=lambda p: p.bounds[name])
        if not row:
            continue
        sizes = [(piece.bounds[name], piece.winner or "nobody") for piece in row]
        for ((_, end), one), ((begin, _), other) in pairwise(sizes):
            if end < size < begin:
                apart = f"are more than {FARTHEST} times apart" if begin > FARTHEST * end else "disagree"
                yield f"not measured: {name} {end} ({one}) and {begin} ({other}) {apart}"
        if size < sizes[0][0][0]:
            yield f"not measured: {name} {size} is less than {sizes[0][0][0]}, the least that was"
        elif size > (most := max(end for (_, end), _ in sizes)):
            yield f"not measured: {name} {size} is more than {most}, the most that was"
