"""A Python that has imported torch and forks itself for each program, so that tests need not wait for that import.

Started as a script with a listening Unix socket, its address and what every program imports; the other end is the
fixture ``python`` in ``tests/conftest.py``, or ``tests/authoring/warm_command.py`` in the place of an interpreter.
Whoever asks for more imports is told the address of a process that has them too, which is forked from this one. Without
portakernel among them, a program's variables are in force when that is imported.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import multiprocessing.spawn
import os
import runpy
import select
import signal
import site
import socket
import sys
import threading
import traceback
import types
from typing import Any

# Of what a process has open itself the numbers are above those that a program is handed.
OWN = 200
MOST_HANDED = 64
HUGE, MADV_COLLAPSE = 2 << 20, 25


class Server:
    """Listens at an address, and forks for each program; it waits for none of them, and tells how each ended."""

    def __init__(self, listener: socket.socket, address: str, imports: list[str]) -> None:
        self.listener, self.address, self.imports = listener, address, imports
        self.beside: dict[tuple[str, ...], str] = {}
        self.variables: dict[str, str] = {}  # that imports have set
        self.running: dict[int, socket.socket] = {}
        self.is_warm = False

    def serve(self) -> dict[str, Any] | None:
        """The request, in the process that is to run it; None in this one, at the end: that of its stdin."""
        self._hear_of_ends()
        while True:
            waiting = [self.listener, self.woken, sys.stdin, *self.running.values()]
            ready = select.select(waiting, [], [])[0]
            if sys.stdin in ready:
                return self._ended()
            if self.woken in ready:
                self._tell_ends()
            for program, connection in list(self.running.items()):
                if connection in ready:  # it is at its end: nobody waits for the program any more
                    os.kill(program, signal.SIGKILL)
                    self.running.pop(program).close()
            if self.listener in ready:
                connection, _ = self.listener.accept()
                if (request := self._answered(connection)) is not None:
                    return request

    def _answered(self, connection: socket.socket) -> dict[str, Any] | None:
        """The request, where it is a program's and this the process that was forked for it."""
        request, handed = _received(connection)
        if not self.is_warm:
            self._warm_up()
        if "arguments" in request:
            if (program := os.fork()) == 0:
                self._forget()
                connection.close()
                return {**request, "handed": handed, "variables": self.variables}
            self.running[program] = connection
            _tell(connection, str(program))
        else:
            with connection:
                if "imports" in request and (address := self._address_of(request["imports"])):
                    _tell(connection, address)
        for descriptor in handed:
            os.close(descriptor)
        return None

    def _warm_up(self) -> None:
        before = dict(os.environ)
        for name in self.imports:
            with contextlib.suppress(ImportError):  # then programs lack it, too
                importlib.import_module(name)
        self.variables |= {name: value for name, value in os.environ.items() if before.get(name) != value}
        gc.freeze()  # what is imported is not looked at again in each fork
        gc.set_threshold(20_000, 50, 100)  # nor what a program makes as often as is Python's way, see conftest.py
        _use_huge_pages()
        self.is_warm = True

    def _address_of(self, imports: list[str]) -> str:
        """Of a process that has imported these too; in that process, when it begins, nothing."""
        more = tuple(name for name in imports if name not in self.imports)
        if not more:
            return self.address
        if more not in self.beside:
            address = f"{self.address}-{len(self.beside)}"
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            listener.listen()
            listener = socket.socket(fileno=_own(listener.detach()))
            if os.fork() == 0:
                self._forget()
                self.address, self.listener, self.imports, self.beside = address, listener, [*self.imports, *more], {}
                self._hear_of_ends()
                self._warm_up()
                return ""
            listener.close()
            self.beside[more] = address
        return self.beside[more]

    def _hear_of_ends(self) -> None:
        # A handler that writes, no wakeup descriptor: an event loop that an import runs takes that away as it closes.
        self.woken, self.waking = map(_own, os.pipe())
        os.set_blocking(self.woken, False)
        os.set_blocking(self.waking, False)
        signal.signal(signal.SIGCHLD, self._wake)

    def _wake(self, *_: object) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full: it wakes all the same
            os.write(self.waking, b"-")

    def _tell_ends(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.woken, 1 << 16)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if (connection := self.running.pop(ended[0], None)) is not None:
                    with connection:
                        _tell(connection, str(os.waitstatus_to_exitcode(ended[1])))

    def _forget(self) -> None:
        """In a forked process, what is this one's."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self.waking)
        os.close(self.woken)
        for connection in (self.listener, *self.running.values()):
            connection.close()
        self.running = {}

    def _ended(self) -> None:
        """Waits for those beside it, which end for the same reason."""
        for program in self.running:
            os.kill(program, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()


def _use_huge_pages() -> None:
    """Moves this process's memory to pages of 2 MiB, where Linux has them (6.1): a fork takes 6 ms then, not 17."""
    with contextlib.suppress(OSError, AttributeError), open("/proc/self/maps", encoding="utf-8") as mappings:
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for place, rights, _, _, _, *name in map(str.split, mappings.readlines()):
            begin, end = (int(address, 16) for address in place.split("-"))
            if rights == "rw-p" and name in ([], ["[heap]"]):
                for page in range(-(-begin // HUGE) * HUGE, end - HUGE + 1, HUGE):
                    madvise(page, HUGE, MADV_COLLAPSE)


def _own(descriptor: int) -> int:
    """The descriptor under a number of this process's own."""
    own = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, OWN)
    os.close(descriptor)
    return own


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What is asked, and the descriptors that come with it; nothing from whoever has gone."""
    line, handed = b"", list[int]()
    with contextlib.suppress(OSError):
        line, handed, _, _ = socket.recv_fds(connection, 1 << 20, MOST_HANDED)
        while not line.endswith(b"\n") and (more := connection.recv(1 << 20)):
            line += more
    return json.loads(line) if line.endswith(b"\n") else {}, handed


def _tell(connection: socket.socket, text: str) -> None:
    with contextlib.suppress(OSError):  # nobody waits any longer
        connection.sendall(f"{text}\n".encode())


def become(request: dict[str, Any]) -> None:
    """Takes the place that a fresh Python would have: streams, folder, variables, group, arguments, path."""
    handed = dict(zip(request["numbers"], map(_own, request["handed"]), strict=True))
    if 0 not in handed:
        handed[0] = _own(os.open(os.devnull, os.O_RDONLY))
    for number, descriptor in handed.items():
        os.dup2(descriptor, number)
        os.close(descriptor)
    # anew, since the old ones know whether what they wrote to is a file
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update({**request["variables"], **request["env"]})
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "group" in request:  # that of the process which stands for it, unless that has gone
        with contextlib.suppress(OSError):
            os.setpgid(0, request["group"])
    searched = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = ["", *searched]
    if "site" in request:  # and what was installed there since
        site.addsitedir(request["site"])
    if "executable" in request:  # what it starts as Python is forked too
        sys.executable = request["executable"]
        multiprocessing.spawn.set_executable(sys.executable)


def run(request: dict[str, Any]) -> None:
    """What ``python -c CODE``, ``python -m MODULE`` or ``python FILE`` does."""
    kind, *arguments = request["arguments"]
    if kind == "-m":
        sys.path[0] = os.getcwd()
        sys.argv[:] = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv[:] = [kind, *arguments[1:]]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), vars(main))
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(kind))
        sys.argv[:] = [kind, *arguments]
        runpy.run_path(kind, run_name="__main__")


def outcome(request: dict[str, Any]) -> int:
    """The status that the program ends with; what it raises is printed as Python prints it."""
    try:
        run(request)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except Exception as error:  # noqa: BLE001 - of any program
        # without the lines of this file
        behind = error.__traceback__
        while behind is not None and behind.tb_frame.f_code.co_filename == __file__:
            behind = behind.tb_next
        traceback.print_exception(type(error), error, behind)
        return 1
    return 0


def end(status: int) -> None:
    """Ends as Python does, without taking modules apart, which would copy what is shared with the first process."""
    threading._shutdown()  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):  # closed at the other end
            status = 120
    ctypes.CDLL(None).fflush(None)  # C's own streams
    os._exit(status & 0xFF)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted run ends by its stdin
    server = Server(socket.socket(fileno=_own(int(sys.argv[1]))), sys.argv[2], sys.argv[3:])
    if (asked := server.serve()) is not None:
        become(asked)
        end(outcome(asked))
    os._exit(0)  # what is frozen is not freed, of which libraries would tell
