"""A workload is recorded, a plan is locked for the recording, and the same workload runs under that plan."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

LAYOUTS = """
import torch
from portakernel import ops
wide, weight = torch.randn(8, 128), torch.ones(64)
ops.rms_norm(wide[:, :64], weight)
ops.rms_norm(torch.randn(64, 8).t(), weight)
ops.softmax(torch.randn(129)[1:].view(2, 64))
ops.softmax(torch.randn(4, 6, 8)[:, :3])
ops.rms_norm(wide.requires_grad_()[:, 64:], weight).sum().backward()
ops.layer_norm(wide[:, 64:], weight, torch.zeros(64)).sum().backward()
sum(t.sum() for t in ops.add_rms_norm(wide[:, 64:], wide[:, :64], weight)).backward()
"""

GRAPHS = """
import torch, portakernel
from portakernel import ops
portakernel.set_policy(compiled="call")
def compiled(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")  # else what is refused runs without
wide, weight = torch.randn(8, 128), torch.ones(64)
norm = compiled(lambda x, weight: ops.rms_norm(x * 2, weight) + 1)
norm(wide[:, :64], weight)
compiled(lambda x, weight: ops.rms_norm(x, weight) + 1)(wide[:, :64], weight)
compiled(lambda x: ops.softmax(x) + 1)(torch.randn(129)[1:].view(2, 64))
x = torch.randn(4, 64, requires_grad=True)
compiled(lambda x, weight: ops.rms_norm(x, weight).sum())(x, weight).backward()
compiled(lambda x: ops.silu_and_mul(x).sum())(x).backward()
several = torch.compile(lambda x: ops.softmax(x * 2) + 1, fullgraph=True, backend="aot_eager", dynamic=True)
for rows in (4, 7, 9):
    several(torch.randn(rows, 32))
portakernel.set_policy(compiled="inline")
compiled(lambda x, weight: ops.rms_norm(x + 3, weight))(torch.randn(5, 48), torch.ones(48))
"""
HANDLES = """
import torch, portakernel
from portakernel import ops
wide, weight = torch.randn(8, 128), torch.ones(64)
norm = portakernel.bind("rms_norm", wide[:, :64], weight)
for rows in (1, 3, 8):
    norm(wide[:rows, :64], weight)
handle = portakernel.bind("softmax", torch.randn(4, 64))
torch.compile(lambda x: handle(x * 2) + 1, backend="aot_eager")(torch.randn(4, 64))
"""


@pytest.fixture
def interpreter(forked_interpreter: Callable[..., Path], imported_to_compile: tuple[str, ...]) -> Path:
    """What stands for Python, and has imported what compiles."""
    return forked_interpreter(imported_to_compile)


@pytest.fixture
def portakernel(interpreter: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command, or a program, in a folder."""

    def run(*words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [interpreter, *words] if words[0] == "-c" else [interpreter, "-m", "portakernel", *words]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PORTAKERNEL_")}
        environment |= {"PORTAKERNEL_TUNING": "off", **variables}
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)

    return run


@pytest.mark.parametrize("program", [LAYOUTS, GRAPHS, HANDLES], ids=["layouts", "graphs", "handles"])
def test_a_plan_that_is_locked_for_a_recording_covers_what_was_recorded(portakernel, interpreter, tmp_path, program):
    recorded = portakernel("record", "-o", "calls.yaml", "--", str(interpreter), "-c", program, folder=tmp_path)
    assert recorded.returncode == 0, recorded.stderr
    locked = portakernel("plan", "lock", "plan.yaml", "--calls", "calls.yaml", folder=tmp_path)
    assert locked.returncode == 0, locked.stderr
    ran = portakernel("-c", program, folder=tmp_path, PORTAKERNEL_PLAN="plan.yaml")
    assert ran.returncode == 0, ran.stderr


IN_A_GRAPH = """
import torch, portakernel
from portakernel import ops
portakernel.set_policy(compiled="call")
function = torch.compile(lambda x: ops.softmax(x * 2) + 1, fullgraph=True, backend="aot_eager")
function(torch.randn(4, 64))
print([(used.kernel, used.calls) for used in portakernel.stats()])
"""


def test_what_a_graph_calls_a_plan_decides_when_it_runs_and_a_locked_one_has_to_cover_it(portakernel, tmp_path):
    calls = "calls:\n  - {op: softmax, dtype: float32, shape: {x: [ROWS, 64]}}\n"
    (tmp_path / "calls.yaml").write_text(calls.replace("ROWS", "4"))
    (tmp_path / "other.yaml").write_text(calls.replace("ROWS", "5"))
    for name in ("calls", "other"):
        words = ("plan", "lock", f"{name}.plan", "--calls", f"{name}.yaml")
        locked = portakernel(*words, folder=tmp_path, PORTAKERNEL_USE="reference")
        assert locked.returncode == 0, locked.stderr
    ran = portakernel("-c", IN_A_GRAPH, folder=tmp_path, PORTAKERNEL_PLAN="calls.plan")
    assert ran.stdout == "[('reference.softmax', 1)]\n", ran.stderr
    ran = portakernel("-c", IN_A_GRAPH, folder=tmp_path, PORTAKERNEL_PLAN="other.plan")
    assert ran.returncode == 1
    assert "other.plan is locked, and has no entry for such calls; the nearest is other.plan:" in ran.stderr
    assert "M 4 is not 5" in ran.stderr
    preferred = {"PORTAKERNEL_PLAN": "other.plan", "PORTAKERNEL_PREFER": "torch.softmax_cpu"}
    ran = portakernel("-c", IN_A_GRAPH, folder=tmp_path, **preferred)
    assert ran.stdout == "[('torch.softmax_cpu', 1)]\n", ran.stderr
