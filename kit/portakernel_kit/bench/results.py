"""What was measured, as data: each kernel's time on each request, and what it is compared with; no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from portakernel_kit.bench.traffic import bytes_per_us_in_tb_per_s, flops_per_us_in_tflop_per_s

# What the picked kernel may take, over another's time, before a call counts as one that loses.
BEYOND = 1.05
# `timed`; `wrong`: differs from the reference; `failed`: raised, or could not be imported; `slow`: the reference, of
# which one call takes too much of the time that there is.
Status = Literal["timed", "wrong", "failed", "slow"]


@dataclass(frozen=True, slots=True)
class Latency:
    """The time of a launch: of the medians of all rounds the median, and the 20th and 80th percentile."""

    median_us: float
    p20_us: float
    p80_us: float
    rounds: int
    launches: int

    @classmethod
    def of(cls, rounds: Sequence[Sequence[float]]) -> Latency:
        """From the times of each round's launches."""
        medians = sorted(statistics.median(launches) for launches in rounds)
        return cls(
            statistics.median(medians),
            _percentile(medians, 0.2),
            _percentile(medians, 0.8),
            len(rounds),
            sum(map(len, rounds)),
        )

    def to_json(self) -> dict[str, Any]:
        """The latency as JSON-ready data; stable."""
        return {
            "latency_us": self.median_us,
            "p20_us": self.p20_us,
            "p80_us": self.p80_us,
            "rounds": self.rounds,
            "launches": self.launches,
        }


