"""One run of a compiler: in processes of its own, with so much time and memory, its words kept."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from portakernel.host.process_group import ProcessGroup
from portakernel.native.options import Limits

# The first errors say what is wrong, the end how it went on: of what is longer both are kept, and not the middle.
_MOST_TOLD = 64 << 10

# A shell sets the limit before the compiler runs, for whatever that starts too; between fork and exec a process with
# threads may not. Where the system knows no such limit (macOS) there is none.
_LIMITED = 'ulimit -v "$0" 2>/dev/null; exec "$@"'


# Set by whoever runs compilers in threads, for these: once the event is, what runs is ended.
GIVEN_UP: ContextVar[threading.Event | None] = ContextVar("GIVEN_UP", default=None)
_GLANCE_S = 0.1


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run ended: its status (negative: the signal), what it wrote to stdout and stderr, what it took."""

    status: int
    told: str
    seconds: float
    timed_out: bool = False

    @property
    def signal(self) -> str:
        """The name of the signal that ended it; empty where none did."""
        if self.status >= 0 or self.timed_out:
            return ""
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"


def run(command: Sequence[str], limits: Limits, *, folder: Path, given: bytes = b"") -> Ran:
    """Runs a command in ``folder``, where its temporary files go too, with ``given`` on its standard input.

    When it is over, or takes too long, or an exception passes, or this process ends, the whole of its process group is
    ended.

    Raises:
        OSError: it cannot be started.
    """
    begin = time.perf_counter()
    limited = ["/bin/sh", "-c", _LIMITED, str(max(1, limits.memory_bytes >> 10)), *command]
    # messages are read by people and by patterns: in English, without colours
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder), "NO_COLOR": "1"}
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as stdin:
        stdin.write(given)
        stdin.seek(0)
        with ProcessGroup() as group:
            process = group.start(limited, stdin=stdin, told=told, folder=folder, environment=environment)
            try:
                status, timed_out = _wait(process, limits.seconds), False
            except subprocess.TimeoutExpired:
                status, timed_out = -signal.SIGKILL, True
        return Ran(status, _read(told.fileno()), time.perf_counter() - begin, timed_out)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    """The status of a process when it ends; of one that nobody waits for any more, that of being killed."""
    given_up = GIVEN_UP.get()
    if given_up is None:
        return process.wait(seconds)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        if given_up.is_set():
            return -signal.SIGKILL
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_GLANCE_S)
    raise subprocess.TimeoutExpired(process.args, seconds)


def _read(file: int) -> str:
    size = os.fstat(file).st_size
    if size <= _MOST_TOLD:
        return os.pread(file, size, 0).decode(errors="replace")
    half = _MOST_TOLD // 2
    parts = os.pread(file, half, 0), os.pread(file, half, size - half)
    return "\n[...]\n".join(part.decode(errors="replace") for part in parts)
