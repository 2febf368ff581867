"""Jobs compiled in processes of their own, side by side: a compiler may abort, and takes its process with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from portakernel.deciding.dispatcher import Dispatcher
from portakernel.host.process_group import ProcessGroup
from portakernel.offline.compiled import Compiling
from portakernel.offline.job import Job, call_on_meta
from portakernel.offline.outcome import Outcome
from portakernel.offline.shared_memory import available_bytes
from portakernel.registry.kernel import Kernel
from portakernel.words.target import Target

# Where no job ends for so long, those that are being compiled are given up; the slowest known takes 90 seconds.
PATIENCE_S = 900.0

# The end of what a compiler wrote is where its diagnosis stands.
_MOST_DIAGNOSIS = 4000

# What a worker runs. The program's main module is not imported there, as multiprocessing would: it may be a script
# that calls ``warmup`` as it is read.
_WORKER = (
    "import sys; from multiprocessing.connection import Connection; parent = Connection(int(sys.argv[1]));"
    " sys.path[:] = parent.recv(); from portakernel.offline.workers import serve; serve(parent)"
)


def compile_all(jobs: Sequence[Job], workers: int | None = None) -> Generator[Outcome, None, None]:
    """Each job's outcome, as they come, from as many processes (one a core).

    They end with the iteration: when it is done, or is given up, or an exception passes.
    """
    waiting, count = deque(jobs), min(workers or cores(), len(jobs))
    idle: list[_Worker] = []
    busy: dict[Connection, tuple[_Worker, Job]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < count:
                worker, job = idle.pop() if idle else _Worker(), waiting.popleft()
                busy[worker.connection] = worker, job
                worker.begin(job)
            ready = wait(list(busy), PATIENCE_S)
            for connection in list(busy) if not ready else [known for known in busy if known in ready]:
                worker, job = busy[connection]
                outcome = worker.outcome(job) if ready else worker.give_up(job)
                del busy[connection]
                if worker.is_alive:
                    idle.append(worker)
                yield outcome
    finally:
        for worker in (*idle, *(worker for worker, _ in busy.values())):
            worker.end()


def cores() -> int:
    """How many processes can run side by side here: a container may have fewer cores, and the ranks of a host share."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, cores // int(ranks)) if ranks.isdecimal() and int(ranks) else cores


class _Worker:
    """A process that compiles one job after the other, and a file that takes what it writes to stdout and stderr."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        self.is_alive = True
        self._told = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._begun = 0
        command = [sys.executable, "-c", _WORKER, str(theirs.fileno())]
        # a group of its own: the terminal's interrupt is the parent's to act on, and compilers end with it and with us
        self._group = ProcessGroup()
        try:
            self._process = self._group.start(
                command, stdin=subprocess.DEVNULL, told=self._told, descriptors=[theirs.fileno()]
            )
        except BaseException:
            self._group.end()
            raise
        theirs.close()
        self.connection.send(sys.path)

    def begin(self, job: Job) -> None:
        """Hands it a job."""
        self._begun = os.fstat(self._told.fileno()).st_size
        with suppress(BrokenPipeError):  # its end is found when its outcome is asked for
            self.connection.send(job)

    def outcome(self, job: Job) -> Outcome:
        """What came of the job that it has; where it fails, with what its compiler wrote."""
        try:
            found: Outcome = self.connection.recv()
        except (EOFError, ConnectionResetError):
            told = self._diagnosis()
            found = _failed(job, f"the compiler ended its process{self._how()}")
            self.end()
        else:
            told = self._diagnosis() if found.error else ""
        return replace(found, error=f"{found.error}\n{told}") if told else found

    def give_up(self, job: Job) -> Outcome:
        """Ends the process over a job that takes too long."""
        told = self._diagnosis()
        self.end()
        return _failed(job, "\n".join(filter(None, [f"the compiler did not end in {PATIENCE_S:.0f} seconds", told])))

    def _how(self) -> str:
        """How the process ended."""
        with suppress(subprocess.TimeoutExpired):
            status = self._process.wait(timeout=10)
            return f" ({signal.Signals(-status).name})" if status < 0 else f" (status {status})"
        return ""

    def _diagnosis(self) -> str:
        """The end of what was written since the job began."""
        size = os.fstat(self._told.fileno()).st_size
        begin = max(self._begun, size - _MOST_DIAGNOSIS)
        return os.pread(self._told.fileno(), size - begin, begin).decode(errors="replace").strip()

    def end(self) -> None:
        """Ends the process, and what it started."""
        self.is_alive = False
        self.connection.close()
        self._group.end()
        self._told.close()


def serve(parent: Connection) -> None:
    """Compiles jobs for the parent process, until it ends."""
    with suppress(EOFError):
        while True:
            parent.send(compile_job(parent.recv()))


def compile_job(job: Job) -> Outcome:
    """Compiles one job in this process."""
    from portakernel.runtime import dispatcher

    begin = time.perf_counter()
    try:
        now = dispatcher()
        kernel = now.registry.kernels[job.kernel]
        how: dict[str, Any] = {} if job.multiprocessors is None else {"multiprocessors": job.multiprocessors}
        target = Target.parse(job.target)
        with offline_context(now, kernel)(target, **how) as found:
            call_on_meta(now, kernel, job)
    except Exception as error:  # noqa: BLE001 - the plugin border: whatever a compiler raises is the outcome
        return _failed(job, f"{type(error).__name__}: {error}".strip(), time.perf_counter() - begin)
    evidence = kernel.evidence.get(target.vendor, "") if job.evidence else ""
    available = available_bytes(now.registry, target)
    seconds = time.perf_counter() - begin
    return Outcome(
        job.kernel, job.target, str(job), tuple(found), evidence, seconds=seconds, shared_bytes_available=available
    )


def _failed(job: Job, error: str, seconds: float = 0.0) -> Outcome:
    return Outcome(job.kernel, job.target, str(job), error=error, seconds=seconds)


def offline_context(dispatcher: Dispatcher, kernel: Kernel) -> Compiling:
    """The plugin's context for compiling for a target."""
    entry = dispatcher.registry.offline(kernel.plugin)
    if entry is None:
        raise LookupError(f"{kernel.plugin} does not compile for targets that are not here")
    context: Compiling = dispatcher.entry(entry)
    return context
