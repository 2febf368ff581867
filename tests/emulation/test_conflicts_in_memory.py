"""A load of what another wave stores in the same stretch between barriers is a fault where its value is used."""

# ruff: noqa: N803
import functools
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
import triton
import triton.language as tl
from cxx import HAS_CXX
from emulated_hip import needs_hip
from emulated_kernels import ARCHS, compiled, wave_size

from portakernel.emulation import Kind, emulate
from portakernel.native.options import Options
from portakernel.native.source import Source
from portakernel.native.unit import build
from portakernel.words.target import Target

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


# The second use of one loaded value.
@triton.jit
def turn_round_twice(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, at)
    loaded = tl.load(x + n - 1 - at)
    tl.store(out + at, loaded)
    tl.store(out + n + at, loaded)


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
def test_each_use_of_it_names_the_conflict(arch):
    block = 4 * wave_size(arch)
    given = [torch.zeros(block, dtype=torch.int32), torch.zeros(2 * block, dtype=torch.int32), block]
    ran = run(turn_round_twice, ("*i32", "*i32", "i32"), block, arch, given)
    (conflict,) = [one for one in ran.findings if one.kind is Kind.CONFLICT and "load" in one.instruction]
    uses = [one for one in ran.findings if one.kind is Kind.UNINITIALISED_REGISTER]
    assert len(uses) == 2
    for use in uses:
        assert str(use).startswith(
            "an address, a stored value or a branch comes from a register nobody wrote, or from a load that conflicts "
            f"with a store of wave {conflict.other_wave} ({conflict.text}): {use.text}"
        )
        assert str(use).endswith(", 2 executions by waves in all")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kernel", [address_after_store, branch_after_store], ids=lambda kernel: kernel.__name__)
def test_an_address_or_a_branch_from_it_is_told(arch, kernel):
    block = 4 * wave_size(arch)
    given = [torch.zeros(block, dtype=torch.int32), torch.zeros(block, dtype=torch.int32), block]
    kinds = {one.kind for one in run(kernel, ("*i32", "*i32", "i32"), block, arch, given).findings}
    assert {Kind.CONFLICT, Kind.UNINITIALISED_REGISTER} <= kinds


# The lanes that store are those where a loaded value says so, without a branch.
MASKED = r"""
#include <hip/hip_runtime.h>
extern "C" __global__ void masked(int* x, int* out) {
  int t = threadIdx.x, loaded;
  x[t] = t + 1;
  asm volatile("global_load_dword %0, %1, off\n WAIT" : "=v"(loaded) : "v"(x) : "memory");
  asm volatile("v_cmp_lt_i32 VCC, 0, %0\n s_and_saveexec_BITS SAVED, VCC\n global_store_dword %1, %2, off\n"
               "s_mov_BITS EXEC, SAVED"
               :: "v"(loaded), "v"(out + t), "v"(t) : "vcc", "s40", "s41", "memory");
}
"""
WIDE = {"VCC": "vcc", "BITS": "b64", "SAVED": "s[40:41]", "EXEC": "exec"}
NARROW = {"VCC": "vcc_lo", "BITS": "b32", "SAVED": "s40", "EXEC": "exec_lo"}


@functools.cache
def masked(arch):
    text = MASKED.replace("WAIT", "s_wait_loadcnt 0" if arch == "gfx1201" else "s_waitcnt vmcnt(0)")
    for name, register in (WIDE if wave_size(arch) == 64 else NARROW).items():
        text = text.replace(name, register)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "masked.hip").write_text(text, encoding="ascii")
        return build(Source(Path(folder), "masked.hip"), Target("amd", arch), Options(), ("masked",)).code


@needs_hip
@pytest.mark.parametrize("arch", ARCHS)
def test_lanes_that_store_because_of_it_are_told(arch):
    size = 2 * wave_size(arch)
    given = [torch.zeros(size, dtype=torch.int32), torch.zeros(size, dtype=torch.int32)]
    findings = emulate(masked(arch), "masked", (1,), (size,), given, arch).findings
    assert {one.kind for one in findings} == {Kind.CONFLICT, Kind.UNINITIALISED_REGISTER}
    (use,) = [one for one in findings if one.kind is Kind.UNINITIALISED_REGISTER]
    assert "_store_" in use.instruction
    assert (use.wave, use.other_wave) == (1, 0)
    one_wave = emulate(masked(arch), "masked", (1,), (wave_size(arch),), given, arch)
    assert one_wave.clean


