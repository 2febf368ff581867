"""A terminal of somebody outside: an environment of their own, in which what is installed here is installed too."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from portakernel.runtime import dispatcher
from portakernel_kit.scaffold import scaffold

# What a guide's reader types, and what it means in the environment; pytest rewrites what is not imported yet.
COMMANDS = {
    "python": 'exec "{python}" "$@"',
    "portakernel": 'exec "{knowing}" -m portakernel "$@"',
    "pytest": 'exec "{forked}" -m pytest -p no:cacheprovider "$@"',
    "hatchling": 'exec "{python}" -m hatchling "$@"',
    "pip": 'exec "{python}" -m pip "$@"',
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
def shell(tmp_path: Path, forked_interpreter: Callable[..., Path], imported_first: tuple[str, ...]) -> Shell:
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
    environments = {"real": python, "site": packages}
    forked, knowing = forked_interpreter(**environments), forked_interpreter(imported_first, **environments)
    for name, text in COMMANDS.items():
        script = bin_folder / name
        command = text.format(python=python, forked=forked, knowing=knowing)
        script.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
        script.chmod(0o755)
    return Shell(variables, empty)


@pytest.fixture(name="site")
def installed_op(tmp_path: Path) -> Callable[..., Path]:
    """Installs what ``portakernel new op`` writes, with texts of its files replaced."""

    def install(name: str = "demo_scan", changes: dict[str, tuple[str, str]] | None = None) -> Path:
        written = scaffold("op", name, tmp_path, dispatcher().registry)
        module = written.folder / "src" / written.module
        for file, (old, new) in (changes or {}).items():
            text = (module / file).read_text(encoding="utf-8")
            assert old in text
            (module / file).write_text(text.replace(old, new), encoding="utf-8")
        root = tmp_path / "site"
        root.mkdir(exist_ok=True)
        module.rename(root / written.module)
        info = root / f"{written.module}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {written.distribution}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(f"[portakernel]\n{name} = {written.module}\n")
        return root / written.module

    return install


@pytest.fixture
def run(
    tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]], imported_first: tuple[str, ...]
) -> Callable[..., Any]:
    """Runs a command, or a program, where the site is on the path; returns its JSON, or its output."""

    def command(*words: str, status: int = 0, **environment: str) -> Any:
        variables = os.environ | {"PYTHONPATH": str(tmp_path / "site")} | environment
        command_line = words if words[0] == "-c" else ("-m", "portakernel", *words)
        # what `validate` starts tells whether a contract loads torch, which forked ones have
        ran = python(*command_line, env=variables, cwd=tmp_path, imports=imported_first, forks=words[0] == "check")
        assert ran.returncode == status, ran.stdout + ran.stderr
        return json.loads(ran.stdout) if "--json" in words else ran.stdout + ran.stderr

    return command
