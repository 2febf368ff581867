"""``portakernel warmup``."""

from __future__ import annotations

import json
import signal
from contextlib import nullcontext

import pytest
import torch
from cxx import needs_cxx

from portakernel import ops, runtime
from portakernel.claims.request import Phase
from portakernel.cli import main
from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.offline.job import Job
from portakernel.offline.outcome import Outcome
from portakernel.tensors.scratch import described
from portakernel.words.target import Target


@needs_cxx
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # importing Inductor
def test_it_builds_runs_and_says_what_serves(capsys):
    given = ["warmup", "silu_and_mul", "--dtype", "float32", "--shape", "x=4x34", "--device", "cpu"]
    assert main([*given, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer.pop("seconds") >= 0
    (call,) = answer.pop("calls")
    assert (call["phase"], call["kernel"], call["request"]["dims"]) == (
        "inference",
        "inductor.silu_and_mul",
        {"M": 4, "N": 17},
    )
    assert answer == {
        "op": "silu_and_mul",
        "device": "cpu",
        "built": ["inductor.silu_and_mul"],
        "declined": {},
        "ahead": [],
        "compiled": [],
        "failed": {},
        "runs": 2,
        "settled": True,
        "interrupted": False,
    }
    assert main(given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1 kind of call is warm after 2 runs in ")
    assert lines[1].startswith("  inductor.silu_and_mul  silu_and_mul on cpu:")
    assert lines[2:] == ["  built inductor.silu_and_mul"]


def test_it_ends_with_1_where_there_is_nothing_to_build_or_compile(capsys):
    given = ["warmup", "add", "--dtype=float32", "--shape=x=3x5", "--device=cpu", "--kernel=torch", "--training"]
    assert main(given) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  torch.add  add (training) on cpu:")
    assert lines[1].endswith(" with x float32, y float32, M=15")


CALLS = """\
calls:
  - {op: add, dtype: float32, shape: {x: [3, 5]}, kernel: torch}
  - op: rms_norm
    dtype: {x: bfloat16, weight: float32}
    shape: {x: [2, 8]}
    device: cpu
    kernel: reference
    training: true
    parameters: {eps: 1.0e-3}
"""


def test_a_file_lists_calls(tmp_path, capsys):
    file = tmp_path / "calls.yaml"
    file.write_text(CALLS, encoding="utf-8")
    assert main(["warmup", "--calls", str(file), "--device", "cpu", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [(call["phase"], call["kernel"]) for call in answer["calls"]] == [
        ("inference", "torch.add"),
        ("training", "reference.rms_norm"),
        ("backward", "reference.rms_norm"),
    ]
    assert answer["calls"][1]["request"]["dtypes"] == {"x": "bfloat16", "weight": "float32"}
    assert (answer["op"], answer["device"], answer["failed"]) == (None, "cpu", {})
    # whatever the process called first
    entries = runtime.caller("rms_norm").table.entries
    known = list(reversed(entries.items()))
    entries.clear()
    entries.update(known)
    main(["warmup", "--calls", str(file), "--device", "cpu", "--json"])
    again = json.loads(capsys.readouterr().out)
    assert [call["phase"] for call in again["calls"]] == ["inference", "training", "backward"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("calls:\n  - {op: ad, dtype: float32, shape: {}}", ":2: calls[0].op: unknown op 'ad'; did you mean 'add'?"),
        ("calls:\n  - {op: add, dtyp: float32, shape: {}}", ":2: calls[0].dtyp: unknown key; did you mean 'dtype'?"),
        ("calls:\n  - {op: add, dtype: x, shape: {x: [-1]}}", ":2: calls[0].shape.x[0]: found -1; input should be"),
        ("calls: []", ":1: calls: "),
        ("- add", ":1: holds"),
    ],
)
def test_a_file_that_lists_no_calls_is_refused_with_its_line(tmp_path, capsys, text, message):
    file = tmp_path / "calls.yaml"
    file.write_text(text, encoding="utf-8")
    assert main(["warmup", "--calls", str(file)]) == 2
    assert f"{file}{message}" in capsys.readouterr().err


def test_a_call_that_fails_does_not_stop_the_others_and_ends_with_1(tmp_path, capsys, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("PassManager::run failed")

    monkeypatch.setattr(ops, "add", fail, raising=False)
    file = tmp_path / "calls.yaml"
    file.write_text(CALLS, encoding="utf-8")
    assert main(["warmup", "--calls", str(file), "--device", "cpu"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 kinds of calls are warm after 2 runs in ")
    assert lines[-1].startswith("  failed add on cpu:")
    assert lines[-1].endswith(": RuntimeError: PassManager::run failed")


def test_a_listed_call_that_cannot_be_made_does_not_stop_the_others_and_ends_with_1(tmp_path, capsys):
    file = tmp_path / "calls.yaml"
    more = """\
  - {op: softmax, dtype: float32, shape: {x: [2, 8]}, device: abacus}
  - {op: softmax, dtype: float32, shape: {x: [2, 8]}, kernel: triton}
"""
    file.write_text(CALLS + more, encoding="utf-8")
    assert main(["warmup", "--calls", str(file), "--device", "cpu", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [call["kernel"] for call in answer["calls"]] == ["torch.add", "reference.rms_norm", "reference.rms_norm"]
    first, second = answer["failed"].values()
    assert first.startswith("unknown device 'abacus'; known: cpu")
    assert second.startswith("no kernel for op softmax on cpu:")
    assert main(["warmup", "softmax", "--dtype=float32", "--shape=x=2x8", "--device=cpu", "--kernel=triton"]) == 2
    assert "no kernel for op softmax on cpu:" in capsys.readouterr().err


def test_progress_is_told_and_processes_are_bounded(monkeypatch):
    told: list[dict[str, object]] = []
    bounds: list[object] = []
    monkeypatch.setattr(
        "portakernel.cli.progress.progress", lambda doing, total: nullcontext(lambda **how: told.append(how))
    )

    def compile_ahead(now: object, jobs: object, shown: object, workers: object) -> list[object]:
        bounds.append(workers)
        return []

    monkeypatch.setattr("portakernel.warming.rehearsal.compile_ahead", compile_ahead)
    monkeypatch.setattr("portakernel.warming.prepared_calls.serving_jobs", lambda *_: [("a job", None)])
    given = ["warmup", "add", "--dtype=float32", "--shape=x=3x5", "--device=cpu", "--kernel=torch", "--workers=3"]
    assert main(given) == 1
    assert bounds == [3]
    assert told == [{"description": "run 1"}, {"completed": 0, "total": 1}, {"description": "run 2"}]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_compiled_before_a_signal_is_shown(capsys, monkeypatch, number):
    jobs = [Job(f"triton.{op}", "nvidia:sm_90", op, (Phase.INFERENCE,), (), (), 132) for op in ("add", "softmax")]

    def compile_all(asked: list[Job], workers: int | None):
        yield Outcome("triton.add", "nvidia:sm_90", str(asked[0]))
        yield Outcome("triton.softmax", "nvidia:sm_90", str(asked[1]), error="no")
        signal.raise_signal(number)

    monkeypatch.setattr("portakernel.warming.ahead.lacking", lambda now, asked: jobs)
    monkeypatch.setattr("portakernel.warming.ahead.WORTH_WORKERS", 1)
    monkeypatch.setattr("portakernel.warming.ahead.compile_all", compile_all)
    monkeypatch.setattr("portakernel.warming.prepared_calls.serving_jobs", lambda *_: [(jobs[0], None)])
    given = ["warmup", "add", "--dtype=float32", "--shape=x=3x5", "--device=cpu", "--kernel=torch"]
    before = signal.getsignal(number)
    assert main([*given, "--json"]) == 130
    answer = json.loads(capsys.readouterr().out)
    assert answer.pop("seconds") >= 0
    assert answer == {
        "op": "add",
        "device": None,
        "calls": [],
        "built": [],
        "declined": {},
        "ahead": [str(jobs[0])],
        "compiled": [],
        "failed": {str(jobs[1]): "no"},
        "runs": 0,
        "settled": False,
        "interrupted": True,
    }
    assert signal.getsignal(number) is before
    assert main(given) == 130
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("Interrupted after ")
    assert first.endswith(" s; this is what was built and compiled until then.")
    assert rest == [f"  compiled ahead {jobs[0]}", f"  failed {jobs[1]}: no"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "warmup: give an op, or with --calls a file that lists calls"),
        (["add", "--calls", "f.yaml"], "warmup: f.yaml lists whole calls: beside it --device, --workers and --json"),
        (["--training", "--calls", "f.yaml"], "warmup: f.yaml lists whole calls"),
        (["--calls", "f.yaml"], "f.yaml: cannot be read: No such file or directory"),
        (["rms_norm", "--dtype", "float32"], 'rms_norm: give the shape of x: shape={"x": (A, B)}, or --shape x=AxB'),
        (["rms_norm", "--shape", "x=2x8"], 'rms_norm: give the dtype of x: dtype={"x": DTYPE}, or --dtype x=DTYPE'),
        (["nothing"], "unknown op 'nothing'"),
        (["rms_norm", "--device", "abacus"], "unknown device 'abacus'"),
    ],
)
def test_what_does_not_make_a_call_is_refused(capsys, given, message):
    assert main(["warmup", *given]) == 2
    assert message in capsys.readouterr().err


def test_the_example_fits_the_op():
    shapes = {"x": (2, 3, 8), "bias": (8,)}
    dtypes = {"x": "bfloat16", "weight": "float32"}
    request = ask(contract("layer_norm"), Target("cpu", "x86_64"), dtypes=dtypes | {"bias": "float32"}, shapes=shapes)
    found = described(request, shapes, "cpu", training=True)
    assert {name: (tuple(t.shape), t.dtype, t.requires_grad) for name, t in found.items()} == {
        "x": ((2, 3, 8), torch.bfloat16, True),
        "weight": ((8,), torch.float32, True),
        "bias": ((8,), torch.float32, True),
    }
