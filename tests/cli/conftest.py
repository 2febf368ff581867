"""Running the command line in this process, over the installed packages or over packages made for a test."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from portakernel import runtime
from portakernel.cli import main
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.plugin_manager import Package, PluginManager, installed_packages
from portakernel.registry.registry import Registry


@dataclass(frozen=True)
class Ran:
    """What a command line printed and how it ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(scope="session")
def _process_ops() -> None:
    """Every op is registered in torch once, with the process's own dispatcher: not with one of a test here."""
    runtime.register()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, _process_ops: None) -> None:
    """No variable of the machine's enters, and each test has a dispatcher of its own."""
    for name in ("USE", "PREFER", "DENY", "REQUIRE", "REFERENCE", "PLUGINS", "POLICY", "PLAN", "DISABLE", "LOG"):
        monkeypatch.delenv(f"PORTAKERNEL_{name}", raising=False)
    monkeypatch.setattr(runtime, "_dispatcher", functools.cache(Dispatcher))
    monkeypatch.setenv("COLUMNS", "10000")  # sentences are compared whole; test_widths.py is about lines


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs one command line, given as words or as one text without quotes."""

    def run_main(*words: str) -> Ran:
        status = main(words[0].split() if len(words) == 1 else words)
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return run_main


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Makes packages beside the installed ones: ``install("acme", manifest=..., source=...)``."""
    made: list[Package] = []

    def use_packages() -> Dispatcher:
        return Dispatcher(Registry(PluginManager((*installed_packages(), *made))))

    def add(name: str, *, manifest: str, source: str = "", distribution: str = "") -> Path:
        folder = tmp_path / f"{name}_for_cli_tests"
        folder.mkdir()
        (folder / "__init__.py").write_text(source, encoding="utf-8")
        (folder / "plugin.yaml").write_text(manifest, encoding="utf-8")
        made.append(Package(name, folder.name, distribution or f"{name}-kernels", "1.2", folder))
        monkeypatch.setattr(runtime, "_dispatcher", functools.cache(use_packages))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, folder.name, raising=False)
        return folder

    return add


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the demo trains has a hundredth of its weights."""
    sizes = {"WIDTH": 64, "HEADS": 2, "GROUPS": 1, "HEAD_WIDTH": 32, "HIDDEN": 256, "CONTEXT": 64}
    for name, size in sizes.items():
        monkeypatch.setattr(f"portakernel_kit.demo.decoder.{name}", size)
    monkeypatch.setattr("portakernel_kit.demo.run.TEXTS", 4)
    monkeypatch.setattr("portakernel_kit.demo.run.WRITTEN", 12)
