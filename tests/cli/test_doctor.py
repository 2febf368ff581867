"""``portakernel doctor``."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portakernel import __version__
from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.claims.request import Phase
from portakernel.cli.doctor import missing
from portakernel.cli.doctor.diagnosis import Diagnosis, Readiness
from portakernel.cli.doctor.faults import REMEDIES
from portakernel.cli.doctor.findings import findings
from portakernel.cli.doctor.missing import find_compiler
from portakernel.config import VARIABLES, Config
from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.runtime import dispatcher
from portakernel.tensors.units import units_of
from portakernel.tuning.key import Key, Kind, Regime
from portakernel.tuning.record import Entry, Record, Verdict
from portakernel.tuning.sources import contract_digest, source_digest
from portakernel.tuning.store import Writer, folder_of
from portakernel.words.target import Device, Target

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
    assert list(device) == [
        "target",
        "name",
        "torch_device",
        "uuid",
        "memory_bytes",
        "driver",
        "attached",
        "note",
        "features",
    ]
    plugins = {plugin["plugin"]: plugin for plugin in data["plugins"]}
    assert list(plugins["torch"]) == ["plugin", "summary", *package, "kernels", "requires", "readiness"]
    assert list(plugins["torch"]["requires"][0]) == ["module", "needs", "found"]
    ready = next(r for r in plugins["torch"]["readiness"] if r["torch_device"] == "cpu")
    assert list(ready) == ["kernel", "target", "torch_device", "ready", "rejections"]
    assert ready["ready"] is True
    coverage = next(c for c in data["coverage"] if c["torch_device"] == "cpu")
    assert list(coverage) == ["target", "torch_device", "accelerated", "reference_only", "phases"]
    assert sorted(coverage["accelerated"] + coverage["reference_only"]) == sorted(dispatcher().registry.ops)
    assert [phase["phase"] for phase in coverage["phases"]] == ["inference", "training", "backward"]
    for phase in coverage["phases"]:
        assert list(phase) == ["phase", "ready", "buildable", "reference_only", "unserved"]
    assert coverage["reference_only"] == coverage["phases"][0]["reference_only"]
    assert {"add", "rms_norm"} <= set(coverage["accelerated"])
    for finding in data["findings"]:
        assert list(finding) == ["state", "what", "action", "details"]
        assert finding["state"] in {"healthy", "attention"}
        assert (finding["action"] is None) == (finding["state"] == "healthy")


def test_people_read_what_is_healthy_on_each_device_and_how_much_that_is(run: Callable) -> None:
    out = run("doctor").out
    assert out.startswith(f"portakernel {__version__} on Python ")
    assert re.search(r"\nHealthy\n  torch \S+, built for ", out)
    assert re.search(r"\n  cpu: .+ \(cpu:\w+\), .+ GiB; beside the reference, kernels serve \d+ of \d+ ops in", out)
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
from portakernel.claims.capability import ReasonCode, Rejection
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
from portakernel.deciding.readiness import Usable
def ready(device):
    return Usable(["{note}"])
"""
    install("acme", manifest=f"{RAISING}ready: acme_for_cli_tests:ready\n", source=source)
    ran = run("doctor")
    assert f"  plugin acme: {told}" in ran.out.partition("\nNeeds attention\n")[2]
    assert ran.out.count("its cache is full") == 1


