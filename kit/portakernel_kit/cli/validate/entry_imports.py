"""Entries that do not import: each module of a plugin's entries, imported in a process of its own.

A plugin's module may print, exit, hang or end its process; here it does so to a child, which is given a time limit and
tells what happened, with the place in the package's own files.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from portakernel.registry.plugin_manager import Package
from portakernel_kit.cli.validate.problems import Problem

SECONDS = 60.0
# Reads {"path": [...], "folder": ..., "entries": [...]} and writes {entry: {"error", "file", "line"}} behind a mark,
# which tells it from what plugins print.
_MARK = "portakernel entries: "
_CHILD = f"""
import contextlib, importlib, json, sys, traceback
asked = json.loads(sys.stdin.readline())
sys.path[:0] = asked["path"]
found = {{}}
for entry in asked["entries"]:
    module, _, function = entry.partition(":")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            member = getattr(importlib.import_module(module), function)
        if not callable(member):
            raise TypeError(f"{{entry}} is a {{type(member).__name__}}, not a function")
    except BaseException as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(asked["folder"])]
        place = (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
        found[entry] = {{"error": f"{{type(error).__name__}}: {{error}}", "file": place[0], "line": place[1]}}
    print({_MARK!r} + json.dumps(found), flush=True)
"""


def import_problems(package: Package, entries: Sequence[str], seconds: float = SECONDS) -> Iterator[Problem]:
    """A problem for each of the entries that cannot be imported, or is no function."""
    if package.folder is None or not entries:
        return
    roots = package.folder.parents
    root = roots[package.module.count(".")]
    asked = {"path": [str(root.resolve())], "folder": str(package.folder.resolve()), "entries": list(entries)}
    where = str(package.folder)
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _CHILD], input=json.dumps(asked), capture_output=True, text=True, timeout=seconds,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        done = (error.stdout or b"").decode(errors="replace").count(_MARK)  # bytes, whatever `text` says
        text = f"importing {entries[done]} takes longer than {seconds:g} s; do at the first call what takes so long"
        yield Problem(where, None, None, text)
        return
    lines = [line.partition(_MARK)[2] for line in ran.stdout.splitlines() if _MARK in line]
    found: Mapping[str, Mapping[str, str | int | None]] = json.loads(lines[-1]) if lines else {}
    for entry, fault in found.items():
        file, line = fault["file"], fault["line"]
        place = str(Path(str(file))) if file else where
        text = f"importing {entry} raised {fault['error']}; import what may be missing where it is used"
        yield Problem(place, int(line) if line else None, None, text)
    if len(lines) < len(entries):
        ended = f"ended its process with status {ran.returncode}"
        yield Problem(where, None, None, f"importing {entries[len(lines)]} {ended}; a module must not end the program")