@dataclass(frozen=True, slots=True)
class Measured:
    """One kernel on one request: its time, or why there is none."""

    kernel: str
    status: Status
    latency: Latency | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One request with every kernel that can serve it.

    ``copy`` is the time of a plain copy of as many bytes; ``chosen`` the kernel that dispatch picks; ``rejected`` why
    others cannot serve, by kernel; ``checked_against`` whose results the kernels' were compared with, and
    ``reference_failure`` why they are not the reference's; ``foreign`` the plugins whose kernels are another package's.
    ``steps`` are microseconds of whole steps of training, by kernel, where the picked one and others are compared by
    them: PyTorch records its gradient, which spares the host what the device's own times do not show.
    """

    op: str
    case: str
    phase: str
    dtypes: Mapping[str, str]
    shapes: Mapping[str, Sequence[int]]
    values: Mapping[str, Any]
    bytes: int
    flops: int
    bound: Literal["memory", "compute"]
    chosen: str | None
    checked_against: str | None
    reference_failure: str
    copy: Latency | None
    kernels: tuple[Measured, ...]
    rejected: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict[str, Sequence[Mapping[str, Any]]])
    foreign: frozenset[str] = frozenset()
    steps: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def best_us(self) -> float | None:
        """The time of the fastest kernel that is right."""
        return min(self._times.values(), default=None)

    @property
    def chosen_ratio(self) -> float | None:
        """The time of the kernel that dispatch picks over that of the best one."""
        return self.ratio_behind()

    def behind(self, *, foreign: bool | None = None) -> tuple[str, float] | None:
        """The fastest kernel, and the picked one's time over its time.

        ``foreign``: of those that another package has, or of those that it has not.
        """
        others = [
            (name, ratio)
            for name, ratio in self._ratios.items()
            if foreign in (None, name.partition(".")[0] in self.foreign)
        ]
        return max(others, key=lambda other: other[1], default=None)

    def faster_than_chosen(self) -> tuple[str, ...]:
        """The kernels that the picked one is behind by more than 5 %, the fastest first."""
        ratios = self._ratios
        return tuple(sorted((name for name, ratio in ratios.items() if ratio > BEYOND), key=lambda name: -ratios[name]))

    def ratio_behind(self, *, foreign: bool | None = None) -> float | None:
        """The ratio of ``behind`` alone."""
        found = self.behind(foreign=foreign)
        return found[1] if found else None

    @property
    def _ratios(self) -> dict[str, float]:
        """The picked kernel's time over each one's; nothing where it has none."""
        times, steps, chosen = self._times, self.steps, self.chosen
        if chosen not in times:
            return {}
        return {n: steps[chosen] / steps[n] if n in steps else times[chosen] / us for n, us in times.items()}

    @property
    def _times(self) -> dict[str, float]:
        return {m.kernel: m.latency.median_us for m in self.kernels if m.latency is not None and m.status == "timed"}

    @property
    def rival(self) -> tuple[str, float] | None:
        """The fastest kernel of another plugin than the one that dispatch picks, and its time over that one's."""
        times = self._times
        if self.chosen not in times:
            return None
        ours = f"{self.chosen.partition('.')[0]}."
        others = [(us, kernel) for kernel, us in times.items() if not kernel.startswith((ours, "reference."))]
        return (min(others)[1], min(others)[0] / times[self.chosen]) if others else None

    def to_json(self) -> dict[str, Any]:
        """The cell as JSON-ready data; stable. Faster kernels first, those without a time last."""
        order = sorted(self.kernels, key=lambda m: m.latency.median_us if m.latency else math.inf)
        return {
            "op": self.op,
            "case": self.case,
            "phase": self.phase,
            "dtypes": dict(self.dtypes),
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "values": dict(self.values),
            "bytes": self.bytes,
            "flops": self.flops,
            "bound": self.bound,
            "copy_us": self.copy.median_us if self.copy else None,
            "chosen": self.chosen,
            "chosen_ratio": self.chosen_ratio,
            "best_us": self.best_us,
            "rival": self.rival[0] if self.rival else None,
            "rival_ratio": self.rival[1] if self.rival else None,
            "behind_own": self.ratio_behind(foreign=False),
            "behind_foreign": self.ratio_behind(foreign=True),
            "steps_us": dict(self.steps),
            "checked_against": self.checked_against,
            "reference_failure": self.reference_failure,
            "kernels": [self._kernel_json(measured) for measured in order],
            "rejected": [{"kernel": name, "rejections": list(found)} for name, found in self.rejected.items()],
        }

    def _kernel_json(self, measured: Measured) -> dict[str, Any]:
        found = measured.latency
        latency: dict[str, Any] = {"latency_us": None, "p20_us": None, "p80_us": None, "rounds": 0, "launches": 0}
        rates: dict[str, Any] = {"tb_per_s": None, "tflop_per_s": None, "copy_percent": None, "ratio_to_best": None}
        if found is not None:
            latency = found.to_json()
            rates["tb_per_s"] = bytes_per_us_in_tb_per_s(self.bytes, found.median_us)
            rates["tflop_per_s"] = flops_per_us_in_tflop_per_s(self.flops, found.median_us)
            if self.copy is not None:
                rates["copy_percent"] = 100 * self.copy.median_us / found.median_us
            if self.best_us:
                rates["ratio_to_best"] = found.median_us / self.best_us
        return {
            "kernel": measured.kernel,
            "status": measured.status,
            "reason": measured.reason,
            "chosen": measured.kernel == self.chosen,
            **latency,
            **rates,
        }


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A request that was not measured, and why."""

    op: str
    case: str
    phase: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; stable."""
        return {"op": self.op, "case": self.case, "phase": self.phase, "reason": self.reason}


def routing(cells: Sequence[Cell]) -> dict[str, Any]:
    """How far the kernels that dispatch picks are behind the best ones: geometric mean, worst, and where that is.

    ``own`` and ``foreign`` say it of those that are not another package's own, and of those that are.
    """
    found = _behind([(cell, cell.chosen_ratio) for cell in cells])
    for kind, foreign in (("own", False), ("foreign", True)):
        found[kind] = _behind([(cell, cell.ratio_behind(foreign=foreign)) for cell in cells])
    return found


def _behind(ratios: Sequence[tuple[Cell, float | None]]) -> dict[str, Any]:
    known = [(ratio, cell) for cell, ratio in ratios if ratio is not None]
    if not known:
        return {"cells": 0, "geometric_mean": None, "beyond_5_percent": None, "worst": None, "worst_case": None}
    worst, where = max(known, key=lambda pair: pair[0])
    return {
        "cells": len(known),
        "geometric_mean": math.exp(statistics.fmean(math.log(ratio) for ratio, _ in known)),
        "beyond_5_percent": sum(ratio > BEYOND for ratio, _ in known) / len(known),
        "worst": worst,
        "worst_case": f"{where.op} {where.case} {where.phase}",
    }


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest of the ordered numbers, in proportion."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
