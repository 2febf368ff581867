"""What choosing by priorities, by measurements, or by a plan costs over the best kernel; pure numbers, no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portakernel.tuning.choices import Choices
from portakernel.tuning.record import Record, Verdict
from portakernel_kit.tune.winners import described

PRIORITIES = "priorities"
# Beyond these ratios a call counts as lost, and as harmed.
LOST, HARM = 1.05, 1.02


@dataclass(frozen=True, slots=True)
class Cell:
    """A call: the best time of a right kernel, and by way of choosing the kernel and its time over the best."""

    call: str
    best: str
    best_us: float
    chosen: Mapping[str, tuple[str, float]]

    def to_json(self) -> dict[str, Any]:
        """The call as JSON-ready data; stable."""
        chosen = {way: {"kernel": kernel, "over_best": ratio} for way, (kernel, ratio) in self.chosen.items()}
        return {"call": self.call, "best": self.best, "best_us": self.best_us, "chosen": chosen}


@dataclass(frozen=True, slots=True)
class Summary:
    """One way of choosing, over all calls.

    ``harm`` is how many calls it makes slower by over 2 % than priorities do; ``differs`` how many it serves otherwise.
    Of no call there is no mean, no worst and no share: None.
    """

    cells: int
    geometric_mean: float | None
    worst: float | None
    worst_call: str | None
    lost_share: float | None
    differs: int
    harm: int

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON-ready data; stable."""
        return {
            "cells": self.cells,
            "geometric_mean": self.geometric_mean,
            "worst": self.worst,
            "worst_call": self.worst_call,
            "beyond_5_percent": self.lost_share,
            "differs": self.differs,
            "harm": self.harm,
        }


def cell_of(record: Record, ways: Mapping[str, Choices]) -> Cell | None:
    """The call of a record; None where nothing right was timed, or not what priorities pick.

    A choice of a kernel that cannot serve the call, or was wrong, is passed over, as calls do.
    """
    times = {
        name: entry.us[1]
        for name, entry in record.kernels.items()
        if entry.us is not None and entry.verdict in (Verdict.RIGHT, Verdict.UNJUDGED)
    }
    if record.default not in times:
        return None
    best = min(times, key=lambda name: (times[name], name))
    chosen = {PRIORITIES: (record.default, times[record.default] / times[best])}
    for way, choices in ways.items():
        found = choices.find(record.key.kind, record.key.dims)
        kernel = found.kernel if found is not None and found.kernel in times else record.default
        chosen[way] = kernel, times[kernel] / times[best]
    return Cell(described(record.key), best, times[best], chosen)


def summary(cells: Sequence[Cell], way: str) -> Summary:
    """What one way of choosing comes to."""
    if not cells:
        return Summary(0, None, None, None, None, 0, 0)
    ratios = [(cell.chosen[way][1], cell.call) for cell in cells]
    worst, call = max(ratios)
    mean = math.exp(sum(math.log(ratio) for ratio, _ in ratios) / len(ratios))
    lost = sum(ratio > LOST for ratio, _ in ratios) / len(ratios)
    differs = [cell for cell in cells if cell.chosen[way][0] != cell.chosen[PRIORITIES][0]]
    harm = sum(cell.chosen[way][1] > HARM * cell.chosen[PRIORITIES][1] for cell in differs)
    return Summary(len(cells), mean, worst, call, lost, len(differs), harm)
