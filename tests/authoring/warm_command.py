"""A command of a terminal, run by a process that has imported torch (tests/warm_python.py): same streams, same folder.

``warm_command.py SOCKET SITE -m MODULE ...``: SITE is where the environment's packages are, some of them since that
process started.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def main() -> int:
    address, site, *arguments = sys.argv[1:]
    request = {"arguments": arguments, "env": dict(os.environ), "cwd": os.getcwd(), "site": site}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        line = json.dumps(request).encode() + b"\n"
        connection.sendall(line[socket.send_fds(connection, [line], [1, 2]) :])
        answers = connection.makefile("r")
        answers.readline()
        status = int(answers.readline())
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
