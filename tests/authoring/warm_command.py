"""Stands for a Python whose program a process runs that has imported torch (tests/warm_python.py).

``warm_command.py SOCKET REQUEST -m MODULE ...``, or ``-c CODE ...`` or ``FILE ...``: REQUEST is JSON, what the program
is told besides. It has this process's streams and descriptors, folder, variables and group, and this process ends as it
does; where this one is killed, so is the program.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys


def main() -> int:
    address, request, *arguments = sys.argv[1:]
    numbers = [number for number in map(int, os.listdir("/dev/fd")) if _is_open(number)]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program's to answer, which is in the same group
    asked = {"arguments": arguments, "env": dict(os.environ), "cwd": os.getcwd(), "group": os.getpgrp()}
    line = json.dumps({**asked, "numbers": numbers, **json.loads(request)}).encode() + b"\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        connection.sendall(line[socket.send_fds(connection, [line], numbers) :])
        for number in numbers:  # whoever waits for their other ends waits for the program
            os.close(number)
        answers = connection.makefile("r")
        answers.readline()
        status = int(answers.readline())
    if status < 0:
        with contextlib.suppress(OSError):  # of SIGKILL
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _is_open(number: int) -> bool:
    """Of those that are listed, one is the list's."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    os._exit(main())
