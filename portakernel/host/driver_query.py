"""Asking a vendor's driver in a child process: its library may hang or abort, which then costs the child alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from portakernel.errors import DriverError

# Without persistence mode the driver wakes each GPU up, for a second or two.
LIMIT_S = 30.0
_KILLED_S = 1.0


def query(script: Path, *, limit_s: float = LIMIT_S) -> Any:
    """What a file of plain Python prints, as JSON; it can import the standard library alone, which starts in 15 ms.

    Its argument is the limit in seconds: the script ends itself after that, should this process be killed meanwhile.

    Raises:
        DriverError: it took longer, was ended by a signal, or failed; the text says what to do.
        OSError: it cannot be started at this moment.
    """
    command = [sys.executable, "-I", "-S", os.fspath(script), str(limit_s)]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = child.communicate(timeout=limit_s)
    except BaseException as error:
        _abandon(child)
        if isinstance(error, subprocess.TimeoutExpired):
            raise DriverError(f"did not answer within {limit_s:g} s") from None
        raise
    if child.returncode < 0:
        with contextlib.suppress(ValueError):
            raise DriverError(f"ended the process that asked it, by {signal.Signals(-child.returncode).name}")
        raise DriverError(f"ended the process that asked it, by signal {-child.returncode}")
    try:
        return json.loads(out)
    except ValueError as error:
        last = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise DriverError(f"gave no answer (status {child.returncode}): {last[:200] or 'without a word'}") from error


def _abandon(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()
    try:
        child.wait(_KILLED_S)
    except subprocess.TimeoutExpired:  # stuck inside the driver, where no signal reaches it
        child.returncode = -signal.SIGKILL
