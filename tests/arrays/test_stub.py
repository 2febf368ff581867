"""Type checkers give results the arguments' kind."""

from __future__ import annotations

import re
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
# What is wrong, each at the end of its own line.
WRONG = ('    ops.rms_norm("x", t)', "    ops.rms_norm(a, a, copy=True)", "    ops.rms_norm(a, a).backward()")


def lines_with_errors(checker: str, folder: Path) -> set[str]:
    """The lines of the program, wrong ones at its end, that a checker complains of."""
    file, program = folder / "program.py", PROGRAM + "\n".join(WRONG) + "\n"
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
    places = re.findall(r"program\.py:(\d+)(?::\d+)?:? (?:- )?error", done.stdout)
    return {program.splitlines()[int(place) - 1] for place in places}


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_results_are_of_the_arguments_kind(tmp_path, checker):
    pytest.importorskip(checker)
    assert lines_with_errors(checker, tmp_path) == set(WRONG)
