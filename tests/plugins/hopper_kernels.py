"""What the tests of both Hopper kernels of attention share: sequences, and a kernel without one of its waits."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Numbers of queries and keys of each sequence, and of rows behind the last one.
RAGGED = {
    "one": ([(130, 200)], 0),
    "several": ([(1, 64), (129, 129), (200, 70), (64, 300)], 0),
    "without queries or keys": ([(0, 50), (100, 0), (0, 0), (128, 128), (0, 7)], 9),
    "rows behind": ([(70, 90)], 150),
    "many": ([(n % 7, n % 5 + 1) for n in range(12)], 3),
    "none": ([], 5),
}


def mutants(kernel: ModuleType, needless: str) -> Iterator[Any]:
    """Each line that waits, arrives or announces bytes, but those with ``needless``, as it is without that."""
    for number, line in enumerate(inspect.getsource(kernel).splitlines()):
        if needless in line:
            continue
        if waited := re.search(r"(\w+) = warpgroup_mma_wait\((\w+), deps=\((\w+),\)\)", line):
            changed = f"{waited[1]} = warpgroup_mma_wait({waited[2]} + 1, deps=({waited[3]},))"
        elif re.search(r"mbarrier\.(wait|arrive|expect)\(|\bstore_wait", line):
            changed = "pass"
        else:
            continue
        indent = line[: len(line) - len(line.lstrip())]
        yield pytest.param(number, indent + changed, id=f"{number}: {line.strip()}")


def mutated(kernel: ModuleType, number: int, line: str, path: Path) -> ModuleType:
    """The kernel's module with another line, whose source is written to ``path``."""
    lines = inspect.getsource(kernel).splitlines()
    lines[number] = line
    path.write_text("\n".join(lines), encoding="utf-8")
    module = ModuleType(kernel.__name__)
    module.__file__ = str(path)
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), vars(module))
    return module
