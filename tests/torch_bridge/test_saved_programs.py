"""Programs that one process saves and another one loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """\
import torch
from portakernel import ops

class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((8,), 2.0))

    def forward(self, x):
        return ops.rms_norm(x, self.weight)

x = torch.ones(4, 8)
"""
LOAD = """\
program = torch.export.load("program.pt2").module()
assert torch.allclose(program(torch.ones(4, 8)), torch.full((4, 8), 2.0))
assert not hasattr(torch.ops.portakernel, "no_such_op")
assert type(torch.ops.portakernel) is type(torch.ops.aten)
"""


def run_python(code: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "imports",
    [
        "import torch; import portakernel",
        "import portakernel; import torch",
        "from portakernel import ops; import torch",
    ],
)
def test_another_process_loads_an_exported_program(tmp_path, imports):
    run_python(f"{MODULE}\ntorch.export.save(torch.export.export(Norm(), (x,)), 'program.pt2')", tmp_path)
    run_python(f"{imports}\n{LOAD}", tmp_path)


def test_another_process_loads_a_traced_program_once_an_op_was_looked_up(tmp_path):
    run_python(f"{MODULE}\ntorch.jit.trace(Norm(), (x,)).save('program.pt')", tmp_path)
    run_python(
        "import torch, portakernel; torch.ops.portakernel.add; torch.jit.load('program.pt')(torch.ones(4, 8))", tmp_path
    )


def test_importing_registers_nothing_and_neither_does_asking_a_module_for_its_own():
    code = """\
import portakernel, torch
getattr(torch.ops.portakernel, "__wrapped__", None)
assert list(torch.ops.portakernel) == [] and "portakernel.dispatch" not in __import__("sys").modules
assert portakernel.ops.rms_norm and torch.ops.portakernel.rms_norm.default
"""
    run_python(code, Path.cwd())


def test_an_op_that_many_threads_look_up_first_is_there_for_each():
    code = """\
import threading, torch, portakernel
barrier, found = threading.Barrier(8), []
def look():
    barrier.wait()
    found.append(torch.ops.portakernel.rms_norm.default)
threads = [threading.Thread(target=look) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(found) == 8, found
"""
    run_python(code, Path.cwd())
