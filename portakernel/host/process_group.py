"""A group of processes that ends with this one, however this one ends: what a killed program started goes with it.

A compiler starts others, which take gigabytes and minutes, and nobody ends those when the program that wanted them is
killed. The system tells no process of that, but it closes the program's pipes: a shell that leads the group waits at
the end of one, and ends the group when it is closed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

# `read` returns when the pipe is closed. The shell kills itself too, last of all.
_WATCHER = ["/bin/sh", "-c", "read -r _; kill -KILL 0"]

_groups: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


class ProcessGroup:
    """A group of processes; as a context, and by ``end``, it is ended with all that they started.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        reading, self._lifeline = os.pipe()
        try:
            self._watcher = subprocess.Popen(
                _WATCHER, stdin=reading, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(reading)
        self._started: list[subprocess.Popen[bytes]] = []
        _groups.add(self)

    @property
    def id(self) -> int:
        """The group's number: a process may join it with ``os.setpgid(0, id)``, as long as it is not ended."""
        return self._watcher.pid

    def start(
        self,
        command: Sequence[str],
        *,
        stdin: int | IO[bytes],
        told: IO[bytes],
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Starts a command in the group, in ``folder``; what it writes to stdout and stderr goes to ``told``.

        ``descriptors`` are those that it has besides.

        Raises:
            OSError: it cannot be started.
        """
        process = subprocess.Popen(
            command, stdin=stdin, stdout=told, stderr=told, process_group=self.id, cwd=folder, env=environment,
            pass_fds=descriptors,
        )  # fmt: skip
        self._started.append(process)
        return process

    def end(self) -> None:
        """Ends all processes of the group, and waits for those that were started here; a second time nothing."""
        if self._lifeline < 0:
            return
        # the watcher is not waited for before, so that the number is still the group's
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.id, signal.SIGKILL)
        for process in (*self._started, self._watcher):
            process.wait()
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def release(self) -> None:
        """Lets go of the group, which lives on where another process holds on to it."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _let_go() -> None:
    """In a forked child: the group is its parent's, and must not live on with the child."""
    for group in list(_groups):
        group.release()


os.register_at_fork(after_in_child=_let_go)
