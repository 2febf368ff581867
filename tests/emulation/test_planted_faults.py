"""Three faults that a GPU forgives, or shows now and then, are each named; what else is run without a GPU sees none.

A load of one element too many, in Triton; a reduction whose barrier is gone from its machine code; sums over lanes
whose DPP control reads a lane that is not there, in HIP and in what Triton made. ``portakernel compile`` compiles all
of them, and Triton's interpreter, which runs a kernel's source, gives its right numbers.
"""

# ruff: noqa: N803
import functools
import re
import struct
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
from emulated_kernels import ARCHS, compiled, softmax, wave_size

from portakernel.emulation import Kind, emulate
from portakernel.emulation.operand_text import describe
from portakernel.emulation.program import program
from portakernel.native.options import Options
from portakernel.native.source import Source
from portakernel.native.unit import build
from portakernel.triton_launch import interpreter
from portakernel.words.target import Target

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]


@triton.jit
def scale_past_the_end(x, out, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at <= n, other=0.0)
    tl.store(out + at, value * factor, mask=at < n)


# Each lane adds its neighbour's value. The neighbour of lane 15 of a row is 14; row_shl:1 has none for it.
NEIGHBOURS = r"""
#include <hip/hip_runtime.h>
extern "C" __global__ void pair_sum(const int* x, int* out) {
  int value = x[threadIdx.x], other;
  asm volatile("s_nop 1\n v_mov_b32_dpp %0, %1 CONTROL row_mask:0xf bank_mask:0xf" : "=v"(other) : "v"(value));
  out[threadIdx.x] = value + other;
}
"""


@functools.cache
def neighbours(arch, control):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sum.hip").write_text(NEIGHBOURS.replace("CONTROL", control), encoding="ascii")
        return build(Source(Path(folder), "sum.hip"), Target("amd", arch), Options(), ("pair_sum",)).code


def without_barriers(data, arch):
    """The code object with a s_nop in the place of each barrier."""
    made = program(data, arch)
    at = data.index(made.loaded.text)
    changed, count = bytearray(data), 0
    for record in made.records[: made.flow_count]:
        if record.name in ("s_barrier", "s_barrier_signal", "s_barrier_wait"):
            struct.pack_into("<I", changed, at + record.offset, 0xBF800000)
            count += 1
    assert count
    return bytes(changed)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_load_past_the_end_is_named_with_its_instruction_and_line(arch):
    code, shared = compiled(scale_past_the_end, ("*fp32", "*fp32", "i32", "fp32"), (("BLOCK", 512),), arch)
    x, out = torch.randn(500), torch.zeros(500)
    given = [x, out, 500, 2.0, None, None]
    ran = emulate(
        code, "scale_past_the_end", (1,), (4 * wave_size(arch),), given, arch,
        dynamic_lds=shared, names=scale_past_the_end.arg_names,
    )  # fmt: skip
    assert [(one.kind, one.region, one.distance) for one in ran.findings] == [(Kind.OUTSIDE, "x", 4)]
    assert "_load_" in ran.findings[0].instruction
    assert ran.findings[0].line.startswith("test_planted_faults.py:")
    assert torch.equal(out, x * 2)  # the numbers are right: no comparison of results sees it


def test_the_interpreter_sees_nothing_of_a_load_past_the_end():
    held = torch.randn(512)  # memory behind the tensor, as an allocator leaves it
    x, out = held[:500], torch.zeros(500)
    interpreter.run(scale_past_the_end, (1,), (x, out, 500, 2.0), {"BLOCK": 512})
    assert torch.equal(out, x * 2)


def run_softmax(code, shared, arch):
    torch.manual_seed(3)
    x = torch.randn(4, 1000)
    out = torch.zeros_like(x)
    given = [x, out, 1000, None, None]
    ran = emulate(code, "softmax", (4,), (4 * wave_size(arch),), given, arch, dynamic_lds=shared)
    return ran, out, x.double().softmax(-1)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_missing_barrier_is_named_with_both_instructions(arch):
    code, shared = compiled(softmax, ("*fp32", "*fp32", "i32"), (("BLOCK", 1024),), arch)
    sound, out, expected = run_softmax(code, shared, arch)
    assert sound.clean
    assert torch.allclose(out.double(), expected, rtol=2e-6, atol=1e-9)
    broken, _, _ = run_softmax(without_barriers(code, arch), shared, arch)
    conflicts = [one for one in broken.findings if one.kind is Kind.CONFLICT]
    assert conflicts
    assert all(one.instruction.startswith("ds_") and one.other_text.startswith("ds_") for one in conflicts)
    assert all(one.wave != one.other_wave for one in conflicts)


