"""Which kernel is faster than the one that priorities pick, by times that were taken in turns.

Times of one machine drift together: what is compared are ratios within a round. Of their median the bounds are order
statistics, which hold whatever the distribution: it lies below the upper one with a probability of 99 %. A kernel
replaces the default only if that bound is below 0.98; medians alone would exchange equal kernels every other time.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from portakernel.tuning.record import Entry, Record, Verdict
from portakernel.tuning.sources import of_files

Bounds = tuple[float, float, float]

# What the upper bound of a ratio has to be below for a switch, and within which ratio kernels are alike.
SWITCH, ALIKE = 0.98, 1.02
# How many rounds there are at most, one stage after the other: all but the hopeless go on to the second, to the third
# those of which it is not yet known whether they replace the default.
STAGES = (9, 25, 41)
_HOPELESS = 1.10
_DOUBT = 0.01
# With fewer rounds than these no two of them bound the median with that probability.
_FEWEST = 7
# What is said of a kernel whose source differs by the versions in it alone.
OTHER_VERSION = "a module that it requires has another version here than where it was measured"
# Where the default itself cannot be used, another is measured against; where it could not be timed so, nobody can.
_UNUSABLE = (Verdict.WRONG, Verdict.FAILED, Verdict.CRASHED, Verdict.HUNG)


def bounds(ratios: Sequence[float]) -> Bounds | None:
    """The lower bound of the median of ``ratios``, it, and the upper bound; None of fewer than seven."""
    if len(ratios) < _FEWEST:
        return None
    ordered, place = sorted(ratios), _place(len(ratios))
    return ordered[place], statistics.median(ordered), ordered[-1 - place]


@functools.lru_cache(maxsize=64)
def _place(count: int) -> int:
    """The largest place in order of which it is improbable that the median lies before it."""
    below, place = 0, 0
    while (below := below + math.comb(count, place)) <= _DOUBT * 2**count:
        place += 1
    return max(place - 1, 0)


class Race:
    """Rounds in which contenders take turns: who runs in the next one, and when it is over.

    Who is timed, and by which clock, is the caller's: it asks for a ``turn``, times each named in that order, and gives
    what it found to ``add``.
    """

    def __init__(self, names: Sequence[str], default: str, seed: int = 0) -> None:
        self.times: dict[str, list[float]] = {name: [] for name in names}
        self._default, self._order = default, random.Random(seed)
        self._running = list(names)
        self._round = 0

    def turn(self) -> tuple[str, ...]:
        """Who runs in the next round, in the order of that; nobody once it is over."""
        if self._round in STAGES:
            self._running = self._remaining()
        if self._round >= STAGES[-1] or not self._running:
            return ()
        self._order.shuffle(self._running)
        return tuple(self._running)

    def add(self, times: Mapping[str, float]) -> None:
        """The times of a round, in microseconds; who ran and has none is out. Without the default it is over."""
        for name in self._running:
            if name in times:
                self.times[name].append(times[name])
        self._running = [name for name in self._running if name in times]
        if self._default not in times:
            self._running = []
        self._round += 1

    def against(self, name: str, other: str) -> Bounds | None:
        """The bounds of one's time over another's, in the rounds that both have run; None where these are too few."""
        pairs = zip(self.times[name], self.times[other], strict=False)
        return bounds([mine / theirs for mine, theirs in pairs])

    def results(self) -> dict[str, tuple[Bounds, int, dict[str, Bounds]]]:
        """For each that ran: its times (see ``Entry.us``), its rounds, and the bounds against others.

        Each pair has its bounds once: with the one that is not the default, else with the faster.
        """
        ran = {name: times for name, times in self.times.items() if len(times) >= _FEWEST}
        order = sorted(ran, key=lambda name: (name == self._default, statistics.median(ran[name]), name))
        found = dict[str, tuple[Bounds, int, dict[str, Bounds]]]()
        for place, name in enumerate(order):
            pairs = {other: self.against(name, other) for other in order[place + 1 :]}
            known = {other: pair for other, pair in pairs.items() if pair is not None}
            found[name] = spread(ran[name]), len(ran[name]), known
        return found

    def _remaining(self) -> list[str]:
        """Who goes on behind a stage: the default, if anybody does."""
        last = self._round == STAGES[-2]
        others = [name for name in self._running if name != self._default and self._goes_on(name, last=last)]
        return [self._default, *others] if others else []

    def _goes_on(self, name: str, *, last: bool) -> bool:
        found = self.against(name, self._default)
        if found is None:
            return False
        low, _, high = found
        return low < SWITCH <= high if last else low <= _HOPELESS


def spread(times: Sequence[float]) -> Bounds:
    """The 10th percentile, the median, and the 90th."""
    tenths = statistics.quantiles(times, n=10, method="inclusive")
    return tenths[0], statistics.median(times), tenths[-1]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a record says of a call: the kernel to use, and the bounds of its time over the default's where it differs.

    Without a kernel nothing is decided, and ``why`` says why.
    """

    kernel: str | None
    why: str
    ratio: Bounds | None = None