def test_ops_that_only_the_reference_serves_need_attention_on_accelerators() -> None:
    card = Device(Target("nvidia", "sm_90"), "NVIDIA H200", "cuda:0", memory_bytes=2**37, driver="580.1")
    reference = [Readiness(f"reference.{op}", card, ()) for op in dispatcher().registry.ops]
    ready = (*reference, Readiness("triton.add", card, ()))
    diagnosis = Diagnosis(dispatcher(), None, (card,), ready, (), (), None)
    (coverage,) = diagnosis.coverage()
    assert coverage.accelerated == ("add",)
    ops = dispatcher().registry.ops
    rest = [op for op in ops if op != "add"]
    assert list(coverage.reference_only) == rest
    # of ``add`` the gradient is the output's: nothing serves its backward
    with_gradient = [op for op, contract in ops.items() if contract.gradient != "none"]
    finding = next(finding for finding in findings(diagnosis) if finding.what.startswith("cuda:0: "))
    assert finding.state == "attention"
    assert finding.what == (
        "cuda:0: NVIDIA H200 (nvidia:sm_90), 128.0 GiB, driver 580.1; beside the reference, kernels serve"
        f" 1 of {len(ops)} ops in inference, 1 of {len(with_gradient)} ops in training,"
        f" 0 of {len(with_gradient) - 1} ops in backward"
    )
    assert finding.details[0] == f"only the reference, in inference: {', '.join(rest)}"
    assert finding.details[2] == f"only the reference, in backward: {', '.join(with_gradient[1:])}"
    assert finding.action == "expect those to be slow; `portakernel matrix --vendor nvidia` shows what there is"


def test_a_kernel_that_only_lacks_a_build_is_healthy_and_counts() -> None:
    card = Device(Target("nvidia", "sm_90"), "NVIDIA H200", "cuda:0")
    unbuilt = Rejection(ReasonCode.NEEDS_BUILD, "is not built for these sizes, dtypes and values")
    diagnosis = Diagnosis(dispatcher(), None, (card,), (Readiness("triton.add", card, (unbuilt,)),), (), (), None)
    (coverage,) = diagnosis.coverage()
    assert coverage.accelerated == ("add",)
    assert [(phase.ready, phase.buildable) for phase in coverage.phases] == [((), ("add",)), ((), ("add",)), ((), ())]
    found = findings(diagnosis)
    assert re.search(
        r"plugin triton \(portakernel \S+\): \d+ kernels, 1 to be built on cuda:0 \(nvidia:sm_90\)",
        next(one.what for one in found if one.what.startswith("plugin triton ")),
    )
    assert "triton.add can serve once portakernel.warmup has built them" in [one.what for one in found]
    # that nothing serves the other ops, of which this diagnosis knows no reference, is another thing
    assert {one.state for one in found if not one.what.startswith("cuda:0: ")} == {"healthy"}


@pytest.mark.parametrize("phase", [Phase.TRAINING, Phase.BACKWARD])
def test_a_kernel_is_counted_in_a_phase_where_it_would_be_chosen_for_it(phase: Phase) -> None:
    now = dispatcher()
    for kernel in now.registry.kernels.values():
        gradient = contract(kernel.op).gradient
        if kernel.is_reference or gradient == "none" or (phase is Phase.BACKWARD and gradient == "identity"):
            continue
        request = ask(contract(kernel.op), Target("cpu", "x86_64"), phase=phase)
        codes = {rejection.code for rejection in now.decide(request).candidate(kernel.name).rejections}
        # PyTorch differentiates what consists of its operators: such a kernel is never asked for a backward
        recorded = kernel.saves == "autograd" and phase is Phase.BACKWARD
        refused = codes & {ReasonCode.REQUIRES_GRAD, ReasonCode.NO_BACKWARD} and not recorded
        assert kernel.serves(phase) == (not refused), kernel.name


def test_a_plugins_kernels_are_counted_by_what_keeps_them_from_serving_here() -> None:
    card = Device(Target("nvidia", "sm_90"), "NVIDIA H200", "cuda:0")
    kernels = [kernel.name for kernel in dispatcher().registry.kernels.values() if kernel.plugin == "torch"]
    codes = [None, ReasonCode.NEEDS_BUILD, ReasonCode.FEATURE, ReasonCode.NOT_INSTALLED, ReasonCode.DISABLED]
    codes.append(ReasonCode.DRIVER)
    ready = [
        Readiness(kernel, card, (Rejection(code, "a reason"),) if code else ())
        for kernel, code in zip(kernels, codes, strict=False)
    ]
    diagnosis = Diagnosis(dispatcher(), None, (card,), tuple(ready), (), (), None)
    found = [finding.what.partition("kernels, ")[2] for finding in findings(diagnosis)]
    here = "on cuda:0 (nvidia:sm_90)"
    assert (
        f"1 ready {here}, 1 to be built {here}, 1 ready for calls with other values than the defaults {here},"
        f" 1 waiting for a module {here}, 1 switched off {here}, 1 not usable {here}"
    ) in found
    assert "all for other devices than those here" in found


