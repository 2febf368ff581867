"""``portakernel doctor``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from portakernel import __version__
from portakernel.cli.diagnosis import REMEDIES, find_compiler
from portakernel.runtime import dispatcher
from portakernel.target import Device, Target

RAISING = """\
schema_version: 1
plugin: acme
kernels:
  - op: add
    entry: acme_for_cli_tests.lost:add
    targets: {cpu: any}
    dtypes: {x: [float32], y: [x]}
"""


def test_json_form_key_by_key(run: Callable) -> None:
    ran = run("doctor --json")
    data = ran.json
    assert ran.status == 0, data["broken"]
    assert list(data) == [
        "ok", "portakernel", "python", "torch", "triton", "compiler", "backends", "plugins", "broken", "missing",
        "environment",
    ]  # fmt: skip
    assert data["ok"] is True
    assert data["portakernel"] == __version__
    assert list(data["python"]) == ["version", "system", "machine"]
    assert list(data["torch"]) == ["version", "cuda", "hip"]
    assert data["broken"] == []
    assert data["environment"] == {"set": {}, "unknown": [], "error": None}
    package = ["module", "distribution", "version", "first_party"]
    for backend in data["backends"]:
        assert list(backend) == ["backend", "vendor", "summary", *package, "devices"]
    device = next(b for b in data["backends"] if b["backend"] == "cpu")["devices"][0]
    assert list(device) == ["target", "name", "torch_device", "uuid", "memory_bytes", "driver", "attached", "note"]
    plugins = {plugin["plugin"]: plugin for plugin in data["plugins"]}
    assert list(plugins["torch"]) == ["plugin", "summary", *package, "kernels", "requires", "readiness"]
    assert list(plugins["torch"]["requires"][0]) == ["module", "needs", "found"]
    ready = next(r for r in plugins["torch"]["readiness"] if r["torch_device"] == "cpu")
    assert list(ready) == ["kernel", "target", "torch_device", "ready", "rejections"]
    assert ready["ready"] is True


def test_people_read_devices_and_what_is_ready_on_them(run: Callable) -> None:
    out = run("doctor").out
    assert out.startswith(f"portakernel {__version__} on Python ")
    assert re.search(r"\n    on cpu +torch\.add, torch\.rms_norm_cpu \(cpu:", out)
    assert out.endswith("\nNothing is broken.\n")


def test_a_kernel_that_cannot_be_imported_is_broken_with_stage_reason_remedy_and_traceback(
    run: Callable, install: Callable[..., Path]
) -> None:
    install("acme", manifest=RAISING)
    ran = run("doctor --json")
    (broken,) = ran.json["broken"]
    assert (ran.status, ran.json["ok"]) == (1, False)
    assert list(broken) == [
        "name", "module", "distribution", "version", "first_party", "stage", "reason", "remedy", "traceback",
    ]  # fmt: skip
    assert (broken["name"], broken["distribution"], broken["version"]) == ("acme", "acme-kernels", "1.2")
    assert broken["stage"] == "import"
    assert broken["reason"] == (
        "importing acme_for_cli_tests.lost:add raised ModuleNotFoundError: No module named 'acme_for_cli_tests.lost'"
    )
    assert broken["remedy"].endswith("PORTAKERNEL_DISABLE=acme switches it off")
    assert broken["traceback"].startswith("Traceback (most recent call last):")
    acme = next(plugin for plugin in ran.json["plugins"] if plugin["plugin"] == "acme")
    assert acme["readiness"][0]["rejections"][0]["code"] == "import_failed"


def test_tracebacks_are_printed_when_asked_for(run: Callable, install: Callable[..., Path]) -> None:
    install("acme", manifest=RAISING)
    assert "Traceback" not in run("doctor").out
    ran = run("doctor --verbose")
    assert (
        "\nBroken\n  acme (acme-kernels 1.2), at import:\n    importing acme_for_cli_tests.lost:add raised" in ran.out
    )
    assert "      Traceback (most recent call last):\n" in ran.out


def test_a_plugin_that_exits_on_import_for_its_command_is_broken(run: Callable, install: Callable[..., Path]) -> None:
    manifest = "schema_version: 1\nplugin: acme\nhooks: [portakernel_cli]\n"
    install("acme", manifest=manifest, source="import sys; sys.exit(7)")
    (broken,) = run("doctor --json").json["broken"]
    assert (broken["stage"], broken["reason"]) == ("import", "importing acme_for_cli_tests raised SystemExit: 7")


def test_a_requirement_that_is_not_installed_is_missing_not_broken(run: Callable, install: Callable[..., Path]) -> None:
    install("acme", manifest=RAISING + "requires: {modules: {acme_runtime: '>=2'}}\n")
    ran = run("doctor --json")
    assert ran.status == 0
    assert {
        "what": "plugin acme needs acme_runtime >=2; it is not installed",
        "remedy": "install acme_runtime>=2",
    } in ran.json["missing"]


def test_a_device_that_torch_cannot_reach_is_missing_and_says_what_to_install(run: Callable) -> None:
    note = "torch 2.11.0 is a CPU build: install a CUDA build to use this device"
    lonely = Device(Target("nvidia", "sm_90"), "NVIDIA H200", None, uuid="GPU-1", memory_bytes=2**37, note=note)
    dispatcher().registry._devices = (lonely,)
    ran = run("doctor")
    assert ran.status == 0
    assert f"\n  nvidia  nvidia:sm_90  NVIDIA H200, 128.0 GiB, GPU-1, {note}\n" in ran.out
    assert (
        "\nMissing\n  torch cannot reach NVIDIA H200 (nvidia:sm_90): torch 2.11.0 is a CPU build\n"
        "    -> install a CUDA build to use this device\n"
    ) in ran.out


def test_a_vendor_that_no_backend_has_is_missing_and_the_nearest_is_offered(run: Callable, install: Callable) -> None:
    manifest = """
