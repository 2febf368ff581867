"""Type checkers give results the arguments' kind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
from typing import assert_type

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from portakernel import ops


def calls(t: Tensor, p: nn.Parameter, a: NDArray[np.float32], b: NDArray[np.float16]) -> None:
    assert_type(ops.rms_norm(t, p), Tensor)
    assert_type(ops.rms_norm(p, p, out=t), Tensor)
    assert_type(ops.add_rms_norm(t, t, t), tuple[Tensor, ...])
    assert_type(ops.rms_norm(a, a), NDArray[np.float32])
    assert_type(ops.rms_norm(a, b, out=a, copy=False), NDArray[np.float32])
    assert_type(ops.add_rms_norm(a, a, b), tuple[NDArray[np.float32], ...])
    ops.write_kv_cache(a, a, b, b, a)
"""
WRONG = PROGRAM + '    ops.rms_norm("x", t)\n    ops.rms_norm(a, a, copy=True)\n'


def complaints(checker: str, program: str, folder: Path) -> list[str]:
    """The lines with an error of a checker; of a program that lies where it finds portakernel."""
    file = folder / "program.py"
    file.write_text(program, encoding="utf-8")
    if checker == "mypy":
        command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", str(file)]
        environment = {"MYPYPATH": str(ROOT), "PATH": "", "HOME": str(folder)}
    else:
        found = shutil.which("pyright") or str(Path(sys.executable).with_name("pyright"))
        settings = folder / "pyrightconfig.json"
        settings.write_text(f'{{"extraPaths": ["{ROOT}"], "include": ["program.py"]}}', encoding="utf-8")
        command = [found, "--pythonpath", sys.executable, "-p", str(settings)]
        environment = None
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=folder, env=environment, check=False
    )
    assert done.stdout, done.stderr
    lines = [line for line in done.stdout.splitlines() if "program.py:" in line]
    return [line for line in lines if ": error: " in line or " - error: " in line]


def test_mypy_keeps_the_kind(tmp_path):
    pytest.importorskip("mypy")
    assert complaints("mypy", PROGRAM, tmp_path) == []
    assert len(complaints("mypy", WRONG, tmp_path)) == 2


def test_pyright_keeps_the_kind(tmp_path):
    pytest.importorskip("pyright")
    assert complaints("pyright", PROGRAM, tmp_path) == []
    assert len(complaints("pyright", WRONG, tmp_path)) >= 2
