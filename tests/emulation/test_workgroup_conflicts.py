"""Workgroups that touch what others write: which of them comes first nobody knows."""

# ruff: noqa: N803
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
import triton
import triton.language as tl
from cxx import HAS_CXX
from emulated_kernels import ARCHS, compiled, wave_size

from portakernel.emulation import Kind, Run, emulate

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]
BLOCK = 256


@triton.jit
def shifted_in_place(x, out, shift, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at + shift))


@triton.jit
def numbered(x, out, shift, BLOCK: tl.constexpr):
    at = tl.program_id(0) * shift + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) + tl.program_id(0))


@triton.jit
def counted(x, out, shift, BLOCK: tl.constexpr):
    at = tl.program_id(0) * shift + tl.arange(0, BLOCK)
    tl.atomic_add(out + at, tl.load(x + at))


def run(kernel, arch, x, out, shift, *, groups=4, threads=1) -> Run:
    kind = {torch.float32: "fp32", torch.uint8: "u8"}[x.dtype]
    code, shared = compiled(kernel, (f"*{kind}", f"*{kind}", "i32"), (("BLOCK", BLOCK),), arch)
    arguments = [x, out, shift, None, None]
    block = (4 * wave_size(arch),)
    return emulate(
        code,
        kernel.__name__,
        (groups,),
        block,
        arguments,
        arch,
        names=("x", "out"),
        dynamic_lds=shared,
        threads=threads,
    )


def groups_of(ran: Run) -> set[tuple[int, int]]:
    assert {one.kind for one in ran.findings} == {Kind.GROUP_CONFLICT}
    return {(one.workgroup[0], one.other_workgroup[0]) for one in ran.findings}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("threads", [1, 4])
def test_results_in_the_place_of_what_another_workgroup_reads_are_a_conflict(arch, threads):
    x = torch.arange(5 * BLOCK, dtype=torch.float32)
    ran = run(shifted_in_place, arch, x, x, BLOCK, threads=threads)
    assert all(abs(a - b) == 1 for a, b in groups_of(ran))
    if threads == 1:  # whose workgroups go in turns
        line = "touched by another workgroup too, (0, 0, 0), and nothing orders them"
        assert line in str(next(one for one in ran.findings if one.workgroup == (1, 0, 0)))
    assert run(shifted_in_place, arch, x, torch.empty_like(x), BLOCK, threads=threads).clean
    assert run(shifted_in_place, arch, x, x, 0, threads=threads).clean


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize("shift", [BLOCK - 1, BLOCK - 3, 1])
def test_different_values_in_one_place_are_a_conflict(dtype, shift):
    x = torch.zeros(4 * BLOCK, dtype=dtype)
    assert all(a > b for a, b in groups_of(run(numbered, "gfx942", x, torch.empty_like(x), shift)))


@pytest.mark.parametrize("shift", [BLOCK, BLOCK + 1, BLOCK + 3])
def test_neighbours_in_one_dword_are_none(shift):
    x = torch.zeros(5 * BLOCK, dtype=torch.uint8)
    for threads in (1, 4):
        assert run(numbered, "gfx942", x, torch.empty_like(x), shift, threads=threads).clean


@pytest.mark.parametrize("threads", [1, 4])
def test_the_same_values_in_one_place_are_none(threads):
    x = torch.randn(BLOCK)
    for _ in range(20):
        assert run(shifted_in_place, "gfx1100", x.repeat(5), torch.empty(2 * BLOCK), 0, groups=2, threads=threads).clean


def test_atomics_may_order_workgroups():
    x, out = torch.ones(4 * BLOCK), torch.zeros(4 * BLOCK)
    assert run(counted, "gfx942", x, out, 1).clean
    assert out[:BLOCK].sum() > BLOCK
