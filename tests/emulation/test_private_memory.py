"""Private memory gives what was stored there: what nobody wrote stays so, and is named where it is used."""

import numpy as np
import pytest
from cxx import HAS_CXX
from emulated_hip import needs_hip
from single_instruction import needs_clang, run_single

pytest.importorskip("tinygrad")
import functools
import tempfile
from pathlib import Path

import torch

from portakernel.emulation import Kind, emulate
from portakernel.native.options import Options
from portakernel.native.source import Source
from portakernel.native.unit import build
from portakernel.words.target import Target

pytestmark = [needs_clang, pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine")]
ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")


def spelled(arch, *lines):
    """Lines in the words of CDNA, for an architecture."""
    if arch.startswith("gfx9"):
        return list(lines)
    renamed = [line.replace("dwordx2", "b64").replace("dword", "b32").replace("short", "b16") for line in lines]
    waited = "s_wait_loadcnt 0" if arch == "gfx1201" else "s_waitcnt vmcnt(0)"
    return [line.replace("s_waitcnt vmcnt(0)", waited) for line in renamed]


def run(arch, *lines):
    """What is found of lines that may store to four words, and those; v0 is 0, v1 is 5, s[4:5] the words' address."""
    out = np.zeros(4, dtype=np.uint32)
    wide = 64 if arch.startswith("gfx9") else 32
    vgprs = {0: np.zeros(wide, dtype=np.uint32), 1: np.full(wide, 5, dtype=np.uint32)}
    ran = run_single(arch, spelled(arch, *lines), vgprs=vgprs, tensors={4: out}, exec_mask=1)
    return ran.finding_kinds, out


STORED = "global_store_dword v0, {}, s[4:5]"


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("place", [0, 4])
def test_each_word_is_known_where_it_was_stored(arch, place):
    store, load = "scratch_store_dword v0, v1, off offset:4", "scratch_load_dwordx2 v[2:3], v0, off"
    kinds, out = run(arch, store, load, "s_waitcnt vmcnt(0)", STORED.format(f"v{2 + place // 4}"))
    assert kinds == (frozenset() if place else {Kind.UNINITIALISED_REGISTER})
    assert out[0] == (5 if place else 0)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_word_of_which_a_half_was_stored_may_be_loaded(arch):
    lines = ["scratch_store_short v0, v1, off", "scratch_load_dword v2, v0, off", "s_waitcnt vmcnt(0)"]
    kinds, out = run(arch, *lines, STORED.format("v2"))
    assert (kinds, out[0]) == (frozenset(), 5)


@pytest.mark.parametrize("arch", ARCHS)
def test_what_nobody_wrote_may_be_loaded_and_stored_again_there(arch):
    lines = ["scratch_load_dword v2, v0, off", "s_waitcnt vmcnt(0)", "scratch_store_dword v0, v2, off offset:8"]
    again = ["scratch_load_dword v3, v0, off offset:8", "s_waitcnt vmcnt(0)"]
    assert run(arch, *lines, *again)[0] == frozenset()
    assert run(arch, *lines, *again, STORED.format("v3"))[0] == {Kind.UNINITIALISED_REGISTER}


def test_the_descriptor_of_private_memory_reaches_the_same():
    """On gfx90a compilers spill by buffer instructions."""
    arch = "gfx90a"
    descriptor = ["s_mov_b32 s8, 0", "s_movk_i32 s9, -254", "s_and_b32 s9, s9, 0xffff", "s_mov_b32 s10, -1",
                  "s_mov_b32 s11, 0xe00000", "s_mov_b32 s12, 0"]  # fmt: skip
    load = ["buffer_load_dword v2, v0, s[8:11], s12 offen", "s_waitcnt vmcnt(0)", STORED.format("v2")]
    assert run(arch, *descriptor, *load)[0] == {Kind.UNINITIALISED_REGISTER}
    kinds, out = run(arch, *descriptor, "buffer_store_dword v1, v0, s[8:11], s12 offen", *load)
    assert (kinds, out[0]) == (frozenset(), 5)


LOCAL = """
extern "C" __global__ void local(const int* x, int* out, int count) {
  volatile int held[64];
  for (int i = 0; i < count; ++i) held[i] = x[i];
  out[threadIdx.x] = held[x[64 + threadIdx.x]];
}
"""


@functools.cache
def local(arch):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "local.hip").write_text("#include <hip/hip_runtime.h>\n" + LOCAL, encoding="ascii")
        return build(Source(Path(folder), "local.hip"), Target("amd", arch), Options(), ("local",)).code


@needs_hip
@pytest.mark.parametrize("arch", ARCHS)
def test_a_local_array_is_read_where_it_was_written(arch):
    x, out = torch.arange(96, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    x[64:] = 63 - torch.arange(32)
    ran = emulate(local(arch), "local", (1,), (32,), [x, out, 64], arch)
    assert ran.clean, ran.findings
    assert out.tolist() == list(range(63, 31, -1))
    ran = emulate(local(arch), "local", (2,), (32,), [x, out, 40], arch, check_conflicts=False)
    (found,) = ran.findings
    assert found.kind is Kind.UNINITIALISED_REGISTER
    assert found.lane == 0
    assert "_load_" in found.other_text
