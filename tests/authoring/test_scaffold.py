"""What ``portakernel new`` writes: all of it or nothing; that it works as written the guides' commands show."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from portakernel.cli import main
from portakernel.errors import ArgumentValueError
from portakernel.runtime import dispatcher
from portakernel_kit.scaffold import scaffold

SHARED = {".github/workflows/tests.yml", ".gitignore", "README.md", "pyproject.toml"}
FILES = {
    "plugin": {"__init__.py", "add.py", "plugin.yaml", "py.typed"},
    "backend": {"__init__.py", "add.py", "backend.yaml", "plugin.yaml", "probe.py", "py.typed"},
    "op": {"__init__.py", "contract.py", "kernel.py", "plugin.yaml", "py.typed", "reference.py"},
}
TESTS = {"plugin": "tests/test_add.py", "backend": "tests/test_device.py", "op": "tests/test_op.py"}


def write(kind, name, parent):
    return scaffold(kind, name, parent, dispatcher().registry)


@pytest.mark.parametrize("kind", ["plugin", "backend", "op"])
def test_a_package_holds_what_one_needs_and_nothing_is_left_to_fill_in(tmp_path, kind):
    written = write(kind, "demo_x", tmp_path)
    source = {f"src/portakernel_demo_x/{name}" for name in FILES[kind]}
    assert {path.as_posix() for path in written.files} == {*SHARED, *source, TESTS[kind]}
    on_disk = {path.relative_to(written.folder) for path in written.folder.rglob("*") if path.is_file()}
    assert on_disk == set(written.files)
    assert [path.name for path in tmp_path.iterdir()] == ["demo_x"]
    texts = {path: (written.folder / path).read_text(encoding="utf-8") for path in written.files}
    assert [path for path, text in texts.items() if re.search(r"\$(?!\{\{|\()|TODO|FIXME", text)] == []
    project = tomllib.loads(texts[Path("pyproject.toml")])
    assert project["project"]["entry-points"]["portakernel"] == {"demo_x": "portakernel_demo_x"}
    assert project["project"]["name"] == written.distribution == "portakernel-demo-x"
    workflow = yaml.safe_load(texts[Path(".github/workflows/tests.yml")])
    commands = [step["run"] for step in workflow["jobs"]["tests"]["steps"] if "run" in step]
    assert commands[:3] == ["pip install -e '.[test]'", "portakernel validate .", "portakernel doctor"]
    assert commands[3].startswith("pytest --portakernel-draws=64 --portakernel-seed=$((16#$(git rev-parse HEAD:src ")
    assert "${{ matrix.python-version }}" in texts[Path(".github/workflows/tests.yml")]


@pytest.mark.parametrize("kind", ["plugin", "backend", "op"])
@pytest.mark.parametrize("name", ["demo_x", "a", "x" * 40])
def test_its_python_is_in_the_repositorys_own_style(tmp_path, kind, name):
    folder = write(kind, name, tmp_path).folder
    style = Path(__file__).parents[2] / "pyproject.toml"
    for command in (["format", "--check"], ["check", "--ignore=INP001,D100,D103,RUF100"]):
        ran = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "--config", str(style), str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if "No module named ruff" in ran.stderr:
            pytest.skip("lacks ruff")
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Demo-X", "a letter first, 40 at most; 'demo_x' would do"),
        ("demo__x", "'demo_x' would do"),
        ("demo_", "'demo' would do"),
        ("2fast", "'fast' would do"),
        ("../escape", "'escape' would do"),
        ("", "'' cannot name a plugin, backend or op: lower-case letters"),
        ("x" * 41, "40 at most"),
        ("torch", "the name 'torch' is taken by torch (portakernel "),
        ("nvidia", "the name 'nvidia' is taken by nvidia (portakernel "),
        ("reference", "the name 'reference' is taken by portakernel's own references; choose another"),
        ("plugins", "the module 'portakernel_plugins' is taken by "),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_with_what_can(tmp_path, name, message):
    with pytest.raises(ArgumentValueError, match=re.escape(message)):
        write("plugin", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("class", "op 'class' is no name for an op: it is a word of Python; add another word to it, such as class_op"),
        ("lambda", "op 'lambda' is no name for an op: it is a word of Python; add another word to it, such as"),
        ("scan_backward", "op 'scan_backward' is no name for an op: names that end in _forward and _backward are"),
    ],
)
def test_an_op_is_not_called_what_no_function_is(tmp_path, capsys, name, message):
    assert main(["new", "op", name, "--directory", str(tmp_path)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []
    assert main(["new", "plugin", name, "--directory", str(tmp_path)]) == 0


def test_what_exists_is_left_as_it_is(tmp_path):
    (tmp_path / "demo_x").mkdir()
    with pytest.raises(ArgumentValueError, match=r"demo_x exists; remove it, choose another name, or another --dir"):
        write("plugin", "demo_x", tmp_path)
    (tmp_path / "demo_y").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ArgumentValueError, match="demo_y exists"):
        write("plugin", "demo_y", tmp_path)
    assert list((tmp_path / "demo_x").iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ArgumentValueError, match=r"No such file or directory; nothing is left of it. Name a folder"):
        write("plugin", "demo_x", tmp_path / "none")


def test_a_disk_that_fills_up_leaves_nothing(tmp_path, monkeypatch):
    write_text = Path.write_text

    def fail_late(self, text, **how):
        if self.name == "test_add.py":
            raise OSError(28, "No space left on device")
        return write_text(self, text, **how)

    monkeypatch.setattr(Path, "write_text", fail_late)
    with pytest.raises(ArgumentValueError, match="No space left on device; nothing is left of it"):
        write("plugin", "demo_x", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_its_files_have_the_permissions_that_files_have(tmp_path):
    folder = write("plugin", "demo_x", tmp_path).folder
    (tmp_path / "plain").mkdir()
    assert os.stat(folder).st_mode == os.stat(tmp_path / "plain").st_mode


def test_the_command_says_what_it_wrote_and_what_comes_next(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10000")
    assert main(["new", "plugin", "demo_x", "--directory", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path / 'demo_x'} holds portakernel-demo-x, a plugin:"
    assert lines[-4:] == ["Next:", f"  cd {tmp_path / 'demo_x'}", "  pip install -e '.[test]'", "  pytest"]
    assert main(["new", "backend", "demo_y", "--directory", str(tmp_path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["kind"], data["name"], data["module"]) == ("backend", "demo_y", "portakernel_demo_y")
    assert data["steps"] == [f"cd {tmp_path / 'demo_y'}", "pip install -e '.[test]'", "pytest"]
    assert (tmp_path / "demo_y" / "pyproject.toml").exists()


def test_a_wrong_name_ends_the_command_with_2(tmp_path, capsys):
    assert main(["new", "plugin", "torch", "--directory", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("portakernel: the name 'torch' is taken by torch (portakernel ")
