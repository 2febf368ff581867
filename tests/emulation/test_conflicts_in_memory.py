"""A load of what another wave stores in the same stretch between barriers is a fault where its value is used."""

# ruff: noqa: N803
import pytest

pytest.importorskip("tinygrad")
triton = pytest.importorskip("triton")
import torch
import triton.language as tl
from cxx import HAS_CXX
from emulated_kernels import ARCHS, compiled, wave_size

from portakernel.emulation import Kind, emulate

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]


# Fewer elements than work items: each wave loads all of them, and the first alone stores.
@triton.jit
def double_in_place(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


# What a wave stores is what another one loads.
@triton.jit
def turn_round(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + n - 1 - at, tl.load(x + at))


@triton.jit
def address_after_store(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, at)
    tl.store(out + tl.load(x + n - 1 - at), at)


@triton.jit
def branch_after_store(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, at)
    if tl.load(x) < n:
        tl.store(out + at, at)


def run(kernel, types, block, arch, given):
    code, shared = compiled(kernel, types, (("BLOCK", block),), arch)
    size = (4 * wave_size(arch),)
    return emulate(code, kernel.__name__, (1,), size, [*given, None, None], arch, dynamic_lds=shared)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_loaded_value_that_nothing_uses_may_be_old_or_new(arch):
    x = torch.arange(1, 17, dtype=torch.float32)
    ran = run(double_in_place, ("*fp32", "i32"), 16, arch, [x, 16])
    assert ran.clean, ran.findings
    assert x.tolist() == [2.0 * at for at in range(1, 17)]


@pytest.mark.parametrize("arch", ARCHS)
def test_a_store_of_it_is_told_with_the_load_and_the_other_waves_store(arch):
    block = 4 * wave_size(arch)
    ran = run(turn_round, ("*fp32", "i32"), block, arch, [torch.arange(block, dtype=torch.float32), block])
    conflict = next(one for one in ran.findings if one.kind is Kind.CONFLICT and "load" in one.instruction)
    assert "_store_" in conflict.other_text
    assert conflict.wave > conflict.other_wave
    (use,) = [one for one in ran.findings if one.kind is Kind.UNINITIALISED_REGISTER]
    assert use.other_text == conflict.text
    assert str(use).startswith(
        "an address, a stored value or a branch comes from a register nobody wrote, or from a load that conflicts with "
        f"a store of wave {use.other_wave} ({conflict.text}): {use.text}"
    )


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kernel", [address_after_store, branch_after_store], ids=lambda kernel: kernel.__name__)
def test_an_address_or_a_branch_from_it_is_told(arch, kernel):
    block = 4 * wave_size(arch)
    given = [torch.zeros(block, dtype=torch.int32), torch.zeros(block, dtype=torch.int32), block]
    kinds = {one.kind for one in run(kernel, ("*i32", "*i32", "i32"), block, arch, given).findings}
    assert {Kind.CONFLICT, Kind.UNINITIALISED_REGISTER} <= kinds
