"""Which of a kernel's instructions count as there, and as executed."""

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
from cxx import HAS_CXX
from emulated_kernels import ARCHS, add, compiled, softmax, wave_size

from portakernel.emulation import emulate
from portakernel.emulation.program import program

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]

# What stands behind the end of the code, and between instructions.
PADDING = frozenset({"s_code_end", "s_nop"})


@pytest.mark.parametrize("arch", ARCHS)
def test_a_kernel_without_branches_executes_all_that_is_there(arch):
    code, shared = compiled(add, ("*fp32", "*fp32", "*fp32", "i32"), (("BLOCK", 512),), arch)
    x, y, out = torch.randn(500), torch.randn(500), torch.zeros(500)
    given = [x, y, out, 500, None, None]
    ran = emulate(code, "add", (1,), (4 * wave_size(arch),), given, arch, dynamic_lds=shared)
    assert torch.equal(out, x + y)
    assert ran.present - PADDING == ran.executed.keys() - PADDING


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_what_loads_arguments_for_firmware_that_does_not_is_not_there(arch):
    code, _ = compiled(add, ("*fp32", "*fp32", "*fp32", "i32"), (("BLOCK", 512),), arch)
    made = program(code, arch)
    everything = {one.name for one in made.records}
    assert made.loaded.kernel("add").preload_words > 0
    assert "s_branch" in everything - made.names  # which jumps over the rest of its 256 bytes
    assert any(name.startswith("s_load_dword") for name in everything - made.names)


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_both_halves_of_a_dual_instruction_count_as_executed(arch):
    code, shared = compiled(softmax, ("*fp32", "*fp32", "i32"), (("BLOCK", 1024),), arch)
    x, out = torch.randn(4, 1000), torch.zeros(4, 1000)
    given = [x, out, 1000, None, None]
    ran = emulate(code, "softmax", (4,), (4 * wave_size(arch),), given, arch, dynamic_lds=shared)
    made = program(code, arch)
    names = [one.name for one in made.records]  # behind the code's own, those of second halves
    halves = set(names[made.flow_count :])
    assert halves
    # straight-line code: each of its instructions is executed once by each of 16 waves
    assert {name: ran.executed[name] for name in halves} == {name: 16 * names.count(name) for name in halves}