def decide(record: Record, sources: Mapping[str, str], order: Sequence[str]) -> Outcome:
    """The kernel by a record: the same for the same record, everywhere.

    ``sources`` are the digests of kernels as they are now, by name; an entry with another one counts for nothing.
    ``order`` are the kernels that can serve the call, best first: the first one is what priorities pick.
    """
    if record.busy:
        return Outcome(None, "others used the device while it was measured")
    valid = {name: entry for name, entry in record.kernels.items() if sources.get(name) == entry.source}
    default = _default(valid, order)
    if default is None:
        return Outcome(None, _undecided(record, valid, sources, order))
    ratios = {
        name: ratio
        for name in order
        if name != default and _is_timed(valid.get(name)) and (ratio := ratio_of(record, name, default)) is not None
    }
    faster = {name: ratio for name, ratio in ratios.items() if ratio[2] < SWITCH}
    if not faster:
        return Outcome(default, "nothing is faster by more than 2 %" if ratios else "nothing else was timed")
    least = min(ratio[1] for ratio in faster.values())
    alike = [name for name, ratio in faster.items() if ratio[1] <= least * ALIKE]
    best = min(alike, key=lambda name: (order.index(name), name))
    return Outcome(best, f"{faster[best][1]:.3f} of the time of {default}", faster[best])


def ratio_of(record: Record, name: str, other: str) -> Bounds | None:
    """The bounds of one kernel's time over another's; None where they never took turns."""
    entry, its = record.kernels.get(name), record.kernels.get(other)
    if entry is not None and other in entry.against:
        return entry.against[other]
    if its is not None and name in its.against:
        low, middle, high = its.against[name]
        return 1 / high, 1 / middle, 1 / low
    return None


def _default(valid: Mapping[str, Entry], order: Sequence[str]) -> str | None:
    """Against whom others are compared: the first in order, but for those that cannot be used; None where unknown."""
    for name in order:
        entry = valid.get(name)
        if entry is not None and entry.verdict in _UNUSABLE:
            continue
        return name if _is_timed(entry) else None
    return None


def _is_timed(entry: Entry | None) -> bool:
    return entry is not None and entry.verdict is Verdict.RIGHT and entry.us is not None


def _undecided(record: Record, valid: Mapping[str, Entry], sources: Mapping[str, str], order: Sequence[str]) -> str:
    """Why there is nobody to compare with."""
    first = next((name for name in order if name not in valid or valid[name].verdict not in _UNUSABLE), None)
    if first is None:
        return "no kernel that can serve it was right"
    if first not in record.kernels:
        return f"{first} was not there when it was measured"
    if first not in valid and of_files(sources.get(first, "")) == of_files(record.kernels[first].source):
        return f"{first}: {OTHER_VERSION}"
    if first not in valid:
        return f"{first} has changed since it was measured"
    return f"{first} was {valid[first].verdict}"
