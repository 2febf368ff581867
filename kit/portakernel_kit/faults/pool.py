"""Processes side by side, each with a copy of the plugin for itself; one that hangs is killed, a death is told."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from portakernel_kit.conformance.observing.isolation import ending, written
from portakernel_kit.faults.trying import (
    Beginning,
    Circumstances,
    Done,
    Ended,
    Event,
    Measuring,
    Putting,
    Room,
    work,
)

K = TypeVar("K")

# How often the pool gives a sign of life while nothing comes.
_SIGN_S = 5.0
# How long a killed process may take to be gone, inside a driver.
_GONE_S = 10.0


@dataclass(frozen=True, slots=True)
class Task(Generic[K]):
    """What one process does, for ``key``; meanwhile ``file`` of its copy has ``content``.

    ``caches``: it fills them; ``is_fresh``: its own begin empty.
    """

    key: K
    job: Measuring | Putting
    file: str = ""
    content: bytes = b""
    caches: Path | None = None
    is_fresh: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """What a process told, and how it ended."""

    events: tuple[Event, ...]
    ending: Literal["done", "died", "hung"]
    text: str = ""
    seconds: float = 0.0

    @property
    def ended(self) -> tuple[Ended, ...]:
        """The units that ran."""
        return tuple(event for event in self.events if isinstance(event, Ended))

    @property
    def new_request(self) -> str:
        """The line of the last request, where it was not measured; else empty."""
        return next((event.request for event in reversed(self.events) if isinstance(event, Beginning)), "")

    @property
    def begun(self) -> Beginning | None:
        """The unit that was running at the end, where one was."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Beginning) else None


@dataclass
class _Process(Generic[K]):
    task: Task[K]
    room: Room
    process: Any
    pipe: Connection
    log: Path
    held: ExitStack
    patience_s: float
    events: list[Event] = field(default_factory=list[Event])
    start: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)

    def hear(self) -> Ran | None:
        """Takes what has come; how the process ended, once it has."""
        try:
            while self.pipe.poll():
                event = self.pipe.recv()
                self.heard = time.monotonic()
                if isinstance(event, Done):
                    return self._ran("done")
                self.events.append(event)
        except (EOFError, OSError):
            self.process.join(_GONE_S)
            return self._ran("died", ending(self.process.exitcode, written(self.log)))
        return None

    def overdue(self) -> Ran | None:
        """That it hangs, where it does."""
        if time.monotonic() < self.heard + self.patience_s:
            return None
        return self._ran("hung", f"nothing came of it for {self.patience_s:g} seconds")

    def _ran(self, ending: Literal["done", "died", "hung"], text: str = "") -> Ran:
        return Ran(tuple(self.events), ending, text, time.monotonic() - self.start)

    def end(self) -> None:
        """It is gone, and its copy as it was."""
        self.process.kill()
        self.process.join(_GONE_S)
        if self.process.exitcode is not None:
            self.process.close()
        self.pipe.close()
        self.held.close()


class Pool(Generic[K]):
    """As many processes at a time as there are rooms; forked from this one, or spawned where a device is theirs."""

    def __init__(self, of: Circumstances, rooms: list[Room], *, forks: bool) -> None:
        self.of, self.free = of, list(rooms)
        self.filled = rooms[0].filled
        self.context: Any = get_context("fork" if forks else "spawn")

    def run(self, tasks: Iterator[Task[K]], patience_s: Callable[[K], float]) -> Iterator[tuple[K, Ran] | None]:
        """What came of each, in the order in which they end; None as a sign of life. A task is taken when it begins."""
        running: list[_Process[K]] = []
        try:
            while True:
                while self.free and (task := next(tasks, None)) is not None:
                    running.append(self._begun(task, patience_s(task.key)))
                if not running:
                    return
                ready = wait([process.pipe for process in running], _SIGN_S)
                if not ready:
                    yield None
                for process in list(running):
                    ran = (process.hear() if process.pipe in ready else None) or process.overdue()
                    if ran is not None:
                        running.remove(process)
                        self._ended(process)
                        yield process.task.key, ran
        finally:
            for process in running:
                self._ended(process)

    def _begun(self, task: Task[K], patience_s: float) -> _Process[K]:
        room, held = self.free.pop(), ExitStack()
        if task.caches is not None or task.is_fresh:
            room = Room(room.copy, task.caches or room.caches)
        if task.file:
            held.enter_context(room.copy.changed(task.file, task.content))
        log = room.copy.folder.parent / "written"
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=work, args=(theirs, task.job, self.of, room, log))
        process.start()
        theirs.close()
        return _Process(task, room, process, ours, log, held, patience_s)

    def _ended(self, process: _Process[K]) -> None:
        process.end()
        caches = process.room.copy.folder.parent / "caches"
        if process.task.caches is None:
            shutil.rmtree(caches, ignore_errors=True)
        self.free.append(Room(process.room.copy, caches, self.filled))
