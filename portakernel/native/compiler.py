"""A compiler, as all are used: one command for a task, and what it leaves behind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from portakernel.native.options import CompilerName, Limits
from portakernel.native.process import Ran, run
from portakernel.native.staging import Task
from portakernel.registry.plugin_manager import find_folder

# Enough to print a version.
BRIEF = Limits(seconds=60.0, memory_bytes=16 << 30)


@dataclass(frozen=True, slots=True)
class Made:
    """What a compiler made: machine code, assembly, and the symbols of what was named, where it tells.

    ``device_code`` is the machine code that the GPU runs: of a library, what is inside it.
    """

    code: bytes
    device_code: tuple[bytes, ...]
    assembly: str
    lowered: dict[str, str]
    log: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that was found. ``details`` are versions of what goes with it: headers, device libraries.

    ``command`` is what compiles a task, ``given`` what that reads from its standard input. ``prepare`` runs before.
    """

    name: CompilerName
    version: str
    path: Path
    details: str
    command: Callable[[Task], Sequence[str]]
    given: Callable[[Task], bytes] = lambda task: b""
    prepare: Callable[[Task], Ran | None] = lambda task: None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def identity(self) -> str:
        """All of it that decides about the code; part of the cache's key."""
        return f"{self.name} {self.version} {self.details}".rstrip()

    def run(self, task: Task) -> Ran:
        """Compiles; its products are in the task's folder.

        Raises:
            OSError: it cannot be started, or the folder not be written.
        """
        before = self.prepare(task)
        if before is not None and before.status != 0:
            return before
        return run(self.command(task), task.options.limits, folder=task.folder, given=self.given(task))

    def collect(self, task: Task, ran: Ran) -> Made | None:
        """What a run made; None where it left no code."""
        code = task.made / "code"
        if ran.status != 0 or not code.is_file() or not (content := code.read_bytes()):
            return None
        parts = [*sorted(task.made.glob("*.ptx")), *sorted(task.made.glob("*.s"))]
        assembly = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in parts)
        names = task.made / "names.json"
        lowered = json.loads(names.read_bytes()) if names.is_file() else {}
        inside = [path.read_bytes() for path in sorted(task.made.glob("*.cubin"))]
        device_code = (content,) if task.form == "code object" else tuple(inside)
        return Made(content, device_code, assembly, lowered, task.put_back(ran.told).strip(), ran.seconds)


def version_of(path: Path) -> str:
    """What ``--version`` prints; empty where that fails."""
    try:
        ran = run([str(path), "--version"], BRIEF, folder=Path(os.sep))
    except OSError:
        return ""
    return ran.told if ran.status == 0 else ""


def on_path(name: str) -> list[Path]:
    """Every executable of this name along PATH, in order."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return [path for folder in folders if (path := Path(folder or ".", name)).is_file() and os.access(path, os.X_OK)]


def packaged(folder: str) -> list[Path]:
    """Folders inside NVIDIA's packages on PyPI (``nvidia/*/bin``), those of the newest CUDA first."""
    root = find_folder("nvidia")
    return sorted(root.glob(f"*/{folder}"), reverse=True) if root is not None else []