schema_version: 1
plugin: acme
kernels:
  - {op: add, entry: "acme_for_cli_tests.x:add", targets: {cpuu: any}, dtypes: {x: [float32], y: [x]}}
"""
    install("acme", manifest=manifest)
    assert (
        "\n  plugin acme claims vendor 'cpuu', which no installed backend has; did you mean 'cpu'?\n"
        "    -> install its backend, or mend the name\n"
    ) in run("doctor").out


def test_unknown_variables_are_told(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTAKERNEL_PREFFER", "triton")
    monkeypatch.setenv("PORTAKERNEL_DENY", "triton.add")
    ran = run("doctor --json")
    assert ran.status == 0
    assert ran.json["environment"]["set"] == {"PORTAKERNEL_DENY": "triton.add"}
    (sentence,) = ran.json["environment"]["unknown"]
    assert sentence.startswith(
        "PORTAKERNEL_PREFFER is set, but no such variable exists; did you mean 'PORTAKERNEL_PREFER'"
    )


@pytest.mark.parametrize("variable", ["DISABLE", "USE", "REFERENCE"])
def test_a_variable_with_a_wrong_value_is_told_and_the_rest_is_examined(
    run: Callable, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(f"PORTAKERNEL_{variable}", "nonsense")
    ran = run("doctor --json")
    assert ran.status == 1
    assert "'nonsense'" in ran.json["environment"]["error"]
    assert len(ran.json["backends"]) >= 3


def test_every_stage_has_a_remedy() -> None:
    root = Path(__file__).parents[2] / "portakernel"
    sources = "".join((root / f"{name}.py").read_text() for name in ("plugin_manager", "registry", "readiness"))
    stages = {stage for stage in REMEDIES if f'"{stage}"' in sources}
    assert stages == set(REMEDIES)


def test_a_host_without_compiler_is_said_to_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert find_compiler() is None
