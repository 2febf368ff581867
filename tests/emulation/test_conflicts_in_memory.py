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
