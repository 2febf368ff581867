"""Which of the kinds of calls that are known is nearest to one that is not among them, and in what the two differ.

Only reasons ask: a call that is covered never comes here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portakernel.tuning.key import Kind

# More than these are another call altogether.
_MOST_TOLD = 4


@dataclass(frozen=True, slots=True)
class Known:
    """Calls of one kind whose sizes lie within bounds, both ends included; ``where`` is how reasons name them."""

    kind: Kind
    bounds: Mapping[str, tuple[int, int]]
    where: str


def nearest(known: Iterable[Known], kind: Kind, dims: Mapping[str, int]) -> str:
    """The nearest of those that are known, and the parts in which a call differs from it; empty where none is known.

    Fewer parts are nearer, then the sizes that lie less far outside of bounds, by their ratio.
    """
    judged = [(list(differences(one, kind, dims)), _distance(one.bounds, dims), one) for one in known]
    if not judged:
        return ""
    parts, _, one = min(judged, key=lambda found: (len(found[0]), found[1]))
    if not parts:
        return ""
    told, more = parts[:_MOST_TOLD], len(parts) - _MOST_TOLD
    return f"the nearest is {one.where}: {'; '.join(told)}" + (f"; and {more} parts more" if more > 0 else "")


def differences(known: Known, kind: Kind, dims: Mapping[str, int]) -> Iterator[str]:
    """The parts in which a call differs from what is known: what is there first, then the call's."""
    there = known.kind
    if there.phase != kind.phase:
        yield f"phase: {there.phase} there, this call {kind.phase}"
    for what, held, asked in (
        ("dtype of ", there.dtypes, kind.dtypes),
        ("scale format of ", there.formats, kind.formats),
        ("", there.features, kind.features),
    ):
        absent = "its default" if not what else "none"
        for name in sorted({*held, *asked}):
            if held.get(name) != asked.get(name):
                yield f"{what}{name}: {_told(held, name, absent)} there, this call {_told(asked, name, absent)}"
    yield from _layouts(there.layout, kind.layout)
    for name, (low, high) in known.bounds.items():
        size = dims.get(name)
        if size is None:
            yield f"{name} {low}..{high} there, this call leaves it open"
        elif not low <= size <= high:
            yield f"{name} {size} lies outside of {low}..{high}" if low != high else f"{name} {size} is not {low}"


def _layouts(there: Sequence[str], here: Sequence[str]) -> Iterator[str]:
    """Layouts that differ, by tensor; a kind's are the bounds that it does not keep."""
    tensors = dict.fromkeys(text.partition(".")[0] for text in (*there, *here))
    for name in tensors:
        of_tensor = [[text for text in texts if text.partition(".")[0] == name] for texts in (there, here)]
        if of_tensor[0] != of_tensor[1]:
            held, asked = (f"without {' and '.join(texts)}" if texts else "plain memory" for texts in of_tensor)
            yield f"layout of {name}: {held} there, this call {asked}"


def _told(values: Mapping[str, Any], name: str, absent: str) -> str:
    return str(values[name]) if name in values else absent


def _distance(bounds: Mapping[str, tuple[int, int]], dims: Mapping[str, int]) -> float:
    """How far sizes lie outside of bounds: the sum of the logarithms of their ratios."""
    total = 0.0
    for name, (low, high) in bounds.items():
        size = dims.get(name, low)
        ends = (low, size) if size < low else (size, high) if size > high else (1, 1)
        total += math.log((max(ends) + 1) / (min(ends) + 1))
    return total
