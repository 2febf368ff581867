"""Runs a fault in a process of its own, within a time limit, so that one that hangs or crashes fails its test alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fault_process
import pytest

SECONDS = 60.0
# Where faults find `fault_fakes`; a fault's process has the path of the one that starts it.
sys.path.append(str(Path(__file__).parent))


@dataclass(frozen=True)
class Outcome:
    """How a fault's process ended: the status (negative: a signal), what it printed, and what its function returned."""

    status: int
    stdout: str
    stderr: str
    returned: Any


@pytest.fixture
def fault(fork_server: Any, tmp_path: Path) -> Callable[..., Outcome]:
    """``fault(function, *arguments, env={...}, seconds=60)``: calls a test module's function in a process of its own.

    The process begins as one does that has imported portakernel and called nothing, with ``HOME`` an empty folder and
    no ``PORTAKERNEL_*`` variable but those in ``env``. Arguments and what it returns are JSON. It fails the test
    where the process takes longer than ``seconds``.
    """
    number = iter(range(1000))

    def run(
        function: Callable[..., Any], *arguments: Any, env: Mapping[str, str] | None = None, seconds: float = SECONDS
    ) -> Outcome:
        folder = tmp_path / f"fault-{next(number)}"
        (folder / "home").mkdir(parents=True)
        variables = {"HOME": str(folder / "home"), **(env or {})}
        where = function.__code__.co_filename, function.__qualname__
        process = fork_server.Process(
            target=fault_process.run, args=(str(folder), *where, json.dumps(arguments), variables)
        )
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            said = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
            pytest.fail(f"{function.__qualname__} was still running after {seconds} s; its stderr:\n{said}")
        returned = folder / "returned"
        return Outcome(
            process.exitcode,
            (folder / "stdout").read_text(encoding="utf-8", errors="replace"),
            (folder / "stderr").read_text(encoding="utf-8", errors="replace"),
            json.loads(returned.read_text(encoding="utf-8")) if returned.exists() else None,
        )

    return run