def test_lines_of_the_store_that_are_no_records_are_counted(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Key(Kind("add", "inference", {"x": "float32"}), "cpu:x86_64", 2, Regime.EAGER_COLD, {"N": 8})
    whole = Record(key, "9f1c", {}, "2026-11-27T00:00:00Z").line()
    folder = tmp_path / "cpu.x86_64-2"
    folder.mkdir()
    (folder / "add.host-1-0.jsonl").write_text(whole + whole[:40] + "\n{}\n")
    monkeypatch.setenv("PORTAKERNEL_TUNING_DIR", str(tmp_path))
    (folder / "add.host-2-0.jsonl").mkdir()
    shown = " ".join(run("doctor").out.split())
    lines = "2 lines passed over (2 cut short, or altered)"
    assert f"; {lines}, 1 file not read, in {tmp_path}" in shown
    assert f"{folder}/add.host-1-0.jsonl: {lines}" in shown
    assert f"{folder}/add.host-2-0.jsonl: not read: is a folder" in shown
    assert "`portakernel tune --compact` leaves such lines out; move files that cannot be read out of the" in shown


def test_records_that_apply_here_are_counted_apart_from_others(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTAKERNEL_TUNING_DIR", str(tmp_path))
    device, registry = dispatcher().registry.device("cpu"), dispatcher().registry
    units = units_of(device) or 0
    asked = ask(contract("softmax"), device.target, dtypes="float32", shapes={"x": (8, 64)})
    kind, kernel = Kind.of(asked, registry.for_op("softmax")), registry.kernels["torch.softmax_cpu"]
    entry = Entry(source=source_digest(kernel), verdict=Verdict.RIGHT, us=(1.0, 2.0, 3.0))

    def keep(units: int, rows: int, **more: Any) -> None:
        key = Key(kind, str(device.target), units, Regime.EAGER_COLD, {"M": rows, "N": 64})
        with Writer(folder_of(tmp_path, key.target, units), "softmax") as writer:
            known = contract_digest(contract("softmax"))
            writer.write(Record(key, known, {kernel.name: entry}, "2026-11-27T00:00:00Z", kernel.name, **more))

    keep(units + 1, 8)
    shown = " ".join(run("doctor").out.split())
    elsewhere = f"of other devices: {device.target}/{units + 1} (1)"
    assert f"tuning records: 1 of 1 op: 0 decide here; {elsewhere}, in {tmp_path}" in shown
    assert f"`portakernel tune` measures for {device.target}/{units}, which this machine is now; a CPU's units" in shown
    keep(units, 8)
    keep(units, 16, busy=True)
    shown = " ".join(run("doctor", "--verbose").out.split())
    assert f"tuning records: 3 of 1 op: 1 decide here; 1 of this machine's decide nothing; {elsewhere}" in shown
    assert "1: others used the device while it was measured" in shown
    assert "`portakernel tune` measures for" not in shown
    assert "tuning records that ship with portakernel: " in shown
    monkeypatch.setenv("PORTAKERNEL_TUNING", "off")
    assert "2: PORTAKERNEL_TUNING is off" in " ".join(run("doctor", "--verbose").out.split())


@pytest.mark.filterwarnings("ignore:the store of measurements")
@pytest.mark.parametrize("below", ["", "/below/it"])
def test_a_store_that_is_no_directory_is_told(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    (tmp_path / "store").write_text("no folder", encoding="utf-8")
    monkeypatch.setenv("PORTAKERNEL_TUNING_DIR", root := f"{tmp_path}/store{below}")
    shown = " ".join(run("doctor").out.split())
    assert f"the store of measurements {root} is no directory: `portakernel tune` can keep nothing there" in shown
    assert "PORTAKERNEL_TUNING_DIR names another folder" in shown


def test_a_store_that_is_not_there_is_neither_told_nor_made(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTAKERNEL_TUNING_DIR", str(tmp_path / "store"))
    assert "store of measurements" not in run("doctor").out
    assert not (tmp_path / "store").exists()


def test_a_store_that_cannot_be_written_is_told(run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, content: bytes) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setenv("PORTAKERNEL_TUNING_DIR", str(tmp_path))
    monkeypatch.setattr(Path, "write_bytes", refused)
    shown = " ".join(run("doctor").out.split())
    assert f"the store of measurements {tmp_path} is read-only (Read-only file system)" in shown


def test_a_plugin_that_is_switched_off_is_said_to_be(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTAKERNEL_DISABLE", "triton")
    out = run("doctor").out
    assert re.search(r"\n  plugin triton \(portakernel \S+\) is switched off by PORTAKERNEL_DISABLE\n", out)
    assert "\n  PORTAKERNEL_DISABLE=triton is in force\n" in out


def test_a_backend_that_is_switched_off_is_not_said_to_find_no_device(
    run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTAKERNEL_DISABLE", "intel,apple")
    out = run("doctor").out
    assert "\n  devices of apple, intel are not looked for: PORTAKERNEL_DISABLE switches it off\n" in out
    (absent,) = re.findall(r"\n  no device of (.*) here\n", out)
    assert not {"apple", "intel"} & set(absent.split(", "))


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


def test_a_module_that_a_plugin_and_its_kernel_need_is_told_once(run: Callable, install: Callable[..., Path]) -> None:
    requires = "    requires: {modules: {acme_runtime: '>=2,<3'}}\nrequires: {modules: {acme_runtime: '>=2'}}\n"
    other = "  - {op: softmax, entry: acme_for_cli_tests.lost:softmax, targets: {cpu: any}, dtypes: {x: [float32]}}\n"
    install("acme", manifest=RAISING + requires.replace("\nrequires", f"\n{other}requires"))
    missing = run("doctor --json").json["missing"]
    assert [one for one in missing if "acme" in one["what"]] == [
        {
            "what": "plugin acme needs acme_runtime >=2,<3; it is not installed",
            "remedy": "pip install 'acme_runtime>=2,<3'",
        }
    ]


def test_a_plugin_for_devices_that_are_not_here_rests_whatever_it_needs(
    run: Callable, install: Callable[..., Path]
) -> None:
    manifest = RAISING.replace("cpu: any", "nvidia: sm_90+") + "requires: {modules: {acme_runtime: '>=2'}}\n"
    install("acme", manifest=manifest)
    dispatcher().registry._devices["nvidia"] = ()
    ran = run("doctor --json")
    (finding,) = (finding for finding in ran.json["findings"] if "acme" in finding["what"])
    assert (finding["state"], finding["what"]) == (
        "healthy",
        "plugin acme (acme-kernels 1.2) rests until its library is there: pip install 'acme_runtime>=2'",
    )
    assert not [missing for missing in ran.json["missing"] if "acme" in missing["what"]]


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
        f"plugin acme (acme-kernels 1.2): 1 kernel, 1 waiting for a module on cpu (cpu:{platform.machine()})",
    )
    assert not [missing for missing in ran.json["missing"] if "acme" in missing["what"]]


def test_a_device_that_torch_cannot_reach_is_missing_and_says_what_to_install(run: Callable) -> None:
    note = "torch 2.11.0 is a CPU build: install a CUDA build to use this device"
    lonely = Device(Target("nvidia", "sm_90"), "NVIDIA H200", None, uuid="GPU-1", memory_bytes=2**37, note=note)
    registry = dispatcher().registry
    registry._devices = {name: (lonely,) if name == "nvidia" else () for name in registry.backends}
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


def test_a_cache_that_somebody_else_can_write_is_told(
    run: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("PORTAKERNEL_CACHE_DIR", str(tmp_path / "open" / "cache"))
    found = [f for f in run("doctor --json").json["findings"] if "the cache of compiled kernels" in f["what"]]
    what = f"the cache of compiled kernels {tmp_path}/open/cache is below {tmp_path}/open, which can be written by"
    what += " everybody; a private one serves each process in its place"
    action = "set PORTAKERNEL_CACHE_DIR to a folder that nobody else can write, or take this one away"
    assert [(one["state"], one["what"], one["action"]) for one in found] == [("attention", what, action)]
    assert not (tmp_path / "open" / "cache").exists()


@pytest.mark.filterwarnings("always::portakernel.errors.ConfigWarning")
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


@pytest.mark.parametrize("variable", ["USE", "REQUIRE", "REFERENCE", "POLICY", "LOG", "CACHE_MIB"])
def test_a_variable_with_a_wrong_value_is_told_and_the_rest_is_examined(
    run: Callable, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(f"PORTAKERNEL_{variable}", "nonsense")
    ran = run("doctor --json")
    assert ran.status == 1
    assert "nonsense" in ran.json["environment"]["error"]
    assert [finding["what"] for finding in ran.json["findings"] if finding["state"] == "sick"] == [
        ran.json["environment"]["error"]
    ]
    assert len(ran.json["backends"]) >= 3


def test_every_stage_has_a_remedy() -> None:
    root = Path(__file__).parents[2] / "portakernel"
    modules = ("registry/plugin_manager", "registry/registry", "deciding/readiness")
    sources = "".join((root / f"{name}.py").read_text() for name in modules)
    stages = {stage for stage in REMEDIES if f'"{stage}"' in sources}
    assert stages == set(REMEDIES)


def test_a_host_without_compiler_is_said_to_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert find_compiler() is None


def test_every_variable_is_told_with_its_value_and_meaning(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTAKERNEL_PREFER", "gone")
    monkeypatch.setenv("PORTAKERNEL_CACHE_DIR", "")
    told = run("doctor --environment --json")
    assert (told.status, told.json["unknown"], told.json["error"]) == (0, [], None)
    assert [row["name"] for row in told.json["variables"]] == [variable.name for variable in VARIABLES]
    assert [row["name"] for row in told.json["variables"] if row["value"] is not None] == ["PORTAKERNEL_PREFER"]
    page = run("doctor --environment").out
    assert page.startswith("PORTAKERNEL_USE is not set\n    Kernels or plugins to use strictly: theirs, or an error.\n")
    assert (
        "\nPORTAKERNEL_PREFER=gone\n"
        "    Kernels or plugins to try first, best first.\n"
        "    accepts: names of kernels or plugins, comma-separated\n"
        "    read by: dispatch, when portakernel is first used\n"
    ) in page
    assert max(map(len, page.splitlines())) <= 100
    assert "PORTAKERNEL_CACHE_DIR is not set\n" in page


def test_a_variable_that_is_refused_or_means_nothing_is_told_beside_all_others(
    run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTAKERNEL_REQUIRE", "determinism")
    monkeypatch.setenv("PORTAKERNEL_PREFFER", "triton")
    ran = run("doctor --environment")
    assert ran.status == 1
    wrong = ran.out.partition("\nWhat is wrong\n")[2].splitlines()
    assert wrong[0].startswith("  PORTAKERNEL_PREFFER is set, but no such variable exists; did you mean ")
    assert wrong[1:] == ["  PORTAKERNEL_REQUIRE is 'determinism'; did you mean 'deterministic'?"]


@pytest.mark.parametrize(
    ("variable", "value", "wrong"),
    [
        ("POLICY", "/nonexistent.yaml", "/nonexistent.yaml: cannot be read"),
        ("POLICY", os.pathsep, "which names no file; give paths, or leave it unset"),
        ("USE", "ghost", "PORTAKERNEL_USE: unknown kernel or plugin 'ghost'"),
    ],
)
def test_what_would_stop_every_call_is_wrong_with_the_environment(
    run: Callable, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, wrong: str
) -> None:
    monkeypatch.setenv(f"PORTAKERNEL_{variable}", value)
    told = run("doctor --environment --json")
    assert told.status == 1
    assert wrong in told.json["error"]


@pytest.mark.parametrize("wish", [{"disable": ("reference",)}, {"reference": "forbid"}, {"deny": ("reference",)}])
def test_ops_that_nothing_serves_are_counted_and_named(wish: dict[str, Any]) -> None:
    now = Dispatcher(config=Config(**wish))
    card = Device(Target("nvidia", "sm_90"), "NVIDIA H200", "cuda:0", memory_bytes=2**37, driver="580.1")
    rejection = Rejection(ReasonCode.DISABLED, "switched off")
    off = (rejection,) if "disable" in wish else ()
    ready = (*(Readiness(f"reference.{op}", card, off) for op in now.registry.ops), Readiness("triton.add", card, ()))
    diagnosis = Diagnosis(now, None, (card,), ready, (), (), None)
    (coverage,) = diagnosis.coverage()
    rest = [op for op in now.registry.ops if op != "add"]
    assert (coverage.reference_only, list(coverage.phases[0].unserved)) == ((), rest)
    finding = next(finding for finding in findings(diagnosis) if finding.what.startswith("cuda:0: "))
    assert finding.state == "attention"
    assert f"; kernels serve 1 of {len(now.registry.ops)} ops in inference, " in finding.what
    assert f"nothing, in inference: {', '.join(rest)}" in finding.details


def test_who_calls_itself_portakernel_and_lies_elsewhere_is_told(run: Callable, install: Callable) -> None:
    folder = install("acme", manifest=RAISING, distribution="portakernel")
    found = [f for f in run("doctor --json").json["findings"] if "calls itself portakernel" in f["what"]]
    assert [(f["state"], f["what"], f["action"]) for f in found] == [
        (
            "attention",
            f"acme (portakernel 1.2) calls itself portakernel, but lies in {folder}: it counts as a third party's",
            "find out who installed it; its kernels wait until a policy names them",
        )
    ]
    (kernel,) = run("list --plugin acme --json").json["kernels"]
    assert kernel["source"] == {"distribution": "portakernel", "version": "1.2", "first_party": False}


def test_a_third_partys_kernel_that_waits_does_not_count_as_serving(
    run: Callable, install: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reference_only() -> list[str]:
        covered = run("doctor --json").json["coverage"]
        return next(device["reference_only"] for device in covered if device["target"].startswith("cpu:"))

    before, op = reference_only(), "dequantize"
    dtypes = {name: list(contract(op).possible_dtypes(name)) for name in contract(op).typed}
    formats = {p.of or p.name: list(p.choices) for p in contract(op).parameters if p.kind == "format"}
    claims = {"op": op, "entry": "acme_for_cli_tests:run", "targets": {"cpu": "any"}, "dtypes": dtypes}
    claims = json.dumps(claims | {"formats": formats})
    manifest = f"schema_version: 1\nplugin: acme\nkernels: [{claims}]\n"
    install("acme", manifest=manifest, source="def run(*a, **k): ...\n")
    assert reference_only() == before
    assert run("doctor --json").json["broken"] == []
    monkeypatch.setenv("PORTAKERNEL_PREFER", "acme")
    install("other", manifest="schema_version: 1\nplugin: other\n")
    assert reference_only() == [one for one in before if one != op]


@pytest.mark.parametrize(("torch_device", "missed"), [("cuda:0", True), ("cpu", False)])
def test_pythons_headers_are_missed_beside_a_gpu_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, torch_device: str, missed: bool
) -> None:
    monkeypatch.setattr(missing.sysconfig, "get_path", lambda _: str(tmp_path))
    devices = (Device(Target("nvidia", "sm_90"), "H200", torch_device),)
    found = [lack.what for lack in missing.missing(Dispatcher(), devices, ("cc", "cc 12"))]
    what = "Python's C headers are not here, and Triton's launchers on nvidia include them"
    assert (what in found) is missed
    (tmp_path / "Python.h").touch()
    assert what not in [lack.what for lack in missing.missing(Dispatcher(), devices, ("cc", "cc 12"))]
