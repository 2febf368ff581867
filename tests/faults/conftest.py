"""Runs a fault in a process of its own, within a time limit, so that one that hangs or crashes fails its test alone."""

from __future__ import annotations

import gc
import importlib.util
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        process = fork_server.Process(target=_child, args=(str(folder), *where, json.dumps(arguments), variables))
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


def _child(folder: str, file: str, name: str, arguments: str, variables: Mapping[str, str]) -> None:
    gc.freeze()  # what was imported before the fork is not looked at again
    for number, stream in ((1, "stdout"), (2, "stderr")):
        descriptor = os.open(os.path.join(folder, stream), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(n, "w", closefd=False), write_through=True) for n in (1, 2))
    for variable in [variable for variable in os.environ if variable.startswith("PORTAKERNEL_")]:
        del os.environ[variable]
    os.environ.update(variables)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    spec = importlib.util.spec_from_file_location("fault_module", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fault_module"] = module
    spec.loader.exec_module(module)
    returned = getattr(module, name)(*json.loads(arguments))
    with open(os.path.join(folder, "returned"), "w", encoding="utf-8") as file_object:
        json.dump(returned, file_object)
