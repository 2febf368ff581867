"""Many devices that measure: work split by what they are, some of it measured on each, lost workers borne with.

Devices of one kind, with the same driver and the same kernels, share the work; each kind measures all of it. Of every
20 calls the first is measured on each card of a kind, so that it is known how much cards differ.
"""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from portakernel.contracts import contract
from portakernel.errors import ArgumentValueError
from portakernel.registry.registry import Registry
from portakernel.tuning.record import Entry, Record, Verdict
from portakernel.tuning.sources import contract_digest
from portakernel.words.target import Target
from portakernel_kit.tune.child import JobError
from portakernel_kit.tune.job import Facts, Job

# Of so many calls one is measured on every card: 5 %.
SHARED_EVERY = 20
# A worker that is lost so often, with nothing measured between, gets nothing more.
_MOST_LOSSES = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a job on a device: a record, or why there is none; ``lost`` says how its worker ended."""

    device: str
    found: Record | JobError | None = None
    lost: str = ""


class Workers(Protocol):
    """Workers on devices, each with one job at a time."""

    def facts(self) -> Mapping[str, Facts | str]:
        """By device what its worker says of itself, or why it cannot measure."""
        ...

    def submit(self, device: str, job: Job) -> None:
        """Gives a job to a device that has none."""
        ...

    def next(self) -> Outcome:
        """Waits for the next outcome of what was submitted."""
        ...

    def close(self) -> None:
        """Gives the devices up; ends what is at work."""
        ...


@dataclass(frozen=True, slots=True)
class Spread:
    """How much cards of one kind differ: of kernels in calls that several cards measured, the slowest over the fastest.

    ``worst`` is the greatest of these ratios, and ``where`` its call and kernel.
    """

    calls: int
    median: float
    worst: float
    where: str


@dataclass(slots=True)
class _Attempt:
    """A job on its way; ``on_each``: one of those that every card measures, beside the one that counts."""

    job: Job
    number: int
    on_each: bool = False
    not_on: str = ""


@dataclass(slots=True)
class _Kind:
    """Devices that are alike, and what they have to measure."""

    devices: list[str]
    begun: int = 0
    again: deque[_Attempt] = field(default_factory=deque[_Attempt])
    own: dict[str, deque[_Attempt]] = field(default_factory=dict[str, "deque[_Attempt]"])
    shared: dict[int, list[Record]] = field(default_factory=dict[int, "list[Record]"])


# The record of a call that ended two workers, by the job and what the last of them was.
Crashed = Callable[[Job, Facts, str], Record]


class Fleet:
    """The engine of many devices. ``refused`` are devices that measure nothing here, and why.

    ``done`` says whether a store has a job's record of such a device already: it is not measured there then.

    Raises:
        ArgumentValueError: no device is left.
    """

    def __init__(
        self,
        workers: Workers,
        sources: Mapping[str, str],
        crashed: Crashed,
        done: Callable[[Job, Facts], bool] = lambda job, facts: False,
    ) -> None:
        self._workers, self._crashed, self._done = workers, crashed, done
        self._facts: dict[str, Facts] = {}
        self._losses: dict[str, int] = {}
        self._kinds: dict[tuple[str, int, str], _Kind] = {}
        self.refused: dict[str, str] = {}
        self.left: list[Job] = []
        for device, facts in workers.facts().items():
            reason = facts if isinstance(facts, str) else _other_source(facts.sources, sources)
            if isinstance(facts, str) or reason:
                self.refused[device] = reason
                continue
            self._facts[device], self._losses[device] = facts, 0
            kind = self._kinds.setdefault((facts.target, facts.units, facts.driver), _Kind([]))
            kind.devices.append(device)
        if not self._facts:
            told = "; ".join(f"{device}: {reason}" for device, reason in self.refused.items()) or "there is none"
            raise ArgumentValueError(f"no device can measure: {told}")

    @property
    def devices(self) -> Mapping[str, Facts]:
        """The devices that measure."""
        return self._facts

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Record | JobError]]:
        """The record of each job on each kind of device, or why there is none; several of one that each card measures.

        What no device is left for is in ``left`` afterwards.
        """
        waiting, pulled, busy = iter(jobs), list[Job](), dict[str, _Attempt]()
        while True:
            for kind in self._kinds.values():
                for device in kind.devices:
                    if device not in busy and (attempt := self._next(kind, device, waiting, pulled)) is not None:
                        busy[device] = attempt
                        self._workers.submit(device, attempt.job)
            if not busy:
                break
            outcome = self._workers.next()
            yield from self._taken(outcome, busy.pop(outcome.device))
        self.left += [attempt.job for kind in self._kinds.values() for attempt in kind.again]

    def spread(self) -> Spread | None:
        """How much cards differ, by what several of them measured; None where there is no such call."""
        ratios = list[tuple[float, str]]()
        for kind in self._kinds.values():
            for records in kind.shared.values():
                ratios += _ratios(records)
        if not ratios:
            return None
        ratios.sort()
        calls = sum(len(records) > 1 for kind in self._kinds.values() for records in kind.shared.values())
        return Spread(calls, ratios[len(ratios) // 2][0], *ratios[-1])

    def close(self) -> None:
        """Gives the devices up."""
        self._workers.close()

    # --- one device after the other ---------------------------------------------------------------------------------

    def _next(self, kind: _Kind, device: str, waiting: Iterator[Job], pulled: list[Job]) -> _Attempt | None:
        """What a device that is free does next: what others lost, then what each card measures, then what is new."""
        if self._losses[device] >= _MOST_LOSSES:
            return None
        elsewhere = [other for other in kind.devices if self._losses[other] < _MOST_LOSSES]
        for attempt in kind.again:
            if attempt.not_on != device or elsewhere == [device]:
                kind.again.remove(attempt)
                return attempt
        if own := kind.own.get(device):
            return own.popleft()
        new = self._new(kind, device, waiting, pulled)
        if new is not None and new.number % SHARED_EVERY == 0:
            for other in kind.devices:
                if other != device:
                    kind.own.setdefault(other, deque()).append(_Attempt(new.job, new.number, on_each=True))
        return new

    def _new(self, kind: _Kind, device: str, waiting: Iterator[Job], pulled: list[Job]) -> _Attempt | None:
        """The next job that no device of the kind has begun, and no store has."""
        while True:
            if kind.begun == len(pulled):
                pulled += islice(waiting, 1)
            if kind.begun == len(pulled):
                return None
            attempt = _Attempt(pulled[kind.begun], kind.begun)
            kind.begun += 1
            if not self._done(attempt.job, self._facts[device]):
                return attempt

    def _taken(self, outcome: Outcome, attempt: _Attempt) -> Iterator[tuple[Job, Record | JobError]]:
        facts = self._facts[outcome.device]
        kind = self._kinds[facts.target, facts.units, facts.driver]
        if outcome.found is not None:
            self._losses[outcome.device] = 0
            if isinstance(outcome.found, Record) and attempt.number % SHARED_EVERY == 0:
                kind.shared.setdefault(attempt.number, []).append(outcome.found)
            yield attempt.job, outcome.found
            return
        self._losses[outcome.device] += 1
        if attempt.on_each:  # it is measured elsewhere as well
            return
        if attempt.not_on:
            yield attempt.job, self._crashed(attempt.job, facts, outcome.lost)
        else:
            attempt.not_on = outcome.device
            kind.again.append(attempt)


def _other_source(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """In what a device's kernels differ from those of the process that asks it; empty where they do not."""
    for name in sorted({*there, *here}):
        if there.get(name) != here.get(name):
            found, ours = there.get(name, "none"), here.get(name, "none")
            return f"{name} has the source {found} there, and {ours} here: install the same packages on both"
    return ""


