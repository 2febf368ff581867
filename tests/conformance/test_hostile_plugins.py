"""The kit's README says who notices which fault of a plugin and what is read; each is a package, and it is so."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch

from portakernel.calling.caller import OpCaller
from portakernel.calling.fast.key_layout import PLAIN
from portakernel.cli.doctor.diagnosis import Diagnosis
from portakernel.cli.doctor.findings import slow
from portakernel.config import Config
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import NoKernelError
from portakernel.registry import plugin_manager
from portakernel.registry.plugin_manager import Package, PluginManager
from portakernel.registry.registry import Registry
from portakernel_kit.conformance.runner import run
from portakernel_kit.conformance.venue import find_venue

DATA = Path(__file__).resolve().parents[1] / "data"
README = Path(__file__).resolve().parents[2] / "kit" / "portakernel_kit" / "conformance" / "README.md"
ROWS = dict(re.findall(r"^\| `(\w+)` \| .*? \| `([^`]+)` \|$", README.read_text(encoding="utf-8"), re.MULTILINE))
HOSTILE = sorted(folder.name for folder in (DATA / "hostile_plugins").iterdir() if (folder / "plugin.yaml").exists())
# What the kit finds; the others are noticed before it runs.
FOUND_BY_THE_KIT = [name for name in HOSTILE if re.match(r"(returns|mutates|raises|leaks|is)_", name)]


def pattern(name: str) -> str:
    return re.escape(ROWS[name]).replace("…", ".+?")


@pytest.fixture
def install(packages, monkeypatch):
    """A dispatcher with one of the packages beside those of portakernel, and that package."""
    for folder in ("broken_plugins", "hostile_plugins"):
        monkeypatch.syspath_prepend(DATA / folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made: list[str] = []

    def make(name: str, *, registered_as: str = "") -> tuple[Dispatcher, Package]:
        folder = next(f for f in (DATA / "hostile_plugins" / name, DATA / "broken_plugins" / name) if f.is_dir())
        package = Package(registered_as or name, name, f"{name}-dist", "1.0", folder)
        made.append(name)
        dispatcher = Dispatcher(Registry(PluginManager([*packages, package])), Config())
        if not dispatcher.registry.devices_on("cpu"):
            pytest.skip("no backend describes this CPU")
        return dispatcher, package

    yield make
    for name in made:
        sys.modules.pop(name, None)


def test_every_plugin_that_does_wrong_is_in_the_table():
    assert {*HOSTILE, "raises_on_import", "exits_on_import", "raises_in_a_hook"} <= ROWS.keys()
    assert [name for name in HOSTILE if name not in ROWS] == []


@pytest.mark.parametrize("name", FOUND_BY_THE_KIT)
def test_the_kit_finds_it_and_says_what_the_table_says(install, name):
    dispatcher, package = install(name)
    kernel = dispatcher.registry.kernels[f"{name}.add"]
    assert kernel.package is package
    cpu = next(iter(dispatcher.registry.devices_on("cpu")))
    results = run(dispatcher, kernel, find_venue(dispatcher, kernel, cpu), seed=20261122)
    failures = [f"{result.aspect}: {result.detail}" for result in results if result.status == "failed"]
    assert [text for text in failures if re.match(pattern(name), text)], failures[:5]


@pytest.mark.parametrize(
    "name", ["raises_on_import", "exits_on_import", "raises_in_a_hook", "takes_a_name", "claims_every_dtype"]
)
def test_a_plugin_that_breaks_is_kept_with_what_the_table_says_and_the_others_serve(install, name):
    dispatcher, package = install(name, registered_as="torch" if name == "takes_a_name" else "")
    (fault,) = dispatcher.registry.manager.broken
    assert fault.package == package
    assert re.search(pattern(name), fault.reason)
    assert "torch.add" in dispatcher.registry.kernels


def test_a_hook_that_takes_its_time_is_a_finding_of_doctor(install, monkeypatch):
    monkeypatch.setattr(plugin_manager, "SLOW_HOOK_S", 0.0)
    dispatcher, package = install("sleeps_in_a_hook")
    diagnosis = Diagnosis(dispatcher, None, (), (), (), (), None)
    (finding,) = [found for found in slow(diagnosis) if str(package) in found.what]
    assert re.fullmatch(pattern("sleeps_in_a_hook"), finding.what)
    assert (finding.state, finding.action) == (
        "attention",
        "upgrade sleeps_in_a_hook-dist, or do without: PORTAKERNEL_DISABLE=sleeps_in_a_hook",
    )
    monkeypatch.setattr(plugin_manager, "SLOW_HOOK_S", 5.0)
    assert install("sleeps_in_a_hook")[0].registry.manager.slow == []


def test_what_a_plugin_prints_is_no_part_of_an_answer_in_json(python, tmp_path):
    info = tmp_path / "prints_dist-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: prints-dist\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[portakernel]\nprints = prints\n", encoding="utf-8")
    code = f"import sys; sys.path[:0] = [{str(DATA / 'hostile_plugins')!r}, {str(tmp_path)!r}]\n"
    code += "from portakernel.cli import main\nsys.exit(main(['list', '--plugin', 'prints', '--json']))"
    done = python("-c", code, timeout=120, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stderr
    assert [kernel["kernel"] for kernel in json.loads(done.stdout)["kernels"]] == ["prints.add"]
    assert ROWS["prints"] in done.stderr


def test_a_kernel_that_raises_mid_call_is_not_replaced_silently(install):
    dispatcher, _ = install("raises_mid_call")
    caller = OpCaller(contract("add"), dispatcher)
    policy = caller.policy("!raises_mid_call.add")
    x, half = torch.ones(3), torch.ones(3, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="the queue is full"):
        caller.run(PLAIN, (x, x), (), policy, (x, x, None))
    with pytest.raises(NoKernelError):
        caller.run(PLAIN, (half, half), (), policy, (half, half, None))
