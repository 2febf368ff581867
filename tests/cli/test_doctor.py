"""``portakernel doctor``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from portakernel import __version__
from portakernel.capability import ReasonCode, Rejection
from portakernel.cli.diagnosis import Diagnosis, Readiness, find_compiler
from portakernel.cli.faults import REMEDIES
from portakernel.cli.findings import findings
from portakernel.contracts import contracts
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
        "coverage", "environment", "findings",
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
    coverage = next(c for c in data["coverage"] if c["torch_device"] == "cpu")
    assert list(coverage) == ["target", "torch_device", "accelerated", "reference_only"]
    assert sorted(coverage["accelerated"] + coverage["reference_only"]) == sorted(contracts())
    assert {"add", "rms_norm"} <= set(coverage["accelerated"])
    for finding in data["findings"]:
        assert list(finding) == ["state", "what", "action", "details"]
        assert finding["state"] in {"healthy", "attention"}
        assert (finding["action"] is None) == (finding["state"] == "healthy")


def test_people_read_what_is_healthy_on_each_device_and_how_much_that_is(run: Callable) -> None:
    out = run("doctor").out
    assert out.startswith(f"portakernel {__version__} on Python ")
    assert re.search(r"\nHealthy\n  torch \S+, built for ", out)
    assert re.search(r"\n  cpu: .+ \(cpu:\w+\), .+ GiB; \d+ of \d+ ops have an accelerated kernel", out)
    assert re.search(r"\n  plugin torch \(portakernel \S+\): \d+ kernels, \d+ ready on cpu \(cpu:\w+\)", out)
    assert "\nSick\n" not in out
    assert re.search(r"\n\d+ healthy, \d+ needs? attention, 0 sick\.\n$", out)


def test_verbose_names_what_is_ready(run: Callable) -> None:
    ready = r"\n    ready on cpu \(cpu:\w+\): .*torch\.add.*torch\.rms_norm_cpu"
    assert re.search(ready, run("doctor --verbose").out)
    assert not re.search(ready, run("doctor").out)


def test_a_kernel_that_cannot_be_imported_is_broken_with_stage_reason_remedy_and_traceback(
    run: Callable, install: Callable[..., Path]
) -> None:
    install("acme", manifest=RAISING)
    ran = run("doctor --json")
    (broken,) = ran.json["broken"]
    assert (ran.status, ran.json["ok"]) == (1, False)
    assert list(broken) == [
        "name", "module", "distribution", "version", "first_party", "stage", "reason", "remedy", "location",
        "traceback",
    ]  # fmt: skip
    assert (broken["name"], broken["distribution"], broken["version"]) == ("acme", "acme-kernels", "1.2")
    assert broken["stage"] == "import"
    assert broken["reason"] == (
        "importing acme_for_cli_tests.lost:add raised ModuleNotFoundError: No module named 'acme_for_cli_tests.lost'"
    )
    assert broken["remedy"].endswith("PORTAKERNEL_DISABLE=acme switches it off")
    assert broken["traceback"].startswith("Traceback (most recent call last):")
    assert broken["location"] is None
    assert {
        "state": "sick",
        "what": f"acme (acme-kernels 1.2) is broken at import: {broken['reason']}",
        "action": broken["remedy"],
        "details": [],
    } in ran.json["findings"]
    acme = next(plugin for plugin in ran.json["plugins"] if plugin["plugin"] == "acme")
    assert acme["readiness"][0]["rejections"][0]["code"] == "import_failed"


def test_tracebacks_are_printed_when_asked_for(run: Callable, install: Callable[..., Path]) -> None:
    install("acme", manifest=RAISING)
    assert "Traceback" not in run("doctor").out
    ran = run("doctor --verbose")
    sick = "\nSick\n  acme (acme-kernels 1.2) is broken at import: importing acme_for_cli_tests.lost:add raised "
    assert sick in ran.out
    assert "\n    -> upgrade acme-kernels, or install what its import lacks; --verbose shows the traceback." in ran.out
    assert "      Traceback (most recent call last):\n" in ran.out
    assert re.search(r", 1 sick\.\n$", ran.out)


def test_what_is_broken_is_told_with_its_place_in_the_plugins_own_files(
    run: Callable, install: Callable[..., Path]
) -> None:
    folder = install("acme", manifest=RAISING)
    (folder / "lost.py").write_text("def add(x, y): ...\n\nimport no_such_library\n", encoding="utf-8")
    place = f"{folder / 'lost.py'}:3, in <module>"
    assert run("doctor --json").json["broken"][0]["location"] == place
    assert f"\n    at {place}\n" in run("doctor").out


def test_a_kernel_that_its_plugins_probe_refuses_needs_attention_with_what_to_do(
    run: Callable, install: Callable[..., Path]
) -> None:
    source = """