def _ratios(records: Sequence[Record]) -> Iterator[tuple[float, str]]:
    if len(records) < 2:
        return
    for name in records[0].kernels:
        times = [entry.us[1] for record in records if (entry := record.kernels.get(name)) and entry.us is not None]
        if len(times) > 1:
            sizes = ", ".join(f"{dim}={size}" for dim, size in records[0].key.dims.items())
            yield max(times) / min(times), f"{name} at {sizes}"


def crashed_record(registry: Registry, now: Callable[[], str] | None = None) -> Crashed:
    """The record of a call that ended two workers: each of the op's kernels is said to have crashed.

    Which of them it was nobody knows. None is asked again for this call until its source changes.
    """

    def record(job: Job, facts: Facts, reason: str) -> Record:
        detail = f"two workers ended, and no kernel was known to be at work: {reason}"[:300]
        entries = {
            kernel.name: Entry(source=facts.sources.get(kernel.name, ""), verdict=Verdict.CRASHED, detail=detail)
            for kernel in registry.for_op(job.op)
        }
        key = job.key(Target.parse(facts.target), facts.units, registry)
        at = now() if now is not None else datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        digest = contract_digest(contract(job.op))
        return Record(key, digest, entries, at, device=facts.device, driver=facts.driver, torch=facts.torch)

    return record
