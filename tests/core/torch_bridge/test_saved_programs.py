"""Programs that one process saves and another one loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cxx import needs_cxx

import portakernel.runtime
from portakernel.deciding.policies import make_layer
from portakernel.errors import StaleGraphWarning, UnknownNameError

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


@pytest.fixture(scope="module")
def exported(python, imported_to_compile, tmp_path_factory) -> Path:
    """The folder of a program that was exported."""
    folder = tmp_path_factory.mktemp("exported")
    code = f"{MODULE}\ntorch.export.save(torch.export.export(Norm(), (x,)), 'program.pt2')"
    done = python("-c", code, cwd=folder, imports=imported_to_compile)
    assert done.returncode == 0, done.stderr
    return folder


def test_another_process_loads_an_exported_program(exported, python, imported_to_compile):
    done = python("-c", f"import torch; import portakernel\n{LOAD}", cwd=exported, imports=imported_to_compile)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("imports", ["import portakernel", "from portakernel import ops"])
def test_another_process_loads_an_exported_program_that_imports_torch_last(exported, imports):
    # not forked from one that has imported torch: which import comes first is what is tested
    command = [sys.executable, "-c", f"{imports}; import torch\n{LOAD}"]
    done = subprocess.run(command, cwd=exported, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PACKAGE = f"""\
import warnings
{MODULE}
import portakernel
from portakernel.errors import PackagedCallWarning

def package(program):
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(program, package_path="program.pt2")

program = torch.export.export(Norm(), (x,), dynamic_shapes={{"x": {{0: torch.export.Dim("b")}}}})
warnings.simplefilter("error", PackagedCallWarning)
"""
LOAD_PACKAGE = """\
import sys, torch
program = torch._inductor.aoti_load_package("program.pt2")
for rows in (4, 9):
    assert torch.allclose(program(torch.ones(rows, 8)), torch.full((rows, 8), 2.0))
assert not any(name.startswith("portakernel") for name in sys.modules)
"""


@needs_cxx
def test_a_package_runs_without_portakernel(python, imported_to_compile, tmp_path):
    done = python("-c", f"{PACKAGE}\npackage(program)", cwd=tmp_path, imports=imported_to_compile)
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-c", LOAD_PACKAGE]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_package_that_calls_an_op_is_said_to(python, imported_to_compile, tmp_path):
    code = f"{PACKAGE}\nportakernel.set_policy(compiled='call')\npackage(program)"
    done = python("-c", code, cwd=tmp_path, imports=imported_to_compile)
    assert "PackagedCallWarning: this package calls rms_norm by torch.rms_norm_cpu" in done.stderr


def test_another_process_loads_a_traced_program_once_an_op_was_looked_up(python, tmp_path):
    load = "import torch, portakernel; torch.ops.portakernel.add; torch.jit.load('program.pt')(torch.ones(4, 8))"
    for code in (f"{MODULE}\ntorch.jit.trace(Norm(), (x,)).save('program.pt')", load):
        done = python("-c", code, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_importing_registers_nothing_and_neither_does_asking_a_module_for_its_own(python):
    code = """\
import portakernel, torch
getattr(torch.ops.portakernel, "__wrapped__", None)
assert list(torch.ops.portakernel) == [] and "portakernel.deciding.dispatcher" not in __import__("sys").modules
assert portakernel.ops.rms_norm and torch.ops.portakernel.rms_norm.default
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_an_op_that_many_threads_look_up_first_is_there_for_each(python):
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
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


class Norm(torch.nn.Module):
    def __init__(self, kernel: str | None = None) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return portakernel.ops.rms_norm(x, weight, kernel=self.kernel)


def kernels_in(program: torch.export.ExportedProgram) -> list[str]:
    nodes = [node for node in program.graph.nodes if "portakernel" in str(node.target)]
    return [next((argument for argument in node.args if isinstance(argument, str)), "") for node in nodes]


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")  # torch's own code
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_leaves_the_choice_to_where_it_runs_until_it_is_decomposed(strict):
    arguments = (torch.randn(3, 8), torch.randn(8))
    program = torch.export.export(Norm(), arguments, strict=strict)
    assert kernels_in(program) == [""]
    assert kernels_in(program.run_decompositions()) == [portakernel.explain("rms_norm", *arguments).chosen.name]
    named = torch.export.export(Norm("reference"), arguments, strict=strict)
    assert kernels_in(named) == ["!reference"]
    torch.testing.assert_close(named.module()(*arguments), program.module()(*arguments))


def test_a_graph_of_another_policy_says_so_once_and_follows_the_one_in_force(ops, recwarn):
    x, weight, op = torch.randn(3, 4), torch.randn(4), ops.caller("rms_norm").torch_op()
    op(x, weight, 1e-6, 0.0, ops.dispatcher.trace_token)
    assert [str(w.message) for w in recwarn] == []
    text = (
        r"^rms_norm: this graph was traced under another policy or plan, or with other kernels than there are here and"
        r" now; the policy in force chooses\. Trace it again, or name a kernel in it:"
        r" ops\.rms_norm\(\.\.\., kernel=\.\.\.\)$"
    )
    stale = ops.dispatcher.trace_token
    ops.dispatcher.set_process_layer(make_layer("set_policy", use="torch"))
    with pytest.warns(StaleGraphWarning, match=text):
        op(x, weight, 1e-6, 0.0, stale)
    before = ops.served("rms_norm")
    op(x, weight, 1e-6, 0.0, stale)
    assert len([w for w in recwarn if w.category is StaleGraphWarning]) == 0
    assert ops.served("rms_norm").get("torch.rms_norm_cpu", 0) + ops.served("rms_norm").get("torch.rms_norm", 0) > sum(
        calls for kernel, calls in before.items() if kernel.startswith("torch.")
    )


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_graph_that_names_a_kernel_which_is_gone_says_so_once_and_the_policy_chooses(ops, recwarn, requires_grad):
    """As a program does that was decomposed where a plugin was installed, and runs where it was uninstalled."""
    x, weight, op = torch.randn(3, 4, requires_grad=requires_grad), torch.randn(4), ops.caller("rms_norm").torch_op()
    text = r"^rms_norm: this graph runs gone\.rms_norm, which is not installed here; the policy in force chooses$"
    with pytest.warns(StaleGraphWarning, match=text):
        found = op(x, weight, 1e-6, 0.0, "gone.rms_norm")
    again = op(x, weight, 1e-6, 0.0, "gone.rms_norm")
    assert [w for w in recwarn if w.category is StaleGraphWarning] == []
    torch.testing.assert_close(found, torch.nn.functional.rms_norm(x, (4,), weight, 1e-6))
    torch.testing.assert_close(again, found)


def test_a_graph_that_names_a_kernel_strictly_which_is_gone_is_an_error(ops):
    x, weight, op = torch.randn(3, 4), torch.randn(4), ops.caller("rms_norm").torch_op()
    with pytest.raises(UnknownNameError, match=r"^kernel: unknown kernel or plugin 'gone\.rms_norm'"):
        op(x, weight, 1e-6, 0.0, "!gone.rms_norm")
