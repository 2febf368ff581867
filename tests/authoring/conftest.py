"""A terminal of somebody outside: an environment of their own, in which what is installed here is installed too."""

from __future__ import annotations

import os
import shlex
import site
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

# What a guide's reader types, and what it means in the environment, where one process has imported torch for all.
COMMANDS = {
    "python": 'exec "{python}" "$@"',
    "portakernel": 'exec {warm} -m portakernel "$@"',
    "pytest": 'exec {warm} -m pytest -p no:cacheprovider "$@"',
    "hatchling": 'exec "{python}" -m hatchling "$@"',
    "pip": 'exec "{ours}" -m pip --python "{python}" "$@"',
}


@dataclass(frozen=True)
class Shell:
    """Runs commands in an environment; what they install stays there."""

    variables: dict[str, str]
    folder: Path

    def run(self, command: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """The finished command; its output and errors are one text, as on a terminal."""
        return subprocess.run(
            ["bash", "-c", command], cwd=folder or self.folder, env=self.variables, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
        )  # fmt: skip


def _environment(folder: Path) -> tuple[Path, Path]:
    """A virtual environment over this one; its interpreter, and where its packages are."""
    venv.create(folder, symlinks=True, with_pip=False)
    scheme = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    ours = dict.fromkeys([*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    # addsitedir, so that editable installations among ours are on the path too
    lines = [f"import site; site.addsitedir({path!r})" for path in ours]
    Path(scheme, "ours.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "bin" / "python", Path(scheme)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A terminal in an empty folder outside the repository, where no network is needed."""
    if os.name != "posix":
        pytest.skip("the guides are written for a POSIX shell")
    python, packages = _environment(tmp_path / "environment")
    bin_folder, empty = tmp_path / "commands", tmp_path / "empty"
    bin_folder.mkdir()
    empty.mkdir()
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PORTAKERNEL_", "PYTEST_", "PIP_"))}
    # The build backend and the requirements are those of this environment. (pip reads "no isolation" as a false.)
    pip = {"PIP_NO_BUILD_ISOLATION": "false", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_QUIET": "1"}
    pip["PIP_DISABLE_PIP_VERSION_CHECK"] = pip["PIP_NO_CACHE_DIR"] = "1"
    path = f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}"
    ours = {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1", "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    variables = {**inherited, **pip, **ours}
    with tempfile.TemporaryDirectory(prefix="warm") as short:  # a socket's name is short
        address = Path(short, "torch")
        warm = shlex.join(map(str, [sys.executable, "-I", "-S", FOLDER / "warm_command.py", address, packages]))
        for name, text in COMMANDS.items():
            script = bin_folder / name
            command = text.format(python=python, ours=sys.executable, warm=warm)
            script.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
            script.chmod(0o755)
        command = [python, FOLDER.parent / "warm_python.py", address, "torch"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, cwd=empty, env=variables, **pipes) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield Shell(variables, empty)
            process.communicate(timeout=60)  # the end of its stdin
