"""``portakernel report``: what it says of a workload, a plan, a store and what is broken, and what it refuses."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portakernel import runtime
from portakernel.cli.plan.call_requests import requests_of
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.host.distributions import version
from portakernel.plan.reading import read_form
from portakernel.runtime import dispatcher
from portakernel.tensors.units import units_of
from portakernel.tuning.key import Key, Kind, Regime
from portakernel.tuning.record import Entry, Record, Verdict
from portakernel.tuning.sources import contract_digest, source_digest
from portakernel.tuning.store import Writer, folder_of
from portakernel.warming.outcome import Call

FLASH, MATH = "torch.attention_flash_cpu", "torch.attention_math"
TIME = "0.50 of the time of what priorities pick, at most 0.55"
HEADS = {"q": [1, 4, 16, 64], "k": [1, 4, 16, 64], "v": [1, 4, 16, 64]}
ATTENTION = "{op: attention, dtype: float32, shape: {q: [1, 4, 16, 64], k: [1, 4, 16, 64], v: [1, 4, 16, 64]}"
CALLS = f"""\
calls:
  - {{op: add, dtype: float32, shape: {{x: [4, 8], y: [4, 8]}}, device: cpu, count: 25}}
  - {ATTENTION}, device: cpu, count: 75}}
traced: [softmax]
"""


@pytest.fixture(autouse=True)
def _empty_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PORTAKERNEL_TUNING_DIR", str(tmp_path / "store"))


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    file = tmp_path / "calls.yaml"
    file.write_text(CALLS, encoding="utf-8")
    return file


def place() -> str:
    device = dispatcher().registry.device("cpu")
    return f"{device.target}/{units_of(device)}"


def measure(tmp_path: Path, *, torch: str = "") -> None:
    """Puts a record of the recording's attention into the store: the one that priorities do not pick takes half."""
    registry, device = dispatcher().registry, dispatcher().registry.device("cpu")
    call = Call("attention", "float32", HEADS)
    (request,) = requests_of(call, device.target, device)
    units = units_of(device) or 0
    kind = Kind.of(request, registry.for_op("attention"))
    key = Key(kind, str(device.target), units, Regime.EAGER_COLD, dict(request.dims))
    sources = {name: source_digest(registry.kernels[name]) for name in (FLASH, MATH)}
    kernels = {
        FLASH: Entry(source=sources[FLASH], verdict=Verdict.RIGHT, us=(9.0, 10.0, 11.0), rounds=25),
        MATH: Entry(
            source=sources[MATH],
            verdict=Verdict.RIGHT,
            us=(4.0, 5.0, 6.0),
            rounds=25,
            against={FLASH: (0.45, 0.5, 0.55)},
        ),
    }
    record = Record(
        key, contract_digest(contract("attention")), kernels, "2026-11-27T00:00:00Z", FLASH,
        torch=torch or version("torch") or "", driver=device.driver or "",
    )  # fmt: skip
    with Writer(folder_of(tmp_path / "store", key.target, units), "attention") as writer:
        writer.write(record)


