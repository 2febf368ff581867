"""What the tests of both Hopper kernels of attention share: what they compile for, and a kernel without a wait."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

# Widths, masks and dtypes that a kernel is compiled for: each value of one meets each of the others.
COMPILED_FOR = [
    (64, False, torch.bfloat16),
    (64, True, torch.float16),
    (128, False, torch.float16),
    (128, True, torch.bfloat16),
]


def mutants(kernel: ModuleType, needless: str | None = None) -> Iterator[Any]:
    """Each line that waits, arrives or announces bytes, but those with ``needless``, as it is without that."""
    for number, line in enumerate(inspect.getsource(kernel).splitlines()):
        if needless is not None and needless in line:
            continue
        if waited := re.search(r"([\w, ]+) = warpgroup_mma_wait\((\w+), deps=\(([\w, ]+)\)\)", line):
            changed = f"{waited[1].strip()} = warpgroup_mma_wait({waited[2]} + 1, deps=({waited[3]}))"
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
