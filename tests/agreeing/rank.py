"""One rank: agrees as its argument says, counts collectives, and writes what came of it into a file."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from portakernel.agreement import agree
from portakernel.errors import PortakernelError

COLLECTIVES = [
    name
    for name in dir(dist)
    if name.startswith(
        ("all_", "broadcast", "reduce", "gather", "scatter", "barrier", "send", "recv", "isend", "irecv")
    )
    and callable(getattr(dist, name))
]


class Followed:
    """What a rank follows, as its argument says."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.target = given.get("target", "nvidia:sm_90/132")
        self.adopted: list[Any] = []

    def decisions(self) -> Any:
        if self.given.get("fails"):
            raise OSError(self.given["fails"])
        return {
            target: {"rms_norm": entries * self.given.get("times", 1)}
            for target, entries in self.given["decisions"].items()
        }

    def sources(self) -> Any:
        return self.given.get("sources", {"triton.rms_norm": "c718"})

    def adopt(self, decisions: Any) -> None:
        self.adopted.append(decisions)


def main() -> None:
    given = json.loads(sys.argv[1])
    counted: Counter[str] = Counter()
    store = dist.FileStore(f"{given['folder']}/store", given["world"])
    timeout = timedelta(seconds=given.get("timeout_s", 60))
    others = [rank for rank in range(given["world"]) if rank != given["rank"]]
    _meet(store, given["rank"], others, "begun")  # however long each of them takes to start
    dist.init_process_group("gloo", store=store, rank=given["rank"], world_size=given["world"], timeout=timeout)
    _meet(store, given["rank"], others, "connected")
    for name in COLLECTIVES:
        setattr(dist, name, _counting(name, getattr(dist, name), counted))
    if given.get("lost"):
        if given["lost"] == "silent":  # it is there, and does not come
            store.wait([f"done {rank}" for rank in others])
        _end(given, {"lost": True})
    followed, found = Followed(given), dict[str, Any]()
    began = time.monotonic()
    for _ in range(given.get("calls", 1)):
        try:
            group = given.get("group")
            found["doubt"] = agree(followed, dist.new_group(group) if isinstance(group, list) else group)
        except PortakernelError as error:
            found |= {"error": type(error).__name__, "text": str(error), **vars(error)}
    took = time.monotonic() - began
    store.set(f"done {given['rank']}", "")
    _end(given, {**found, "adopted": followed.adopted, "collectives": counted, "seconds": took})


def _meet(store: dist.Store, rank: int, others: list[int], where: str) -> None:
    store.set(f"{where} {rank}", "")
    store.wait([f"{where} {other}" for other in others], timedelta(seconds=60))


def _end(given: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    Path(given["folder"], f"{given['rank']}.json").write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)  # what is left of a group that lost a rank would be waited for


def _counting(name: str, collective: Callable[..., Any], counted: Counter[str]) -> Callable[..., Any]:
    def counting(*arguments: Any, **named: Any) -> Any:
        counted[name] += 1
        return collective(*arguments, **named)

    return counting
