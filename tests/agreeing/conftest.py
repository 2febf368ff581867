"""Ranks in processes of their own, over gloo, each with what it would follow."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

PROGRAM = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import rank; rank.main()"
# several times what they take on two busy cores
TIMEOUT_S = 120

# What each rank says, by what each of them would follow.
Agree = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def agree(python: Callable[..., Any], tmp_path: Path) -> Agree:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    loopback = [name for _, name in socket.if_nameindex() if re.fullmatch(r"lo\d*", name)]
    environment |= {"GLOO_SOCKET_IFNAME": loopback[0]} if loopback else {}

    def asked(*ranks: dict[str, Any], **common: Any) -> list[dict[str, Any]]:
        folder = tmp_path / str(sum(1 for _ in tmp_path.iterdir()))
        folder.mkdir()

        def run(rank: int) -> dict[str, Any]:
            given = {"rank": rank, "world": len(ranks), "folder": str(folder), **common, **ranks[rank]}
            ran = python("-c", PROGRAM, json.dumps(given), env=environment, timeout=TIMEOUT_S)
            assert ran.returncode == 0, ran.stderr
            found: dict[str, Any] = json.loads((folder / f"{rank}.json").read_text(encoding="utf-8"))
            return found

        with ThreadPoolExecutor(len(ranks)) as threads:
            return list(threads.map(run, range(len(ranks))))

    return asked
