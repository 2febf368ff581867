"""A Python that has imported torch and forks itself for each program, so that tests need not wait for that import.

Started as a script with the address of a Unix socket and the modules to import; the other end is the fixture ``python``
in ``tests/conftest.py``. Without portakernel among them, a program's variables are in force when that is imported.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
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


def serve(address: str) -> dict[str, Any] | None:
    """Forks for each request; returns it in the process that is to run it, and None in this one, at the end."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while listener in select.select([listener, sys.stdin], [], [])[0]:  # stdin ends with the one who started this
            connection, _ = listener.accept()
            with connection:
                # One process in between waits for the program and tells how it ended; this one waits for nobody.
                if os.fork() == 0:
                    listener.close()
                    return _kept(connection)
            _forget_ended()
    return None


def _forget_ended() -> None:
    """Of the processes in between."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _kept(connection: socket.socket) -> dict[str, Any]:
    """Returns in the program's process only."""
    line, streams, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    while not line.endswith(b"\n"):
        line += connection.recv(1 << 20)
    program = os.fork()
    if program == 0:
        return {**json.loads(line), "streams": streams}
    for stream in streams:
        os.close(stream)
    with connection, contextlib.suppress(BrokenPipeError):  # nobody waits any longer
        connection.sendall(f"{program}\n".encode())
        status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        connection.sendall(f"{status}\n".encode())
    os._exit(0)


def become(request: dict[str, Any]) -> None:
    """Takes the place that a fresh Python would have: streams, folder, variables, arguments, path."""
    for number, stream in enumerate((os.open(os.devnull, os.O_RDONLY), *request["streams"])):
        os.dup2(stream, number)
        os.close(stream)
    # anew, since the old ones know whether what they wrote to is a file
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    searched = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = ["", *searched]
    if "site" in request:  # and what was installed there since
        site.addsitedir(request["site"])


def run(request: dict[str, Any]) -> None:
    """What ``python -c CODE`` or ``python -m MODULE`` does."""
    kind, what, *arguments = request["arguments"]
    if kind == "-m":
        sys.path[0] = os.getcwd()
        sys.argv[:] = [what, *arguments]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = [kind, *arguments]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    exec(compile(what, "<string>", "exec"), vars(main))


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
    os._exit(status & 0xFF)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted run ends by its socket
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()  # what is imported is not looked at again in each fork
    if (asked := serve(sys.argv[1])) is not None:
        become(asked)
        end(outcome(asked))
