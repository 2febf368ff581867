"""A run of ``tune``: one job after the other, each record written as it comes, until all is done or time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from portakernel.errors import PortakernelError
from portakernel.tuning.record import Record
from portakernel.tuning.store import Writer, folder_of
from portakernel_kit.tune.child import Child, JobError
from portakernel_kit.tune.job import Job

Progress = Callable[..., None]


class Engine(Protocol):
    """Measures jobs on the devices that it has; results come as they are ready, in any order."""

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Record | JobError]]:
        """The record of each job, or why there is none. Jobs are taken as devices get free."""
        ...

    def close(self) -> None:
        """Gives the devices up; ends what is at work."""
        ...


class OneDevice:
    """The engine of one device, in a process of its own."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Record | JobError]]:
        """One job after the other."""
        for job in jobs:
            try:
                yield job, self._child.measure(job)
            except JobError as error:
                yield job, error

    def close(self) -> None:
        """Ends the process."""
        self._child.close()


class Idle:
    """The engine of nobody: of what was interrupted before it began."""

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Record | JobError]]:
        """Measures nothing."""
        del jobs
        return iter(())

    def close(self) -> None:
        """Has nothing to give up."""


@dataclass(slots=True)
class Session:
    """Writes what an engine measures into the store at ``root``; ``clock`` counts seconds."""

    root: Path
    engine: Engine
    budget_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    measured: list[Record] = field(default_factory=list[Record])
    refused: list[tuple[Job, str]] = field(default_factory=list[tuple[Job, str]])
    left: int = 0
    _writers: dict[tuple[str, str, int], Writer] = field(default_factory=dict[tuple[str, str, int], Writer])

    def run(self, jobs: Iterable[Job], tell: Progress = lambda **_: None) -> None:
        """Measures jobs, in their order, until the budget is spent: what is at work then is still finished."""
        waiting = list(jobs)
        self.left = len(waiting)
        end = None if self.budget_s is None else self.clock() + self.budget_s

        def given() -> Iterator[Job]:
            for job in waiting:
                if end is not None and self.clock() >= end:
                    return
                tell(description=job.name)
                yield job

        try:
            done = set[str]()  # some are measured on several devices
            for job, found in self.engine.run(given()):
                done.add(str(replace(job, known={})))
                tell(completed=len(done))
                self.left = len(waiting) - len(done)
                if isinstance(found, Record):
                    self._write(found)
                else:
                    self.refused.append((job, str(found)))
        finally:
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()

    def to_json(self) -> dict[str, Any]:
        """What was done, as JSON-ready data; stable."""
        return {
            "store": str(self.root),
            "measured": [record_json(record) for record in self.measured],
            "refused": [{"call": job.name, "reason": reason} for job, reason in self.refused],
            "left": self.left,
        }

    def _write(self, record: Record) -> None:
        place = record.key.kind.op, record.key.target, record.key.units
        try:
            if place not in self._writers:
                self._writers[place] = Writer(folder_of(self.root, *place[1:]), place[0])
            self._writers[place].write(record)
        except OSError as error:
            text = f"a record cannot be written into {self.root}: {error.strerror or error}"
            raise PortakernelError(f"{text}; what was measured before it is kept") from error
        self.measured.append(record)


def record_json(record: Record) -> dict[str, Any]:
    """A record as JSON-ready data; stable."""
    key = record.key
    return {
        **key.kind.parts(),
        "target": key.target,
        "units": key.units,
        "regime": str(key.regime),
        "dims": dict(key.dims),
        "default": record.default,
        "busy": record.busy,
        "kernels": {
            name: {
                "verdict": str(entry.verdict),
                "us": list(entry.us) if entry.us else None,
                "rounds": entry.rounds,
                "error": entry.error,
                "against_default": list(pair) if (pair := entry.against.get(record.default)) else None,
                "detail": entry.detail,
            }
            for name, entry in record.kernels.items()
        },
    }