def test_the_interpreter_knows_no_barriers_and_no_lanes():
    """What it runs has none: it gives the kernel's numbers, whatever its machine code does."""
    x, out = torch.randn(4, 1000), torch.zeros(4, 1000)
    interpreter.run(softmax, (4,), (x, out, 1000), {"BLOCK": 1024})
    assert torch.allclose(out, x.softmax(-1), rtol=1e-5, atol=1e-7)


@needs_hip
@pytest.mark.parametrize("arch", ARCHS)
def test_a_wrong_lane_of_dpp_is_named_where_its_value_is_stored(arch):
    x = torch.arange(64, dtype=torch.int32)
    out = torch.zeros(64, dtype=torch.int32)
    sound = emulate(neighbours(arch, "quad_perm:[1,0,3,2]"), "pair_sum", (1,), (64,), [x, out], arch)
    assert sound.clean
    assert out.tolist() == [lane + (lane ^ 1) for lane in range(64)]
    ran = emulate(neighbours(arch, "row_shl:1"), "pair_sum", (1,), (64,), [x, out], arch)
    (found,) = ran.findings
    assert found.kind is Kind.UNINITIALISED_REGISTER
    assert found.lane == 15
    assert "_store_" in found.instruction
    assert re.fullmatch(
        r"an address, a stored value or a branch comes from a register that was not written in this lane \(what it "
        r"holds comes from v_mov_b32 v\d+, v\d+ row_shl:1 row_mask:0xf bank_mask:0xf at 0x[0-9a-f]+\): \S+_store_\S+ "
        r".*; workgroup \(0, 0, 0\), wave 0, lane 15(, 2 executions by waves in all)?",
        str(found),
    )


@needs_hip
@pytest.mark.parametrize("arch", ARCHS)
def test_a_wrong_lane_that_is_there_gives_a_wrong_number_and_no_finding(arch):
    """It is a value as any other: comparing results, as the kit does, is what sees it."""
    x = torch.arange(64, dtype=torch.int32)
    out = torch.zeros(64, dtype=torch.int32)
    ran = emulate(neighbours(arch, "quad_perm:[2,3,0,1]"), "pair_sum", (1,), (64,), [x, out], arch)
    assert ran.clean
    assert out.tolist() == [lane + (lane ^ 2) for lane in range(64)]


@pytest.mark.parametrize("arch", [arch for arch in ARCHS if wave_size(arch) == 64])
def test_a_wrong_lane_in_what_triton_made_is_named_behind_all_that_its_value_went_through(arch):
    """Sums within a wave: the lane's value goes through further sums, a scalar register and LDS."""
    code, shared = compiled(softmax, ("*fp32", "*fp32", "i32"), (("BLOCK", 1024),), arch)
    made = program(code, arch)
    permuted = next(one for one in made.records[: made.flow_count] if "quad_perm:[2,3,0,1]" in describe(one))
    at = code.index(made.loaded.text) + permuted.offset + permuted.size - 4
    changed = bytearray(code)
    (controls,) = struct.unpack_from("<I", code, at)
    row_shl_15, bound_ctrl = 0x10F << 8, 1 << 19
    struct.pack_into("<I", changed, at, controls & ~(0x1FF << 8 | bound_ctrl) | row_shl_15)
    broken, _, _ = run_softmax(bytes(changed), shared, arch)
    found = broken.findings[0]
    assert found.instruction.startswith("ds_write")
    assert {(one.kind, one.other_offset) for one in broken.findings} == {(Kind.UNINITIALISED_REGISTER, permuted.offset)}
    assert re.fullmatch(r"v_mov_b32 v\d+, v\d+ row_shl:15 row_mask:0xf bank_mask:0xf", found.other_text)


@needs_hip
def test_the_compile_gate_compiles_the_faults():
    """Compiling is all that the gate does: each of them is a valid program."""
    for arch in ARCHS:
        assert neighbours(arch, "row_shl:1")
        assert compiled(scale_past_the_end, ("*fp32", "*fp32", "i32", "fp32"), (("BLOCK", 512),), arch)[0]
        code = compiled(softmax, ("*fp32", "*fp32", "i32"), (("BLOCK", 1024),), arch)[0]
        assert program(without_barriers(code, arch), arch).missing(program(code, arch).loaded.kernel("softmax")) == ()