from portakernel.capability import ReasonCode, Rejection
def ready(target):
    return Rejection(ReasonCode.MISSING_TOOLCHAIN, "needs acmec; it is not on the path", "acmec")
"""
    install("acme", manifest=f"{RAISING}ready: acme_for_cli_tests:ready\n", source=source)
    ran = run("doctor")
    assert ran.status == 0
    assert re.search(
        r"\nNeeds attention\n(  .+\n)*"
        r"  acme\.add cannot be used on cpu \(cpu:\w+\): missing_toolchain: needs acmec; it is not on the path\n"
        r"    -> install the tool that it names\n",
        ran.out,
    )


@pytest.mark.parametrize(
    ("note", "told"),
    [
        ("its cache is full: another serves; make room", "its cache is full: another serves\n    -> make room\n"),
        ("its cache is full", "its cache is full\n    -> see the README of plugin acme\n"),
    ],
)
def test_what_a_probe_has_to_say_of_a_device_needs_attention(
    run: Callable, install: Callable[..., Path], note: str, told: str
) -> None:
    source = f"""
from portakernel.readiness import Usable
def ready(device):
    return Usable(["{note}"])
"""
    install("acme", manifest=f"{RAISING}ready: acme_for_cli_tests:ready\n", source=source)
    ran = run("doctor")
    assert f"  plugin acme: {told}" in ran.out.partition("\nNeeds attention\n")[2]
    assert ran.out.count("its cache is full") == 1


def test_ops_that_only_the_reference_serves_need_attention_on_accelerators() -> None:
    card = Device(Target("nvidia", "sm_90"), "NVIDIA H200", "cuda:0", memory_bytes=2**37, driver="580.1")
    reference = [Readiness(f"reference.{op}", card, ()) for op in contracts()]
    ready = (*reference, Readiness("triton.add", card, ()))
    diagnosis = Diagnosis(dispatcher(), None, (card,), ready, (), (), None)
    (coverage,) = diagnosis.coverage()
    assert coverage.accelerated == ("add",)
    rest = [op for op in contracts() if op != "add"]
    assert list(coverage.reference_only) == rest
    finding = next(finding for finding in findings(diagnosis) if finding.what.startswith("cuda:0: "))
    assert finding.state == "attention"
    assert finding.what == (
        "cuda:0: NVIDIA H200 (nvidia:sm_90), 128.0 GiB, driver 580.1;"
        f" 1 of {len(contracts())} ops have an accelerated kernel, only the reference serves {', '.join(rest)}"
    )


def test_a_kernel_that_only_lacks_a_build_is_healthy_and_counts() -> None:
    card = Device(Target("nvidia", "sm_90"), "NVIDIA H200", "cuda:0")
    unbuilt = Rejection(ReasonCode.NEEDS_BUILD, "is not built for these sizes, dtypes and values")
    diagnosis = Diagnosis(dispatcher(), None, (card,), (Readiness("triton.add", card, (unbuilt,)),), (), (), None)
    assert diagnosis.coverage()[0].accelerated == ("add",)
    found = findings(diagnosis)
    assert "triton.add can serve once portakernel.warmup has built them" in [one.what for one in found]
    assert {one.state for one in found} == {"healthy"}


def test_a_plugin_that_is_switched_off_is_said_to_be(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTAKERNEL_DISABLE", "triton")
    out = run("doctor").out
    assert re.search(r"\n  plugin triton \(portakernel \S+\) is switched off by PORTAKERNEL_DISABLE\n", out)
    assert "\n  PORTAKERNEL_DISABLE=triton is in force\n" in out


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
        "remedy": "pip install 'acme_runtime>=2'",
    } in ran.json["missing"]


def test_a_plugin_whose_library_nobody_has_to_have_rests(run: Callable, install: Callable[..., Path]) -> None:
    requires = "{optional: true, modules: {acme_runtime: '>=2'}, distributions: {acme_runtime: acme-gpu}}"
    install("acme", manifest=f"{RAISING}requires: {requires}\n")
    ran = run("doctor --json")
    (finding,) = (finding for finding in ran.json["findings"] if "acme" in finding["what"])
    assert (ran.status, finding["state"]) == (0, "healthy")
    assert finding["what"] == (
        "plugin acme (acme-kernels 1.2) rests until its library is there: pip install 'acme-gpu>=2'"
    )
    assert not [missing for missing in ran.json["missing"] if "acme" in missing["what"]]


def test_a_kernel_whose_library_nobody_has_to_have_is_not_missed(run: Callable, install: Callable[..., Path]) -> None:
    requires = "\n    requires: {optional: true, modules: {acme_runtime: '>=2'}}\n"
    install("acme", manifest=RAISING.rstrip() + requires)
    ran = run("doctor --json")
    (plugin,) = (finding for finding in ran.json["findings"] if "acme" in finding["what"])
    assert (plugin["state"], plugin["what"]) == (
        "healthy",
        "plugin acme (acme-kernels 1.2): 1 kernel, none for a device here",
    )
    assert not [missing for missing in ran.json["missing"] if "acme" in missing["what"]]


def test_a_device_that_torch_cannot_reach_is_missing_and_says_what_to_install(run: Callable) -> None:
    note = "torch 2.11.0 is a CPU build: install a CUDA build to use this device"
    lonely = Device(Target("nvidia", "sm_90"), "NVIDIA H200", None, uuid="GPU-1", memory_bytes=2**37, note=note)
    dispatcher().registry._devices = (lonely,)
    ran = run("doctor")
    assert ran.status == 0
    healthy, _, attention = ran.out.partition("\nNeeds attention\n")
    said = (
        "  torch cannot reach NVIDIA H200 (nvidia:sm_90): torch 2.11.0 is a CPU build\n"
        "    -> install a CUDA build to use this device\n"
    )
    assert said in attention
    assert said not in healthy


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


def test_a_cache_that_cannot_be_written_is_told(run: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    monkeypatch.setenv("PORTAKERNEL_CACHE_DIR", str(taken))
    found = [f for f in run("doctor --json").json["findings"] if f"kernels {taken} is no directory" in f["what"]]
    assert [finding["state"] for finding in found] == ["attention"]
    assert "set PORTAKERNEL_CACHE_DIR to a folder" in found[0]["action"]
    assert taken.read_text() == ""


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
    assert f"\n  {sentence}\n    -> correct its name, or unset it\n" in run("doctor").out


@pytest.mark.parametrize("variable", ["DISABLE", "USE", "REFERENCE", "LOG"])
def test_a_variable_with_a_wrong_value_is_told_and_the_rest_is_examined(
    run: Callable, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(f"PORTAKERNEL_{variable}", "nonsense")
    ran = run("doctor --json")
    assert ran.status == 1
    assert "'nonsense'" in ran.json["environment"]["error"]
    assert [finding["what"] for finding in ran.json["findings"] if finding["state"] == "sick"] == [
        ran.json["environment"]["error"]
    ]
    assert len(ran.json["backends"]) >= 3


def test_every_stage_has_a_remedy() -> None:
    root = Path(__file__).parents[2] / "portakernel"
    sources = "".join((root / f"{name}.py").read_text() for name in ("plugin_manager", "registry", "readiness"))
    stages = {stage for stage in REMEDIES if f'"{stage}"' in sources}
    assert stages == set(REMEDIES)


def test_a_host_without_compiler_is_said_to_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert find_compiler() is None
