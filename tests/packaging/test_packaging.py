"""What is built holds what is needed, and what is registered is what is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = {
    Path(folder).name: ROOT / folder for folder in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
}
# Which package it was goes to stderr.
_DEMO = """
import sys, portakernel
from portakernel.cli import main
status = main()
print(portakernel.__file__, file=sys.stderr)
sys.exit(status)
"""


def _build(target: str, source: Path, directory: Path) -> Path:
    """The one archive that hatchling builds from ``source``, in this environment: no isolation, no network."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(directory)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (archive,) = directory.iterdir()
    return archive


def _files_of_packages() -> set[str]:
    """Every source and data file of the import packages, as a wheel names it."""
    return {
        str(PurePosixPath(name, path.relative_to(folder).as_posix()))
        for name, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = _build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))
    directory = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as tar:
        # Not extractall: its `filter` exists from 3.11.4, and its absence warns from 3.12.
        for member in tar:
            if content := tar.extractfile(member):
                path = directory / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    (top,) = directory.iterdir()
    return top


def _contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_holds_exactly_the_files_of_the_import_packages(wheel: Path) -> None:
    assert set(PACKAGES) == {"portakernel", "portakernel_kit", "portakernel_plugins", "portakernel_backends"}
    assert _contents(wheel) == _files_of_packages()


def test_wheel_holds_what_is_read_as_data(wheel: Path) -> None:
    contents = _contents(wheel)
    assert {"portakernel/py.typed", "portakernel_kit/demo/text.txt"} <= contents
    assert {f"portakernel/schema/{name}.schema.json" for name in ("plugin", "backend", "policy")} <= contents
    assert {
        f"portakernel_plugins/{name}/plugin.yaml" for name in _folders("portakernel_plugins", "plugin.yaml")
    } <= contents
    assert {
        f"portakernel_backends/{name}/backend.yaml" for name in _folders("portakernel_backends", "backend.yaml")
    } <= contents


def test_the_demo_runs_from_a_wheel_outside_a_checkout(
    wheel: Path, tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    variables = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    command = ["-c", _DEMO, "demo", "--device", "cpu", "--steps", "1", "--json"]
    ran = python(*command, cwd=elsewhere, env=variables)
    assert ran.returncode == 0, ran.stderr
    data = json.loads(ran.stdout)
    assert (data["agrees"], data["file"], data["prompts"][0]) == (True, None, "A model is a lon")
    assert ran.stderr.splitlines()[-1] == str(tmp_path / "site" / "portakernel" / "__init__.py")


def test_wheel_built_from_the_sdist_is_the_same(wheel: Path, unpacked_sdist: Path, tmp_path: Path) -> None:
    assert _contents(_build("wheel", unpacked_sdist, tmp_path)) == _contents(wheel)


@pytest.mark.parametrize(
    "name", ["LICENSE", "README.md", "Makefile", "constraints.txt", "tests/packaging/test_packaging.py"]
)
def test_sdist_holds_what_its_tests_and_readers_need(unpacked_sdist: Path, name: str) -> None:
    assert (unpacked_sdist / name).is_file()


def _folders(package: str, manifest: str) -> set[str]:
    return {path.parent.name for path in PACKAGES[package].glob(f"*/{manifest}")}


def test_entry_points_and_folders_with_a_manifest_are_equal() -> None:
    registered = PYPROJECT["project"]["entry-points"]["portakernel"]
    plugins = {name: f"portakernel_plugins.{name}" for name in _folders("portakernel_plugins", "plugin.yaml")}
    backends = {name: f"portakernel_backends.{name}" for name in _folders("portakernel_backends", "backend.yaml")}
    assert plugins
    assert backends
    assert not plugins.keys() & backends.keys(), (
        "a plugin and a backend cannot share a name: entry points are one namespace"
    )
    assert registered == plugins | backends


@pytest.mark.parametrize("package", ["portakernel_plugins", "portakernel_backends"])
def test_every_folder_of_plugins_and_backends_has_a_manifest(package: str) -> None:
    manifest = {"portakernel_plugins": "plugin.yaml", "portakernel_backends": "backend.yaml"}[package]
    packages = {path.parent.name for path in PACKAGES[package].glob("*/__init__.py")}
    assert packages == _folders(package, manifest)


def test_plugins_and_backends_folders_are_not_packages_themselves() -> None:
    assert not (ROOT / "plugins" / "__init__.py").exists()
    assert not (ROOT / "backends" / "__init__.py").exists()


def test_installed_distribution_registers_what_pyproject_says() -> None:
    try:
        installed = distribution("portakernel")
    except PackageNotFoundError:
        pytest.skip("portakernel is on the path without being installed")
    stated = {
        (group, name, value)
        for group, entries in PYPROJECT["project"]["entry-points"].items()
        for name, value in entries.items()
    } | {("console_scripts", name, value) for name, value in PYPROJECT["project"]["scripts"].items()}
    assert {(entry.group, entry.name, entry.value) for entry in installed.entry_points} == stated
    assert installed.version == PYPROJECT["project"]["version"]
