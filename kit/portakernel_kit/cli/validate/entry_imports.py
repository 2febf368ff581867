"""Entries that do not import: the modules of a plugin's entries, and of the ops it ships, imported in other processes.

A plugin's module may print, exit, hang or end its process; here it does so to a child, which is given a time limit and
tells what happened, with the place in the package's own files.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from portakernel.registry.plugin_manager import Package
from portakernel_kit.cli.validate.problems import Problem

SECONDS = 60.0
# A contract's module loads no torch, so that it is there at once.
CONTRACT_SECONDS = 10.0
# Reads {"path": [...], "folder": ..., "entries": [...], "functions": bool}. Behind a mark, which tells it from what
# plugins print, it writes after each entry {entry: {"error", "file", "line"}} of those that failed until then, and
# whether torch is loaded.
_MARK = "portakernel entries: "
_CHILD = f"""
import contextlib, importlib, json, sys, traceback
asked = json.loads(sys.stdin.readline())
sys.path[:0] = asked["path"]
found = {{}}
had_torch = "torch" in sys.modules  # by a .pth file of the environment, say
for entry in asked["entries"]:
    module, _, function = entry.partition(":")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            member = getattr(importlib.import_module(module), function)
        if asked["functions"] and not callable(member):
            raise TypeError(f"{{entry}} is a {{type(member).__name__}}, not a function")
    except BaseException as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(asked["folder"])]
        place = (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
        found[entry] = {{"error": f"{{type(error).__name__}}: {{error}}", "file": place[0], "line": place[1]}}
    print({_MARK!r} + json.dumps([found, "torch" in sys.modules and not had_torch]), flush=True)
"""


@dataclass(frozen=True, slots=True)
class _Ran:
    """What importing entries one after the other came to: ``done`` of them, and how the next one ended the process."""

    failed: Mapping[str, Mapping[str, str | int | None]]
    loads_torch: tuple[bool, ...]
    ended: str

    @property
    def done(self) -> int:
        """How many entries were imported, or raised."""
        return len(self.loads_torch)


@dataclass(frozen=True, slots=True)
class ContractImports:
    """Of contracts' entries: why one must not be imported here, and those whose import loads torch."""

    deadly: Mapping[str, str]
    loading_torch: frozenset[str]


def import_problems(package: Package, entries: Sequence[str], seconds: float = SECONDS) -> Iterator[Problem]:
    """A problem for each of the entries that cannot be imported, or is no function."""
    if package.folder is None or not entries:
        return
    where = str(package.folder)
    ran = _import(package, entries, seconds, functions=True)
    for entry, fault in ran.failed.items():
        file, line = fault["file"], fault["line"]
        place = str(Path(str(file))) if file else where
        text = f"importing {entry} raised {fault['error']}; import what may be missing where it is used"
        yield Problem(place, int(line) if line else None, None, text)
    if ran.done < len(entries):
        yield Problem(where, None, None, f"importing {entries[ran.done]} {ran.ended}")


def import_contracts(package: Package, entries: Sequence[str], seconds: float = CONTRACT_SECONDS) -> ContractImports:
    """What comes of importing contracts' modules; one that raises says so wherever it is imported, and is left out."""
    deadly, loading, left = dict[str, str](), set[str](), list(entries)
    while left and package.folder is not None:
        ran = _import(package, left, seconds, functions=False)
        before = False
        for entry, loaded in zip(left, ran.loads_torch, strict=False):
            loading |= {entry} if loaded and not before else set()
            before = loaded
        if ran.done < len(left):
            deadly[left[ran.done]] = f"importing {left[ran.done]} {ran.ended}"
        left = left[ran.done + 1 :]
    return ContractImports(deadly, frozenset(loading))


def _import(package: Package, entries: Sequence[str], seconds: float, *, functions: bool) -> _Ran:
    folder = package.folder or Path()
    root = str(folder.resolve().parents[package.module.count(".")])
    asked = {"path": [root], "folder": str(folder.resolve()), "entries": list(entries), "functions": functions}
    ended = ""
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _CHILD], input=json.dumps(asked), capture_output=True, text=True, timeout=seconds,
            check=False,
        )  # fmt: skip
        output = ran.stdout
        ended = f"ended its process with status {ran.returncode}; a module must not end the program"
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")  # bytes, whatever `text` says
        ended = f"takes longer than {seconds:g} s; do at the first call what takes so long"
    told = [json.loads(line.partition(_MARK)[2]) for line in output.splitlines() if _MARK in line]
    return _Ran(told[-1][0] if told else {}, tuple(torch for _, torch in told), ended)
