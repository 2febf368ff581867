"""What a slower kernel costs: the part of a call's time that another would save, by records of measurements.

A record is of one call on one kind of device; what is asked about is mostly another one. The mean over all records of
the op in which both kernels were timed stands for it, those of the same target before those of others.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from portakernel.tuning.record import Record, Verdict
from portakernel.tuning.store import folders, read


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of a call's time, 0 to 1, and what the estimate goes by."""

    part: float
    basis: str


# Where no record has both kernels. They order what is told, and claim nothing: a page says that they are assumed.
ASSUMED = {"reference": 0.5, "refused": 0.1, "unmeasured": 0.05}


def assumed(kind: str) -> Loss:
    """What is assumed where nothing was measured."""
    return Loss(ASSUMED[kind], "assumed, as no record times these kernels")


class Losses:
    """Estimates by the records of stores; read op by op."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._folders = [folder for root in roots for folder in folders(root)]
        self._known: dict[str, tuple[Record, ...]] = {}

    def between(self, op: str, slow: str, fast: str, target: str = "") -> Loss | None:
        """What ``slow`` loses against ``fast``; None where no record times both."""

        def of_record(record: Record) -> float | None:
            times = _times(record)
            return _part(times[slow], times[fast]) if slow in times and fast in times else None

        return self._mean(op, target, of_record)

    def unmeasured(self, op: str, target: str = "") -> Loss | None:
        """What priorities' kernel loses against the fastest; None where no record has both."""

        def of_record(record: Record) -> float | None:
            times = _times(record)
            return _part(times[record.default], min(times.values())) if record.default in times else None

        return self._mean(op, target, of_record)

    def _mean(self, op: str, target: str, of_record: Callable[[Record], float | None]) -> Loss | None:
        records = self._records(op)
        for several, where in (
            ([record for record in records if record.key.target == target], f" on {target}"),
            (records, ", on other hardware"),
        ):
            parts = [part for part in map(of_record, several) if part is not None]
            if parts:
                count = f"{len(parts)} record{'s' * (len(parts) != 1)}"
                return Loss(statistics.fmean(parts), f"the mean of {count} of {op}{where}")
        return None

    def _records(self, op: str) -> tuple[Record, ...]:
        if op not in self._known:
            found = (record for folder in self._folders for record in read(folder, op).records.values())
            self._known[op] = tuple(record for record in found if not record.busy)
        return self._known[op]


def _times(record: Record) -> dict[str, float]:
    """The median times of the kernels that are right."""
    entries = record.kernels.items()
    return {name: entry.us[1] for name, entry in entries if entry.us is not None and entry.verdict is Verdict.RIGHT}


def _part(slow: float, fast: float) -> float:
    return max(0.0, 1 - fast / slow)
