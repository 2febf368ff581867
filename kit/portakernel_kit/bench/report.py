"""The results of a run as they come: one document, written so that it is whole whenever the run ends; no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portakernel.errors import ArgumentValueError
from portakernel.host.json_file import finite, read_json
from portakernel.host.output_file import write_at_once
from portakernel_kit.bench.results import BEYOND, Cell, LeftOut, routing

if TYPE_CHECKING:
    from portakernel_kit.bench.launches import LaunchCell

FORMAT = 1


@dataclass(slots=True)
class Report:
    """What was measured so far; ``interrupted`` until the last cell is there."""

    circumstances: dict[str, Any]
    options: Mapping[str, Any]
    cells: list[Cell] = field(default_factory=list[Cell])
    left_out: list[LeftOut] = field(default_factory=list[LeftOut])
    launches: list[LaunchCell] = field(default_factory=list["LaunchCell"])
    interrupted: bool = True

    def add(self, found: Cell | LeftOut) -> None:
        """Takes in one more."""
        if isinstance(found, Cell):
            self.cells.append(found)
        else:
            self.left_out.append(found)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-ready data; stable."""
        return {
            "format": FORMAT,
            "circumstances": dict(self.circumstances),
            "options": dict(self.options),
            "interrupted": self.interrupted,
            "routing": routing(self.cells),
            "cells": [cell.to_json() for cell in self.cells],
            "left_out": [entry.to_json() for entry in self.left_out],
            "launches": [cell.to_json() for cell in self.launches],
        }

    def losses(self) -> list[tuple[Cell, str, float]]:
        """Calls whose picked kernel takes over 5 % longer than another: the call, that one, and by how much."""
        behind = [(cell, *found) for cell in self.cells if (found := cell.behind()) and found[1] > BEYOND]
        return sorted(behind, key=lambda loss: -loss[2])

    def status(self) -> int:
        """The exit status: 130 when interrupted, 0 when something was timed and nothing was wrong or raised, else 1."""
        if self.interrupted:
            return 130
        kernels = [measured for cell in self.cells for measured in cell.kernels]
        launched = [row for cell in self.launches for row in cell.kernels]
        timed = any(measured.status == "timed" for measured in kernels) or any(row.bursts for row in launched)
        bad = any(measured.status in ("wrong", "failed") for measured in kernels) or any(row.reason for row in launched)
        return 0 if timed and not bad else 1

    def write(self, path: Path) -> None:
        """Puts the whole document in the place of the one before it, never a part of one."""
        write_whole(self.to_json(), path)


def write_whole(document: Mapping[str, Any], path: Path) -> None:
    """Puts a JSON document in the place of the one before it, never a part of one."""
    write_at_once(path, json.dumps(finite(document), indent=1) + "\n")


def new_file(folder: Path, device: str, date: str, command: str = "bench") -> Path:
    """``<command>-<device>-<date>.json`` in ``folder``, of letters, digits and hyphens; empty, and this process's own.

    A number tells it from that of another run which began in the same second.

    Raises:
        ArgumentValueError: the folder cannot be made, or written.
    """
    words = re.sub(r"[^a-z0-9]+", "-", f"{command} {device} {date[:19]}".lower()).strip("-")
    path, number = folder / f"{words}.json", 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                number += 1
                path = folder / f"{words}-{number}.json"
            else:
                return path
    except OSError as error:
        text = f"no results can be written to {folder}: {error.strerror or error}"
        raise ArgumentValueError(f"{text}; name a folder that can be made or written with --output") from error


def read_report(path: Path) -> dict[str, Any]:
    """A report that was written before.

    Raises:
        ArgumentValueError: there is none, or it is of another form.
    """
    try:
        found = read_json(path)
    except OSError as error:
        raise ArgumentValueError(f"--compare {path}: {error.strerror}; give a file that --output wrote") from error
    except ValueError as error:
        raise ArgumentValueError(
            f"--compare {path}: this is no JSON ({error}); give a file that --output wrote"
        ) from error
    known = isinstance(found, dict) and found.get("format") == FORMAT and isinstance(found.get("cells"), list)
    if not known:
        text = f"is no result of `portakernel bench` (format {FORMAT}); give a file that --output wrote"
        raise ArgumentValueError(f"--compare {path}: {text}")
    return dict(found)


def compare(now: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each kernel on each request that both runs timed: both times, and now over before."""
    old = {key: row for cell in before for key, row in _timed(cell).items()}
    found = []
    for cell in now:
        for key, row in _timed(cell).items():
            if key in old:
                before_us = float(old[key]["latency_us"])
                found.append(
                    {
                        "op": cell["op"],
                        "case": cell["case"],
                        "phase": cell["phase"],
                        "dtypes": cell["dtypes"],
                        "kernel": row["kernel"],
                        "before_us": before_us,
                        "latency_us": row["latency_us"],
                        "ratio": row["latency_us"] / before_us,
                    }
                )
    return found


def _timed(cell: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The timed kernels of a cell, by what tells one measurement from any other."""
    what = {key: cell[key] for key in ("op", "phase", "dtypes", "shapes", "values")}
    # what was read was JSON, where a tuple is a list
    name = json.dumps(what, sort_keys=True)
    return {f"{name} {row['kernel']}": row for row in cell["kernels"] if row["status"] == "timed" and row["latency_us"]}
