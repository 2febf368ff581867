"""Where accesses lie and what of them takes place: descriptors of buffers, alignment of atomics, lanes on their way."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from cxx import HAS_CXX
from emulated_hip import needs_hip
from single_instruction import needs_clang, run_single

pytest.importorskip("tinygrad")
import torch

from portakernel.emulation import Kind, emulate
from portakernel.native.options import Options
from portakernel.native.source import Source
from portakernel.native.unit import build
from portakernel.words.target import Target

pytestmark = [needs_clang, pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine")]
ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
RETURNING = {"gfx90a": "glc", "gfx942": "sc0", "gfx950": "sc0", "gfx1100": "glc", "gfx1201": "th:TH_ATOMIC_RETURN"}
# The last word of a buffer's descriptor, and the bits of its second one that swizzle addresses.
FORMAT = {"gfx1100": 0x31004000, "gfx1201": 0x31004000}
SWIZZLES = {"gfx1100": 0x40000000, "gfx1201": 0x40000000}


def lanes(arch):
    return 64 if arch.startswith("gfx9") else 32


def named(arch, cdna, rdna):
    return cdna if arch.startswith("gfx9") else rdna


def on_buffer(arch, text, words, offsets, *, records, second=0, last=None, values=()):
    """An instruction on a buffer of so many bytes, whose offsets v0 holds; s[4:7] describe it, s8 is 0."""
    lines = [f"s_or_b32 s5, s5, {second:#x}", "s_mov_b32 s8, 0", text]
    scalars = {6: records, 7: FORMAT.get(arch, 0x27000) if last is None else last}
    return run_single(arch, lines, tensors={4: words}, sgprs=scalars, vgprs={0: offsets, **dict(enumerate(values, 2))})


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("stride", [0, 16])
def test_dwords_inside_of_a_buffer_are_loaded_though_others_of_the_access_are_outside(arch, stride):
    words = np.arange(1, 9, dtype=np.uint32)
    offsets = np.where(np.arange(lanes(arch)) % 2, 8, 0).astype(np.uint32)
    name = named(arch, "buffer_load_dwordx2", "buffer_load_b64")
    text = f"{name} v[2:3], v0, s[4:7], s8 offen"
    ran = on_buffer(arch, text, words, offsets, records=12, second=stride << 16)
    assert np.array_equal(ran.vgpr(2), np.where(offsets, 3, 1))
    assert np.array_equal(ran.vgpr(3), np.where(offsets, 0, 2))
    assert ran.finding_kinds == frozenset()


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("stride", [0, 16])
def test_dwords_inside_of_a_buffer_are_stored_though_others_of_the_access_are_outside(arch, stride):
    words = np.zeros(8, dtype=np.uint32)
    name = named(arch, "buffer_store_dwordx2", "buffer_store_b64")
    seven = np.full(lanes(arch), 7, dtype=np.uint32)
    text = f"{name} v[2:3], v0, s[4:7], s8 offen"
    on_buffer(arch, text, words, np.full(lanes(arch), 8), records=12, second=stride << 16, values=(seven, seven))
    assert words.tolist() == [0, 0, 7, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("arch", ARCHS)
def test_an_atomic_operation_outside_of_a_buffer_gives_0_and_does_nothing(arch):
    words = np.array([5, 6, 7, 8], dtype=np.uint32)
    offsets = np.where(np.arange(lanes(arch)) == 1, 4, 1 << 20).astype(np.uint32)
    name = named(arch, "buffer_atomic_add", "buffer_atomic_add_u32")
    text = f"{name} v2, v0, s[4:7], s8 offen {RETURNING[arch]}"
    ran = on_buffer(arch, text, words, offsets, records=16, values=(np.full(lanes(arch), 9, dtype=np.uint32),))
    assert ran.vgpr(2).tolist() == [6 if lane == 1 else 0 for lane in range(lanes(arch))]
    assert words.tolist() == [5, 15, 7, 8]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("what", ["swizzle", "lane"])
@pytest.mark.parametrize("access", ["load", "store", "atomic"])
def test_a_descriptor_that_places_lanes_otherwise_is_refused(arch, what, access):
    words = np.zeros(64, dtype=np.uint32)
    names = {"load": ("buffer_load_dword", "buffer_load_b32"), "store": ("buffer_store_dword", "buffer_store_b32"),
             "atomic": ("buffer_atomic_add", "buffer_atomic_add_u32")}  # fmt: skip
    last = FORMAT.get(arch, 0x27000) | (1 << 23 if what == "lane" else 0)
    second = SWIZZLES.get(arch, 0x80000000) if what == "swizzle" else 0
    text = f"{named(arch, *names[access])} v2, v0, s[4:7], s8 offen"
    ran = on_buffer(arch, text, words, np.zeros(lanes(arch)), records=256, second=second, last=last)
    assert ran.finding_kinds == {Kind.UNSUPPORTED}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("offset", [0, 4])
def test_atomics_of_64_bits_lie_at_multiples_of_8(arch, offset):
    words = np.zeros(8, dtype=np.uint64)
    memory = f"{named(arch, 'global_atomic_add_x2', 'global_atomic_add_u64')} v0, v[2:3], s[4:5] offset:{offset}"
    lds = f"ds_add_u64 v0, v[2:3] offset:{offset}"
    for text in (memory, lds):
        ran = run_single(arch, text, vgprs={0: np.zeros(lanes(arch))}, exec_mask=1, tensors={4: words}, lds=[0] * 4)
        assert ran.finding_kinds == ({Kind.MISALIGNED} if offset else frozenset()), text


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("active", "early"), [(8, True), (4, False)])
def test_a_lane_is_written_after_the_wait_for_what_loads_it(arch, active, early):
    load = named(arch, "global_load_dword", "global_load_b32")
    execute = named(arch, "s_mov_b64 exec", "s_mov_b32 exec_lo")
    wait = "s_wait_loadcnt 0" if arch == "gfx1201" else "s_waitcnt vmcnt(0)"
    text = [f"{execute}, {active}", f"{load} v1, v0, s[4:5]", "v_writelane_b32 v1, s6, 3", wait]
    ran = run_single(arch, text, vgprs={0: np.zeros(lanes(arch))}, tensors={4: np.array([7], dtype=np.uint32)})
    assert ran.finding_kinds == ({Kind.UNWAITED} if early else frozenset())


@pytest.mark.parametrize("distance", [16, 32])
@pytest.mark.parametrize("loaded", ["v1", "v2"])
def test_rows_are_swapped_after_the_wait_for_what_loads_them(distance, loaded):
    text = [f"global_load_dword {loaded}, v0, s[4:5]", f"v_permlane{distance}_swap_b32 v1, v2", "s_waitcnt vmcnt(0)"]
    ran = run_single("gfx950", text, vgprs={0: np.zeros(64)}, tensors={4: np.array([7], dtype=np.uint32)})
    assert ran.finding_kinds == {Kind.UNWAITED}


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_a_part_of_a_register_that_does_not_exist_is_refused(arch):
    """v_add_u32_sdwa v2, v0, v1 with 7 where a byte or word of v2 is named."""
    assert run_single(arch, ".long 0x680402f9, 0x06060700").finding_kinds == {Kind.UNSUPPORTED}


COUNTERS = """
#include <hip/hip_runtime.h>
template <bool BARRIER> __device__ void counted(int* out) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1);
  if (BARRIER) __syncthreads();
  if (threadIdx.x == LOOKS) out[0] = count;
}
extern "C" __global__ void with_barrier(int* out) { counted<true>(out); }
extern "C" __global__ void without_barrier(int* out) { counted<false>(out); }
"""


@functools.cache
def counters(arch, looks):
    with tempfile.TemporaryDirectory() as folder:
        text = COUNTERS.replace("LOOKS", str(looks))
        Path(folder, "counters.hip").write_text(text, encoding="ascii")
        names = ("with_barrier", "without_barrier")
        return build(Source(Path(folder), "counters.hip"), Target("amd", arch), Options(), names).code


@needs_hip
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("looks", [0, 255])
def test_a_sum_that_other_waves_add_to_is_read_behind_a_barrier(arch, looks):
    out = torch.zeros(1, dtype=torch.int32)
    ran = emulate(counters(arch, looks), "with_barrier", (1,), (256,), [out], arch)
    assert ran.clean, ran.findings
    assert out.tolist() == [256]
    ran = emulate(counters(arch, looks), "without_barrier", (1,), (256,), [out], arch)
    assert {one.kind for one in ran.findings} == {Kind.CONFLICT}
