"""Which kinds of calls a program makes: counted without what tensors hold, in blocks, threads and processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.autograd import forward_ad

import portakernel
from portakernel import ops
from portakernel.calling import observers
from portakernel.cli.calls_file import load_calls
from portakernel.cli.plan.call_requests import requests_of
from portakernel.errors import ArgumentTypeError, ArgumentValueError, NoKernelError
from portakernel.host import recording_file
from portakernel.plan.export import make_plan
from portakernel.plan.plan import Place
from portakernel.plan.writing import write_plan
from portakernel.runtime import dispatcher
from portakernel.tensors.units import units_of_cpu
from portakernel.tuning.choices import Choice
from portakernel.tuning.key import Kind

PROGRAM = """
import subprocess, sys, threading, torch
from portakernel import ops
x, weight = torch.randn(4, 64), torch.ones(64)
for _ in range(3):
    ops.rms_norm(x, weight)
thread = threading.Thread(target=lambda: ops.softmax(x))
thread.start()
thread.join()
ops.rms_norm(x.requires_grad_(), weight, eps=1e-3).sum().backward()
if len(sys.argv) > 1:
    subprocess.run([sys.executable, "-c", sys.argv[1], ], check=False)
sys.exit(3)
"""


def counted(path: Path) -> Mapping[str, int]:
    """How often each kind of call is in a file."""
    entries: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))["calls"]
    found = {}
    for entry in entries:
        count = entry.pop("count")
        found[
            " ".join(
                [entry["op"], str(entry["shape"]), *(str(entry[k]) for k in ("parameters", "training") if k in entry)]
            )
        ] = count
    return found


X, BOTH = "{'x': [4, 64]}", "{'x': [4, 64], 'weight': [64]}"


def test_a_block_s_calls_are_counted_by_kind(tmp_path):
    x, weight = torch.randn(4, 64), torch.ones(64)
    ops.softmax(x)  # before the block
    with portakernel.record(tmp_path / "calls.yaml"):
        for _ in range(3):
            ops.rms_norm(x, weight)
        ops.rms_norm(x.clone().requires_grad_(), weight, eps=1e-3).sum().backward()
        torch.ops.portakernel.softmax(x)
    ops.softmax(x)
    assert counted(tmp_path / "calls.yaml") == {
        f"rms_norm {BOTH}": 3, f"rms_norm {BOTH} {{'eps': 0.001}} True": 1, f"softmax {X}": 1,
    }  # fmt: skip
    text = (tmp_path / "calls.yaml").read_text(encoding="utf-8")
    assert "dtype: {x: float32, weight: float32}" in text
    assert [path.name for path in tmp_path.iterdir()] == ["calls.yaml"]
    calls = load_calls(tmp_path / "calls.yaml")
    assert [(call.op, call.count, call.training) for call in calls] == [
        ("rms_norm", 3, False), ("rms_norm", 1, True), ("softmax", 1, False),
    ]  # fmt: skip
    assert dict(calls[1].parameters) == {"eps": 0.001}


def test_a_block_without_calls_leaves_an_earlier_file_and_one_that_raises_keeps_its_calls(tmp_path):
    path = tmp_path / "calls.yaml"
    path.write_text("an earlier one")
    with portakernel.record(path):
        pass
    assert path.read_text() == "an earlier one"

    def one_call_and_an_error() -> None:
        with portakernel.record(path):
            ops.softmax(torch.randn(4, 64))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        one_call_and_an_error()
    assert counted(path) == {f"softmax {X}": 1}


def test_a_block_s_file_may_be_a_link_which_stays(tmp_path):
    (tmp_path / "real.yaml").write_text("an earlier one")
    (tmp_path / "calls.yaml").symlink_to("real.yaml")
    with portakernel.record(tmp_path / "calls.yaml"):
        ops.softmax(torch.randn(4, 64))
    assert (tmp_path / "calls.yaml").is_symlink()
    assert counted(tmp_path / "real.yaml") == {f"softmax {X}": 1}


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own compiler, once
def test_calls_with_tangents_are_of_a_phase_of_their_own_which_a_locked_plan_covers(tmp_path):
    x, weight = torch.randn(4, 64), torch.ones(64)

    def calls() -> None:
        torch.func.jvp(lambda x: ops.rms_norm(x, weight), (x,), (x,))
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, x)
            ops.softmax(dual)
            assert portakernel.explain("softmax", dual).request.phase == "forward_ad"

    path = tmp_path / "calls.yaml"
    with portakernel.record(path):
        calls()
    listed = load_calls(path)
    assert [(call.op, call.forward_ad, call.training) for call in listed] == [
        ("rms_norm", True, False), ("softmax", True, False),
    ]  # fmt: skip
    now, device = dispatcher(), dispatcher().registry.device("cpu")
    place = Place(str(device.target), units_of_cpu())

    def follow(*several: portakernel.Call) -> None:
        asked = [requests_of(call, device.target, device)[0] for call in several]
        kinds = [Kind.of(request, now.registry.for_op(request.op)) for request in asked]
        choices = [Choice(f"reference.{kind.op}", kind, {}, "") for kind in kinds]
        write_plan(make_plan({place: choices}, now.registry, lock="everything"), tmp_path / "p.yaml")
        portakernel.load_plan(tmp_path / "p.yaml")

    try:
        follow(*listed)
        calls()
        # what a graph dissolves no plan speaks of
        torch.compile(lambda x: torch.func.jvp(ops.silu_and_mul, (x,), (x,))[1], backend="aot_eager")(x)
        follow(listed[0])
        with pytest.raises(NoKernelError, match=r"p\.yaml is locked"):
            calls()
    finally:
        portakernel.load_plan(None)
    assert [str(call.request.phase) for call in portakernel.warmup(listed).calls] == ["forward_ad"] * 2


def test_what_is_there_is_added_to_and_what_is_no_recording_refused(tmp_path):
    """The folder is that in which the program was started, wherever it goes; no lock stays."""
    (tmp_path / "elsewhere").mkdir()
    program = "import os, torch, portakernel\nos.chdir('elsewhere')\n"
    program += "from portakernel import ops\nops.softmax(torch.randn(4, 64))"
    command = [sys.executable, "-c", program]

    def ran() -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PORTAKERNEL_RECORD": "calls.yaml"}
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)

    file = tmp_path / "calls.yaml"
    file.write_text("calls:\n  - {op: softmax, dtype: {x: float32}, shape: {x: [4, 64]}, count: 6}\n")
    assert ran().stderr == ""
    assert counted(file) == {f"softmax {X}": 7}
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["calls.yaml", "elsewhere"]
    file.write_text("calls: [")
    found = ran()
    assert found.returncode == 1
    assert "ConfigError: PORTAKERNEL_RECORD: " in found.stderr
    assert "calls.yaml is no YAML (while parsing" in found.stderr
    assert file.read_text() == "calls: ["


@pytest.mark.parametrize(
    "text", ["calls: [", "services: {}", "- 1", "calls: [{shape: {}}]", "calls: [{op: add, count: x}]"]
)
def test_what_becomes_no_recording_meanwhile_stays(tmp_path, text):
    path = tmp_path / "calls.yaml"
    path.write_text(text)
    with pytest.raises(ArgumentValueError, match="a recording adds to what is there"):
        recording_file.add(path, {"{op: add}": 1}, ())
    assert path.read_text() == text
    assert os.listdir(tmp_path) == ["calls.yaml"]


def test_a_program_is_recorded_in_all_its_threads_and_processes_and_its_status_is_kept(tmp_path, forked_interpreter):
    file = tmp_path / "calls.yaml"
    python = forked_interpreter()
    command = [python, "-m", "portakernel", "record", "-o", file, "--", python, "-c", PROGRAM, PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert done.stdout.split() == f"3 kinds of 10 calls are in {file}".split()
    assert counted(file) == {
        f"rms_norm {BOTH}": 6, f"rms_norm {BOTH} {{'eps': 0.001}} True": 2, f"softmax {X}": 2,
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["calls.yaml"]


def test_how_tensors_lie_is_recorded_by_facts_and_strides(tmp_path):
    wide, weight = torch.randn(8, 128), torch.ones(64)
    with portakernel.record(tmp_path / "calls.yaml"):
        ops.rms_norm(wide[:, :64], weight)
        ops.softmax(torch.randn(65)[1:].view(1, 64))
        ops.softmax(torch.randn(64, 4).t())
        ops.softmax(torch.randn(4, 128)[:1, :64])  # one row has no pitch
    entries = yaml.safe_load((tmp_path / "calls.yaml").read_text(encoding="utf-8"))["calls"]
    assert [(entry["op"], entry.get("layout"), entry.get("strides")) for entry in entries] == [
        ("rms_norm", {"x.contiguous": False}, {"x": [128, 1]}),
        ("softmax", {"x.alignment": 4}, None),
        ("softmax", None, None),
        ("softmax", {"x.contiguous": False, "x.stride_last": 4}, {"x": [1, 4]}),
    ]
    calls = load_calls(tmp_path / "calls.yaml")
    assert [str(call.memory) for call in calls] == ["x strides 128×1", "x alignment 4", "", "x strides 1×4"]


IN_GRAPHS_AND_HANDLES = """
import torch, portakernel
from portakernel import ops
x, weight = torch.randn(4, 64), torch.ones(64)
portakernel.set_policy(compiled="call")
function = torch.compile(lambda x: ops.softmax(x) + 1, fullgraph=True, backend="aot_eager")
for _ in range(3):
    function(x)