# What a branch decides that a raced value decided, in wave 1: the value is 1 there, and may be 0.
BRANCHES = r"""
#include <hip/hip_runtime.h>
#define BEGIN int t = threadIdx.x, loaded, y = t; x[t] = t + 1; \
  asm volatile("global_load_dword %0, %1, off\n WAIT" : "=v"(loaded) : "v"(x) : "memory");
#define SET(value) asm volatile("v_mov_b32 %0, " #value : "=v"(y));
extern "C" __global__ void entered(int* x, int* out) { BEGIN if (loaded > 0) SET(7) out[t] = y; }
extern "C" __global__ void passed_by(int* x, int* out) { BEGIN if (loaded < 1) SET(7) out[t] = y; }
extern "C" __global__ void one_or_other(int* x, int* out) { BEGIN if (loaded > 0) SET(7) else SET(8) out[t] = y; }
extern "C" __global__ void repeated(int* x, int* out) {
  BEGIN
  do asm volatile("v_add_f32 %0, %0, %0" : "+v"(y)); while (loaded-- > 0);
  out[t] = y;
}
extern "C" __global__ void stored_behind(int* x, int* out) { BEGIN if (loaded < 1) out[t] = y; }
extern "C" __global__ void waited_behind(int* x, int* out) { BEGIN if (loaded > 0) __builtin_amdgcn_s_barrier(); }
extern "C" __global__ void waited_not_behind(int* x, int* out) { BEGIN if (loaded < 1) __builtin_amdgcn_s_barrier(); }
extern "C" __global__ void masked_again(int* x, int* out) {
  BEGIN
  bool low = loaded < 1;
  if (loaded > 0) SET(7) else SET(8)
  if (low) out[t] = t;
}
extern "C" __global__ void of_no_use(int* x, int* out) {
  BEGIN
  if (loaded > 0) {
    if (loaded < 5) SET(1) else SET(2)
  } else {
    if (loaded < -5) SET(3)
  }
  while (loaded > 0) {
    if (loaded < 9) SET(4)
    asm volatile("v_sub_f32 %0, %0, %0" : "+v"(loaded));
  }
  asm volatile("" ::"v"(y));
  __syncthreads();
  if (t < 70) out[t] = t;
}
"""
AT_STORE = ("entered", "passed_by", "one_or_other", "repeated")
SOMEWHERE = ("stored_behind", "waited_behind", "waited_not_behind", "masked_again")


@functools.cache
def branches(arch):
    text = BRANCHES.replace("WAIT", "s_wait_loadcnt 0" if arch == "gfx1201" else "s_waitcnt vmcnt(0)")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "branches.hip").write_text(text, encoding="ascii")
        names = (*AT_STORE, *SOMEWHERE, "of_no_use")
        return build(Source(Path(folder), "branches.hip"), Target("amd", arch), Options(), names).code


def run_branches(arch, name, waves):
    size = waves * wave_size(arch)
    x, out = torch.zeros(size, dtype=torch.int32), torch.zeros(size, dtype=torch.int32)
    return emulate(branches(arch), name, (1,), (size,), [x, out], arch), out


@needs_hip
@pytest.mark.parametrize("name", AT_STORE)
@pytest.mark.parametrize("arch", ARCHS)
def test_a_store_of_what_a_branch_by_it_decided_is_told(arch, name):
    findings = run_branches(arch, name, 2)[0].findings
    assert {one.kind for one in findings} == {Kind.CONFLICT, Kind.UNINITIALISED_REGISTER}
    (use,) = [one for one in findings if one.kind is Kind.UNINITIALISED_REGISTER]
    assert "_store_" in use.instruction
    assert (use.wave, use.other_wave) == (1, 0)
    assert run_branches(arch, name, 1)[0].clean


@needs_hip
@pytest.mark.parametrize("name", SOMEWHERE)
@pytest.mark.parametrize("arch", ARCHS)
def test_a_store_or_a_barrier_behind_a_branch_by_it_is_told_whether_reached_or_not(arch, name):
    findings = run_branches(arch, name, 2)[0].findings
    assert {Kind.CONFLICT, Kind.UNINITIALISED_REGISTER} <= {one.kind for one in findings}
    use = next(one for one in findings if one.kind is Kind.UNINITIALISED_REGISTER)
    assert (use.wave, use.other_wave) == (1, 0)
    assert run_branches(arch, name, 1)[0].clean


@needs_hip
@pytest.mark.parametrize("arch", ARCHS)
def test_branches_by_it_that_decide_nothing_of_use_are_none(arch):
    ran, out = run_branches(arch, "of_no_use", 2)
    assert ran.clean, ran.findings
    assert out.tolist() == [at if at < 70 else 0 for at in range(len(out))]


# With fewer elements than work items, as above; the error function has a branch.
@triton.jit
def erf_in_place(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for first in range(0, n, BLOCK):
        inside = first + at < n
        value = tl.load(x + first + at, mask=inside)
        tl.store(x + first + at, tl.erf(value), mask=inside)


@triton.jit
def erf_turned_round(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + n - 1 - at, tl.erf(tl.load(x + at)))


@pytest.mark.parametrize("arch", ARCHS)
def test_stores_that_no_lane_of_a_wave_does_ask_nothing_of_branches_before_them(arch):
    x = torch.linspace(-3, 3, 40)
    expected = torch.erf(x)
    ran = run(erf_in_place, ("*fp32", "i32"), 16, arch, [x, 40])
    assert ran.clean, ran.findings
    torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_store_of_what_a_branch_in_a_function_made_of_it_is_told(arch):
    block = 4 * wave_size(arch)
    ran = run(erf_turned_round, ("*fp32", "i32"), block, arch, [torch.linspace(-3, 3, block), block])
    uses = [one for one in ran.findings if one.kind is Kind.UNINITIALISED_REGISTER]
    assert uses
    assert all("_store_" in one.instruction and one.wave > one.other_wave for one in uses)