@pytest.fixture
def begin_anew(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Gives the next command a process that begins now: what it goes by is read at its start."""
    return lambda: monkeypatch.setattr(runtime, "_dispatcher", functools.cache(Dispatcher))


def test_without_a_workload_it_says_that_none_was_given_and_invents_none(run: Callable, tmp_path: Path) -> None:
    data = run("report --json").json
    assert (data["workload"], data["plan"], data["judged_for"]) == (None, None, None)
    first = data["help"][0]
    assert (first["kind"], first["calls"], first["weight"]) == ("no_workload", 0, None)
    assert first["action"].startswith("portakernel record -o calls.yaml -- PROGRAM")
    file = tmp_path / "report.html"
    assert run("report", "-o", str(file)).status == 0
    page = file.read_text(encoding="utf-8")
    assert "No workload was given" in page
    assert 'portakernel.record("calls.yaml")' in page
    assert "<svg class=" not in page
    assert any(device["torch_device"] == "cpu" and device["units"] for device in data["devices"])


def test_decisions_are_those_that_explain_comes_to_with_shares_of_calls(run: Callable, calls: Path) -> None:
    workload = run("report", "--calls", str(calls), "--json").json["workload"]
    assert (workload["calls"], workload["kinds"], workload["traced"]) == (100, 2, ["softmax"])
    assert [one["share"] for one in workload["decisions"]] == [0.25, 0.75]
    for one in workload["decisions"]:
        told = run(*shlex.split(one["explain"])[1:], "--json").json
        assert (one["kernel"], one["why"]) == (told["chosen"], told["why"])
        assert (one["source"], one["by_priority"]) == ("priority", one["kernel"])
        assert one["measured"] is None
        assert one["measured_why"] == f"nothing was measured on {place()}"


def test_a_call_for_training_counts_for_forward_and_for_backward(run: Callable, tmp_path: Path) -> None:
    file = tmp_path / "calls.yaml"
    call = "op: rms_norm, dtype: float32, shape: {x: [4, 8], weight: [8]}, device: cpu, training: true, count: 3"
    file.write_text(f"calls: [{{{call}}}]", encoding="utf-8")
    workload = run("report", "--calls", str(file), "--json").json["workload"]
    assert [(one["phase"], one["calls"], one["share"]) for one in workload["decisions"]] == [
        ("training", 3, 0.5),
        ("backward", 3, 0.5),
    ]
    assert (workload["calls"], workload["kinds"]) == (3, 1)


def test_what_measurements_prefer_stands_beside_what_priorities_pick(
    run: Callable, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin_anew: Callable[[], None]
) -> None:
    measure(tmp_path)
    begin_anew()
    data = run("report", "--calls", str(calls), "--json").json
    one = data["workload"]["decisions"][1]
    assert (one["kernel"], one["source"], one["by_priority"], one["measured"]) == (MATH, "measured", FLASH, MATH)
    assert (one["measured_why"].rpartition(": ")[2], one["stale"]) == (TIME, [])
    assert data["stores"][0] | {"folder": ""} == {
        "folder": "", "ships": False, "records": 1, "decide": 1, "undecided": 0, "elsewhere": 0, "reasons": [],
        "passed_over": "", "trouble": "",
    }  # fmt: skip
    monkeypatch.setenv("PORTAKERNEL_USE", FLASH)
    begin_anew()
    data = run("report", "--calls", str(calls), "--json").json
    one = data["workload"]["decisions"][1]
    assert (one["kernel"], one["source"], one["measured"]) == (FLASH, "policy", MATH)
    (helps,) = (each for each in data["help"] if each["kind"] == "overruled")
    assert (helps["calls"], helps["loss"], helps["weight"], helps["action"]) == (75, 0.5, 37.5, one["explain"])
    assert helps["basis"] == f"the mean of 1 record of attention on {one['target']}"


def test_what_was_measured_with_another_torch_is_stale_and_says_how_to_repeat_it(
    run: Callable, calls: Path, tmp_path: Path, begin_anew: Callable[[], None]
) -> None:
    measure(tmp_path, torch="2.0.0")
    begin_anew()
    data = run("report", "--calls", str(calls), "--json").json
    one = data["workload"]["decisions"][1]
    assert (one["kernel"], one["source"], len(one["stale"])) == (MATH, "measured", 1)
    assert "2.0.0" in one["stale"][0]
    (helps,) = (each for each in data["help"] if each["kind"] == "stale")
    assert helps["action"] == f"portakernel tune --stale --calls {calls}"


def test_a_plan_has_its_digest_and_what_it_does_not_cover_is_an_error_where_it_is_locked(
    run: Callable, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, listed = tmp_path / "plan.yaml", tmp_path / "listed.yaml"
    only = "calls: [{op: add, dtype: float32, shape: {x: [4, 8], y: [4, 8]}, device: cpu}]"
    listed.write_text(only, encoding="utf-8")
    assert run("plan", "lock", str(plan), "--calls", str(listed)).status == 0
    data = run("report", "--calls", str(calls), "--plan", str(plan), "--json").json
    state = data["plan"]
    assert (state["digest"], state["lock"], state["targets"]) == (read_form(plan).digest, "everything", [place()])
    assert (state["entries"], state["problems"], state["refused"], state["uncovered"]) == (1, [], [], 75)
    add, attention = data["workload"]["decisions"]
    assert (add["source"], add["planned"], add["by_priority"]) == ("plan", True, add["kernel"])
    assert (attention["kernel"], attention["source"], attention["planned"]) == (None, "none", False)
    first = data["help"][0]
    assert (first["kind"], first["calls"], first["loss"]) == ("no_kernel", 75, 1.0)
    assert first["action"] == f"portakernel plan lock {plan} --calls {calls}"
    # the variable's plan is the one where none is named
    monkeypatch.setenv("PORTAKERNEL_PLAN", str(plan))
    assert run("report --json").json["plan"]["digest"] == state["digest"]


def test_a_plan_that_is_refused_comes_first_with_what_is_wrong(run: Callable, calls: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("schema_version: 1\ntargets: {'cpu:x86_64/2': {ad: []}}\nlocked: true\n", encoding="utf-8")
    data = run("report", "--calls", str(calls), "--plan", str(plan), "--json").json
    assert (data["plan"]["digest"], data["plan"]["lock"]) == (None, None)
    checked = run("plan", "check", str(plan), "--json").json
    assert data["plan"]["problems"] == checked["problems"] != []
    assert (data["help"][0]["kind"], data["help"][0]["action"]) == ("plan_refused", f"portakernel plan check {plan}")
    assert data["help"][0]["details"] == checked["problems"][:5]


MISSING = """\
schema_version: 1
plugin: acme
requires: {modules: {acme_fast_lib: ">=2"}, distributions: {acme_fast_lib: acme-fast}}
kernels:
  - {op: add, entry: "acme_for_cli_tests:add", targets: {cpu: any}, dtypes: {x: [float32], y: [x]}, priority: 99}
"""


def test_a_missing_package_that_would_bring_a_kernel_is_named_with_its_command(
    run: Callable, calls: Path, install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("acme", manifest=MISSING)
    monkeypatch.setenv("PORTAKERNEL_PREFER", "acme")
    data = run("report", "--calls", str(calls), "--json").json
    (over,) = data["workload"]["decisions"][0]["passed_over"]
    assert (over["kernel"], over["action"], over["unbuilt"]) == ("acme.add", "pip install 'acme-fast>=2'", False)
    (helps,) = (each for each in data["help"] if each["kind"] == "passed_over")
    assert (helps["action"], helps["calls"], helps["loss"]) == ("pip install 'acme-fast>=2'", 25, 0.1)
    assert helps["basis"] == "assumed, as no record times these kernels"
    assert [one["action"] for one in data["help"]].count("pip install 'acme-fast>=2'") == 1


RAISING = """\
schema_version: 1
plugin: acme
kernels:
  - {op: add, entry: "acme_for_cli_tests.lost:add", targets: {cpu: any}, dtypes: {x: [float32], y: [x]}}
"""


def test_a_broken_plugin_is_told_as_doctor_tells_it(
    run: Callable, install: Callable[..., Path], tmp_path: Path
) -> None:
    install("acme", manifest=RAISING)
    data = run("report --json").json
    (broken,) = run("doctor --json").json["broken"]
    assert data["broken"] == [
        {
            "package": "acme (acme-kernels 1.2)",
            "stage": broken["stage"],
            "reason": broken["reason"],
            "action": broken["remedy"],
        }
    ]
    assert ("broken", broken["remedy"]) in [(one["kind"], one["action"]) for one in data["help"]]


SCRIPT = "<script>alert('x')</script>"


def test_names_of_files_and_what_plugins_say_are_escaped(
    run: Callable, install: Callable[..., Path], tmp_path: Path
) -> None:
    install("acme", manifest=RAISING.replace(".lost", ""), source=f"raise ValueError({SCRIPT!r})")
    folder = tmp_path / "<img src=x onerror=alert(1)>\u202e"
    folder.mkdir()
    calls, plan, page = folder / "calls.yaml", folder / "plan.yaml", folder / "report.html"
    calls.write_text(CALLS, encoding="utf-8")
    plan.write_text(f'schema_version: 1\ntargets: {{}}\n"{SCRIPT}": 1\n', encoding="utf-8")
    assert run("report", "--calls", str(calls), "--plan", str(plan), "-o", str(page)).status == 0
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<img" not in text
    assert "\u202e" not in text
    # of the plugin's import, of the plan's key, and of the files' folder
    assert text.count("&lt;script&gt;alert(") >= 2
    assert "&lt;img src=x onerror=alert(1)&gt;\\u202e" in text


def test_hardware_elsewhere_is_judged_from_manifests(run: Callable, tmp_path: Path) -> None:
    file = tmp_path / "calls.yaml"
    call = "op: rms_norm, dtype: bfloat16, shape: {x: [64, 4096], weight: [4096]}, device: 'cuda:0'"
    file.write_text(f"calls: [{{{call}}}]", encoding="utf-8")
    data = run("report", "--calls", str(file), "--target", "h100/132", "--json").json
    assert data["judged_for"] == "nvidia:sm_90/132"
    (one,) = data["workload"]["decisions"]
    told = run(*shlex.split(one["explain"])[1:], "--json").json
    assert (one["target"], one["kernel"]) == ("nvidia:sm_90", told["chosen"])
    there = data["devices"][-1]
    assert (there["target"], there["units"], there["here"]) == ("nvidia:sm_90", 132, False)


def test_a_target_that_is_attached_to_another_is_refused(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = dispatcher().registry
    backend = next(one for one in registry.backends.values() if one.vendor == "apple")
    attached = dataclasses.replace(backend, attach=True)
    monkeypatch.setattr(registry, "backends", {**registry.backends, backend.name: attached})
    ran = run("report --target apple:m3 --json")
    told = f"report: --target apple:m3 is attached to torch's {backend.torch_device}, on which calls are made"
    message = f"{told}; name that one's target, or leave --target out"
    assert (ran.status, ran.json["error"]["message"]) == (2, message)


def test_a_reference_on_an_accelerator_is_told_apart_from_one_on_a_cpu(run: Callable, tmp_path: Path) -> None:
    file = tmp_path / "calls.yaml"
    call = "op: moe_route, dtype: float32, shape: {logits: [64, 64]}, parameters: {k: 4}, count: 9"
    file.write_text(f"calls: [{{{call}}}]", encoding="utf-8")
    here, there = (run("report", "--calls", str(file), *more, "--json").json for more in ([], ["--target", "apple:m3"]))
    assert here["workload"]["decisions"][0]["slow_reference"] is False
    (one,) = there["workload"]["decisions"]
    assert (one["kernel"], one["slow_reference"]) == ("reference.moe_route", True)
    (helps,) = (each for each in there["help"] if each["kind"] == "reference")
    assert (helps["calls"], helps["loss"], helps["weight"]) == (9, 0.5, 4.5)


def test_what_has_no_answer_is_told_with_a_way_out(run: Callable, tmp_path: Path) -> None:
    files = {
        "cut.yaml": "calls: [{op: add\n",  # cut short
        "names.yaml": "calls:\n  - {op: ad, dtype: float32, shape: {x: [4], y: [4]}}",
        "shapes.yaml": "calls:\n  - {op: add, dtype: float32, shape: {x: [4], y: [5]}}",
        "elsewhere.yaml": "calls:\n  - {op: add, dtype: float32, shape: {x: [4], y: [4]}, device: 'cuda:9'}",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    none, nowhere = tmp_path / "none.yaml", tmp_path / "nowhere"
    for words, message in {
        ("--calls", str(none)): (
            f"report: {none} is not there; `portakernel record -o {none} -- PROGRAM` writes one, with the calls that"
            " PROGRAM makes"
        ),
        ("--calls", str(tmp_path / "cut.yaml")): (
            f"{tmp_path}/cut.yaml:2: is not valid YAML: while parsing a flow mapping did not find expected ',' or '}}'"
        ),
        ("--calls", str(tmp_path / "names.yaml")): (
            f"{tmp_path}/names.yaml:2: calls[0].op: unknown op 'ad'; did you mean 'add'?"
        ),
        ("--calls", str(tmp_path / "shapes.yaml")): (
            f"{tmp_path}/shapes.yaml: Call(op='add', dtype='float32', shape={{'x': [4], 'y': [5]}}): add: y has shape"
            " (5,), but x has leading dimensions (4,); they must be equal (broadcasting is refused)"
        ),
        ("--plan", str(none)): f"{none} is not there; `portakernel plan export -o {none}` writes a plan",
        ("-o", str(tmp_path)): f"report: {tmp_path} is a folder; give the file to write",
        ("-o", ""): "report: -o is empty; give the page to write, such as -o report.html",
        ("-o", str(nowhere / "x.html")): (
            f"report: {nowhere}/x.html cannot be written: there is no folder {nowhere}; make it, or give another file"
        ),
        ("--target", "h100/x"): (
            "--target 'h100/x': found 'x' for units; write VENDOR:ARCH, or VENDOR:ARCH/UNITS, with the multiprocessors"
            " or compute units, such as nvidia:sm_90/132"
        ),
    }.items():
        given = ("-o", str(tmp_path / "out.html")) if "-o" not in words else ()
        ran = run("report", *words, *given)
        assert (ran.status, ran.out, ran.err) == (2, "", f"portakernel: {message}\n")
    ran = run("report", "--calls", str(tmp_path / "elsewhere.yaml"), "-o", str(tmp_path / "out.html"))
    assert ran.err.startswith(
        f"portakernel: {tmp_path}/elsewhere.yaml has calls on cuda:9, and this machine has no such"
    )
    assert ran.err.endswith("; where it was recorded elsewhere, name that hardware, as --target nvidia:sm_90/132\n")
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize(
    ("raised", "status"), [(OSError(errno.ENOSPC, "No space left on device"), 2), (KeyboardInterrupt(), 130)]
)
def test_what_cannot_be_written_or_is_interrupted_leaves_what_was_there(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, status: int
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    file = folder / "report.html"
    file.write_text("yesterday's", encoding="utf-8")

    def fail(*_: Any) -> None:
        raise raised

    monkeypatch.setattr(os, "replace", fail)
    ran = run("report", "-o", str(file))
    assert ran.status == status
    assert (os.listdir(folder), file.read_text(encoding="utf-8")) == (["report.html"], "yesterday's")
    if status == 2:
        told = f"report: {file} cannot be written: No space left on device; what was there stays"
        assert ran.err == f"portakernel: {told}; give another file with -o\n"


def test_a_link_stays_and_the_file_behind_it_is_written(run: Callable, tmp_path: Path) -> None:
    link, file = tmp_path / "link.html", tmp_path / "file.html"
    link.symlink_to(file)
    ran = run("report", "-o", str(link))
    assert ran.out.startswith(f"wrote {link}\n")
    assert link.is_symlink()
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_json_alone_writes_no_file_and_with_a_name_it_does(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(os.listdir(tmp_path))
    assert run("report --json").status == 0
    assert set(os.listdir(tmp_path)) == before
    assert run("report --json -o there.html").json["schema_version"] == 1
    assert run("report").out.startswith("wrote report.html\n")
    assert set(os.listdir(tmp_path)) - before == {"there.html", "report.html"}


def test_without_jinja_it_says_how_to_get_it_and_json_goes_on(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    ran = run("report")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("portakernel: report: the page is made with Jinja, which cannot be imported (")
    assert ran.err.endswith("; pip install 'portakernel[report]', or --json, which needs none\n")
    assert run("report --json").status == 0
