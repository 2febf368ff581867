"""Boxes of sizes: for each dimension the least and the greatest; a dimension that is not named may have any size."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

# Tensors have sizes of 64 bits.
LARGEST = (1 << 63) - 1
Box = Mapping[str, tuple[int, int]]
_ANY = (0, LARGEST)


def plain(box: Box) -> dict[str, tuple[int, int]]:
    """The box without the dimensions that may have any size."""
    return {name: bounds for name, bounds in box.items() if bounds != _ANY}


def common(one: Box, other: Box) -> Box | None:
    """The sizes that lie in both boxes; None where there are none."""
    found: dict[str, tuple[int, int]] = {}
    for name in {**one, **other}:
        (low, high), (least, most) = one.get(name, _ANY), other.get(name, _ANY)
        low, high = max(low, least), min(high, most)
        if low > high:
            return None
        found[name] = (low, high)
    return found


def without(box: Box, taken: Iterable[Box]) -> list[Box]:
    """Boxes, apart from each other, of the sizes that lie in ``box`` and in none of those ``taken``."""
    left = [box]
    for other in taken:
        left = [piece for one in left for piece in _without(one, other)]
    return [plain(one) for one in left]


def _without(box: Box, other: Box) -> Iterator[Box]:
    shared = common(box, other)
    if shared is None:
        yield box
        return
    rest = dict(box)
    for name in shared:
        (low, high), (least, most) = rest.get(name, _ANY), shared[name]
        if low < least:
            yield {**rest, name: (low, least - 1)}
        if most < high:
            yield {**rest, name: (most + 1, high)}
        rest[name] = shared[name]


def overlapping(boxes: Sequence[Box], labels: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The pairs of boxes of different labels that share sizes, by their places; of each box the first such pair.

    Sets of boxes are bits of an integer: thousands of boxes take milliseconds, wherever they lie.
    """
    together = [(1 << len(boxes)) - 1] * len(boxes)
    for name in {name for box in boxes for name in box}:
        bounds = [box.get(name, _ANY) for box in boxes]
        begun, lows = _growing([low for low, _ in bounds])
        ended, highs = _growing([high for _, high in bounds])
        for i, (low, high) in enumerate(bounds):
            # those that have begun where it ends, less those that have ended where it begins
            together[i] &= begun[bisect_right(lows, high)] & ~ended[bisect_left(highs, low)]
    labelled: dict[str, int] = {}
    for i, label in enumerate(labels):
        labelled[label] = labelled.get(label, 0) | (1 << i)
    for i, label in enumerate(labels):
        others = together[i] & ~labelled[label] & ((1 << i) - 1)
        if others:
            yield (others & -others).bit_length() - 1, i


def _growing(values: Sequence[int]) -> tuple[list[int], list[int]]:
    """Of the first n of the sorted values, for each n, the set of their places; and the sorted values."""
    order = sorted(range(len(values)), key=values.__getitem__)
    sets = [0]
    for i in order:
        sets.append(sets[-1] | (1 << i))
    return sets, [values[i] for i in order]
