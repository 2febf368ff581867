"""A kernel observed in a process of its own, which may die: abort, hang, or leave its device without a context."""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from portakernel import runtime
from portakernel.config import Config
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.host.process_group import ProcessGroup
from portakernel.registry.kernel import Kernel
from portakernel.registry.plugin_manager import Package, PluginManager
from portakernel.registry.registry import Registry
from portakernel_kit.conformance.observing.observation import Event, Finished
from portakernel_kit.conformance.observing.observer import Known, Observer
from portakernel_kit.conformance.venue import Venue, Where, find_venue, venue_beside

# So many requests of one kernel may end their process; its others are then left out: each costs the start of another.
MOST_DEATHS = 3
# Of the memory that kernels on the CPU take, what is left to the rest of the machine.
_MOST_MEMORY = 0.75
# Of what a process wrote, the end is where the reason for its death stands.
_MOST_WRITTEN = 4000
# How long a process may take to load torch and to plan: no kernel runs meanwhile.
_START_S = 300.0
# How long a process may take to be gone: to end, or to be killed inside a driver.
_GONE_S = 10.0
# How often it is looked whether to wait any longer.
_LOOK_S = 0.2


E_co = TypeVar("E_co", covariant=True)


class Work(Protocol[E_co]):
    """What a process runs; its last event is ``Finished``."""

    def events(self) -> Iterator[E_co]:
        """Runs it in this process."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """One kernel of these packages, as whoever asks sees them, and where it is to run."""

    packages: tuple[Package, ...]
    disabled: frozenset[str]
    kernel: str
    device: Where

    @classmethod
    def of(cls, dispatcher: Dispatcher, kernel: Kernel, device: Where) -> Asked:
        """The kernel as the dispatcher sees it, on ``device`` or wherever it can run."""
        return cls(dispatcher.registry.manager.packages, dispatcher.process.disabled, kernel.name, device)

    def placed(self) -> tuple[Dispatcher, Kernel, Venue]:
        """The kernel, and where ``check`` runs it.

        Raises:
            LookupError: it cannot run here.
        """
        now = self.dispatcher()
        kernel = now.registry.kernels[self.kernel]
        venue = find_venue(now, kernel, self.device)
        if not isinstance(venue, Venue):
            raise LookupError(venue.reason)
        return now, kernel, venue

    def dispatcher(self) -> Dispatcher:
        """One over the packages: this process's own where it has the same."""
        now = runtime.dispatcher()
        if now.registry.manager.packages == self.packages and now.process.disabled == self.disabled:
            return now
        registry = Registry(PluginManager(self.packages, disabled=self.disabled))
        return Dispatcher(registry, Config(disable=tuple(self.disabled)))


@dataclass(frozen=True, slots=True)
class Job:
    """The claims and refusals of one kernel, where ``check`` would run it.

    Refused cases are tried for ``seconds``. ``known`` is what processes before this one have found out. ``beside``: the
    device is one that the kernel's targets leave out.
    """

    asked: Asked
    seed: int
    seconds: float
    claims: bool
    known: Known
    beside: bool = False

    def events(self) -> Iterator[Event]:
        """Runs it in this process."""
        now = self.asked.dispatcher()
        kernel = now.registry.kernels[self.asked.kernel]
        venue = (venue_beside if self.beside else find_venue)(now, kernel, self.asked.device)
        if not isinstance(venue, Venue):
            raise LookupError(venue.reason if venue is not None else f"{self.asked.kernel} cannot run here")
        observer = Observer(now, kernel, venue, self.seed)
        yield from observer.events(self.seconds, claims=self.claims, known=self.known)


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended before it was done, or that it did not, and the end of what it wrote."""

    outcome: Literal["ended", "hung"]
    text: str
    written: str


def run_apart(job: Work[E_co], patience_s: float, stopped: threading.Event | None = None) -> Iterator[E_co | Death]:
    """The work's events from a process of its own, as they come; the last is ``Finished`` or the process's death.

    It is killed when, once it has begun, nothing comes for ``patience_s`` seconds, when nobody listens any more, and,
    for a listener who waits in another thread, soon after ``stopped`` is set; then nothing more comes.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "written")
        log.touch()
        context = get_context("spawn")  # a forked child could not use the devices that its parent has used
        ours, theirs = context.Pipe(duplex=False)
        group = ProcessGroup()  # so that it ends with this process, and what it started, such as compilers, with it
        process = context.Process(target=_work, args=(theirs, job, log, group.id))
        try:
            with _interrupts_blocked():
                process.start()
            theirs.close()
            yield from _received(ours, process, log, patience_s, stopped or threading.Event())
        finally:
            group.end()
            if process.pid is not None:
                process.kill()
                # not closed: where this is a thread, the interpreter's end may be joining it too
                process.join(_GONE_S)
            ours.close()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Inside, Ctrl-C waits; a process that starts there never hears of it, which is its parent's to answer."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _received(
    pipe: Connection, process: BaseProcess, log: Path, patience_s: float, stopped: threading.Event
) -> Iterator[Any]:
    begun = False
    while _comes(pipe, patience_s if begun else max(patience_s, _START_S), stopped):
        if stopped.is_set():
            return
        try:
            event = pipe.recv()
        except (EOFError, OSError):
            process.join()
            text = written(log)
            yield Death("ended", ending(process.exitcode, text), text)
            return
        yield event
        begun = True
        if isinstance(event, Finished):
            process.join(_GONE_S)  # what it has to put in order at its end, it may
            return
    yield Death("hung", f"it did not end within {patience_s:g} seconds", written(log))


def _comes(pipe: Connection, seconds: float, stopped: threading.Event) -> bool:
    """Whether something comes within so many seconds, or waiting has been stopped."""
    deadline = time.monotonic() + seconds
    while not stopped.is_set() and (left := deadline - time.monotonic()) > 0:
        if pipe.poll(min(left, _LOOK_S)):
            return True
    return stopped.is_set()


def _work(pipe: Connection, job: Work[object], log: Path, group: int) -> None:
    """What the process does. What is written, below Python too, goes to ``log``: a library that aborts says why."""
    os.setpgid(0, group)
    write_to(log)
    for event in job.events():
        pipe.send(event)


def write_to(log: Path) -> None:
    """From now on what this process writes, below Python too, goes behind what is in ``log``."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()


def bound_memory(share: float = 1.0) -> None:
    """What a kernel asks for beyond this process's share of the memory is refused, which fails its case alone."""
    try:
        import resource
    except ImportError:  # not a Unix
        return
    most = int(share * _MOST_MEMORY * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))


def ending(status: int | None, written: str) -> str:
    """How a process ended by itself, with the last line that it wrote."""
    if status is None or status >= 0:
        last = f": {written.splitlines()[-1]}" if written else ""
        return f"it ended its process: exit status {status}{last}"
    try:
        return f"it ended its process: signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"it ended its process: signal {-status}"


def written(log: Path) -> str:
    """The end of what a process wrote."""
    return log.read_text(encoding="utf-8", errors="replace").strip()[-_MOST_WRITTEN:]
