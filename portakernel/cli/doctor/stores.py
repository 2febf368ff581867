"""What a store of measurements holds, and how much of it decides on this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from portakernel.cli.plan.here import places_here
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.kernel import Kernel
from portakernel.tuning.key import Regime
from portakernel.tuning.measured import Measured
from portakernel.tuning.store import Survey, folder_of, ops_in, survey
from portakernel.tuning.undecided import by_reason

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Holdings:
    """A store's records: how many decide here, how many of this machine do not, by reason, and those of others."""

    kept: Survey
    decided: int
    undecided: Counter[str] = field(default_factory=Counter[str])
    here: tuple[Place, ...] = ()
    kernels: Mapping[str, Kernel] = field(default_factory=dict[str, Kernel])

    @property
    def elsewhere(self) -> dict[Place, int]:
        """The number of records by the kinds of devices that are not here."""
        return {place: count for place, count in sorted(self.kept.places.items()) if place not in self.here}

    @property
    def other_units(self) -> list[Place]:
        """Where all that was measured on this machine's architectures is of other units: those."""
        if any(place in self.kept.places for place in self.here):
            return []
        targets = {target for target, _ in self.here}
        return [place for place in self.elsewhere if place[0] in targets]

    def told(self) -> str:
        """The counts, for people."""
        kept = self.kept
        parts = [f"{self.decided} decide here"]
        parts += [f"{count} of this machine's decide nothing"] if (count := self.undecided.total()) else []
        named = ", ".join(f"{target}/{units} ({count})" for (target, units), count in self.elsewhere.items())
        parts += [f"of other devices: {named}"] if named else []
        return f"{kept.records} of {kept.ops} op{'s' * (kept.ops != 1)}: {'; '.join(parts)}"

    def details(self) -> Iterator[str]:
        """Why records of this machine decide nothing, and the files in which something was passed over."""
        yield from (f"{count}: {reason}" for count, reason in by_reason(self.undecided, self.kernels))
        for path, reasons in self.kept.passed_over.items():
            yield f"{path}: {_lines(reasons)}"
        for path, why in self.kept.unread.items():
            yield f"{path}: not read: {why}"

    def passed_over(self) -> str:
        """The lines and files that were passed over, counted; empty where none was."""
        parts = list[str]()
        if reasons := sum(self.kept.passed_over.values(), Counter[str]()):
            parts.append(_lines(reasons))
        if count := len(self.kept.unread):
            parts.append(f"{count} file{'s' * (count != 1)} not read")
        return ", ".join(parts)


def holdings(root: Path, now: Dispatcher, regime: Regime | None) -> Holdings:
    """What the store at ``root`` holds, whatever lies there; ``regime`` is whose times decide, None where nobody's."""
    kept, here = survey(root), tuple((place.target, place.units) for place in places_here(now))
    decided, undecided = 0, Counter[str]()
    for target, units in here:
        if (target, units) not in kept.places:
            continue
        if regime is None:
            undecided["PORTAKERNEL_TUNING is off"] += kept.places[target, units]
            continue
        for op in ops_in(folder_of(root, target, units)):
            kernels = now.registry.for_op(op) if op in now.registry.ops else ()
            found = Measured([root], op, target, units, regime, kernels, now.registry.spaces)
            decided += found.decided
            undecided += found.undecided
    return Holdings(kept, decided, undecided, here, now.registry.kernels)


def _lines(reasons: Counter[str]) -> str:
    count = reasons.total()
    told = "; ".join(f"{number} {reason}" for reason, number in sorted(reasons.items()))
    return f"{count} line{'s' * (count != 1)} passed over ({told})"
