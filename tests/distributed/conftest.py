"""Ranks in processes of their own; what one worker of the test run asked them, the others read."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

RANKS = Path(__file__).parent / "ranks"
PROGRAM = f"import sys; sys.path.insert(0, {str(RANKS)!r}); import main; main.main()"
# several times what they take on two busy cores
TIMEOUT_S = 480

# what each rank found in a part of the questions, on so many ranks of a device
Ask = Callable[[str, int, str], list[Any]]


@pytest.fixture(scope="session")
def ask(
    python: Callable[..., Any], imported_to_compile: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Ask:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def asked(part: str, world: int, device: str) -> list[Any]:
        folder = shared / f"ranks-{part}-{world}-{device}"
        folder.mkdir(exist_ok=True)
        answers = [folder / f"{rank}.json" for rank in range(world)]
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            failed = folder / "failed"
            if not failed.exists() and not all(answer.exists() for answer in answers):
                # what every rank imports sooner or later takes longer than what it is asked
                problem = _run(partial(python, imports=imported_to_compile), part, world, device, folder)
                if problem is not None:
                    failed.write_text(problem, encoding="utf-8")
            if failed.exists():
                pytest.fail(failed.read_text(encoding="utf-8"))
        return [json.loads(answer.read_text(encoding="utf-8")) for answer in answers]

    return asked


def _run(python: Callable[..., Any], part: str, world: int, device: str, folder: Path) -> str | None:
    """What went wrong, if anything did."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    loopback = [name for _, name in socket.if_nameindex() if re.fullmatch(r"lo\d*", name)]
    environment |= {"GLOO_SOCKET_IFNAME": loopback[0]} if loopback else {}

    def run(rank: int) -> int:
        words = ["-c", PROGRAM, rank, world, folder, device, part]
        try:
            ran = python(*words, env=environment, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            (folder / f"{rank}.log").write_text(f"{late.stdout}{late.stderr}\nnot done in {TIMEOUT_S} s")
            return -1
        (folder / f"{rank}.log").write_text(ran.stdout + ran.stderr, encoding="utf-8")
        return int(ran.returncode)

    with ThreadPoolExecutor(world) as threads:
        codes = list(threads.map(run, range(world)))
    return f"the ranks ended with {codes}\n{_logs(world, folder)}" if any(codes) else None


def _logs(world: int, folder: Path) -> str:
    texts = [(folder / f"{rank}.log").read_text(encoding="utf-8", errors="replace")[-4000:] for rank in range(world)]
    return "\n".join(f"--- rank {rank}\n{text}" for rank, text in enumerate(texts))