norm = portakernel.bind("rms_norm", x, weight, eps=1e-3)
assert norm.kernel and norm.__name__ == "bound rms_norm"
for rows in (1, 2, 2):
    norm(x[:rows], weight)
with torch.autocast("cpu", dtype=torch.bfloat16):
    ops.linear_act(x, torch.ones(8, 64))
q = torch.randn(1, 8, 2, 16, requires_grad=True)
ops.attention(q, q, q).sum().backward()
"""


def test_what_graphs_call_and_what_handles_serve_is_counted_as_it_reaches_a_kernel(
    tmp_path, python, imported_to_compile
):
    file = tmp_path / "calls.yaml"
    environment = {**os.environ, "PORTAKERNEL_RECORD": str(file)}
    ran = python("-c", IN_GRAPHS_AND_HANDLES, cwd=tmp_path, env=environment, imports=imported_to_compile)
    assert ran.returncode == 0, ran.stderr
    found = counted(file)
    q = "'q': [1, 8, 2, 16], 'k': [1, 8, 2, 16], 'v': [1, 8, 2, 16]"
    eps = "{'eps': 0.001}"
    assert found == {
        f"softmax {X}": 3,
        f"rms_norm {BOTH} {eps}": 1,  # the example
        f"rms_norm {{'x': [1, 64], 'weight': [64]}} {eps}": 1,
        f"rms_norm {{'x': [2, 64], 'weight': [64]}} {eps}": 2,
        "linear_act {'x': [4, 64], 'weight': [8, 64]}": 1,
        f"attention {{{q}}} True": 1,
    }
    text = file.read_text(encoding="utf-8")
    assert "op: linear_act, dtype: {x: bfloat16, weight: bfloat16}" in text
    assert "traced: [softmax]" in text
    assert len(load_calls(file)) == 6


def test_a_block_sees_handles_and_kernels_whose_gradient_torch_records(tmp_path):
    x, weight = torch.randn(4, 64), torch.ones(64)
    norm = portakernel.bind("rms_norm", x, weight)
    q = torch.randn(1, 8, 2, 16, requires_grad=True)
    with portakernel.record(tmp_path / "calls.yaml"):
        assert torch.equal(norm(x, weight), norm(x, weight))
        out = torch.empty_like(x)
        norm(x, weight, out=out)
        portakernel.bind("softmax", x)
        ops.attention(q, q, q).sum().backward()
    norm(x, weight)
    assert counted(tmp_path / "calls.yaml") == {
        f"rms_norm {BOTH}": 3,
        f"softmax {X}": 1,
        "attention {'q': [1, 8, 2, 16], 'k': [1, 8, 2, 16], 'v': [1, 8, 2, 16]} True": 1,
    }


def test_nobody_hears_of_calls_when_nothing_is_recorded():
    x, weight = torch.randn(4, 64), torch.ones(64)
    assert observers.of_process() is None
    assert not hasattr(ops.rms_norm, "__wrapped__")
    assert not hasattr(portakernel.bind("rms_norm", x, weight), "__wrapped__")


@pytest.mark.parametrize("path", [None, 3, b"calls.yaml"])
def test_what_is_no_path_is_refused_before_the_block(path):
    with pytest.raises(ArgumentTypeError, match=r"record takes the path of the file to write, such as 'service.yaml'"):
        portakernel.record(path)


def test_a_file_that_cannot_be_is_refused_before_the_block(tmp_path):
    with pytest.raises(ArgumentValueError, match="is a folder; give the file to write"):
        portakernel.record(tmp_path)
    with pytest.raises(ArgumentValueError, match="cannot be written: there is no folder"):
        portakernel.record(tmp_path / "gone" / "calls.yaml")
