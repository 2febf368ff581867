"""Triton kernels in packages of AOTInductor, which processes without portakernel load."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from portakernel import ops
from portakernel.deciding.policies import make_layer
from portakernel.runtime import dispatcher

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton compiles for a GPU, and there is none"),
    pytest.mark.filterwarnings("error::portakernel.errors.PackagedCallWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]
LOAD = """\
import sys, torch
x, weight, y = torch.load("numbers.pt")
torch.testing.assert_close(torch._inductor.aoti_load_package("program.pt2")(x, weight), y)
assert not any(name.startswith("portakernel") for name in sys.modules)
"""


class Plain(torch.nn.Module):
    def forward(self, x, weight):
        return functional.silu(x) * weight


class Ours(torch.nn.Module):
    def forward(self, x, weight):
        return ops.gelu_and_mul(ops.rms_norm(x, weight))


@pytest.fixture
def _by_kernels():
    dispatcher().set_process_layer(make_layer("set_policy", prefer="triton", compiled="kernel"))
    yield
    dispatcher().set_process_layer(None)


def loaded(program: torch.nn.Module, folder) -> subprocess.CompletedProcess[str]:
    """What became of a fresh process that loaded the program's package, and compared its result with the eager one."""
    x, weight = torch.randn(32, 512, device="cuda"), torch.randn(512, device="cuda")
    with torch.no_grad():
        exported = torch.export.export(program, (x, weight))
        torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "program.pt2"))
    torch.save((x, weight, program(x, weight)), folder / "numbers.pt")
    return subprocess.run([sys.executable, "-c", LOAD], cwd=folder, check=False, capture_output=True, text=True)


@pytest.mark.usefixtures("_by_kernels")
def test_a_package_launches_them_without_portakernel(tmp_path):
    done = loaded(Ours(), tmp_path)
    if done.returncode < 0 and loaded(Plain(), tmp_path).returncode < 0:
        pytest.skip("here PyTorch's own packages end the process that loads them")
    assert done.returncode == 0, done.stderr
