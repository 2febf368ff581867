"""A register is used only after a wait for what loads it: hardware gives what it held before, and says nothing.

Short pieces of assembly in HIP kernels, whose waits are written out or left out; and Triton's kernels, whose code
objects lose their waits one by one.
"""

import functools
import re
import struct
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
from cxx import HAS_CXX
from emulated_hip import needs_hip
from emulated_kernels import ARCHS, compiled, softmax, wave_size

from portakernel.emulation import Kind, emulate
from portakernel.emulation.program import program
from portakernel.native.options import Options
from portakernel.native.source import Source
from portakernel.native.unit import build
from portakernel.words.target import Target

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]

# A piece in RDNA's words: %0 to %2 are results, %3 an address of memory, %4 one of LDS, %5 scalars, %6 where to store.
PIECE = r"""
extern "C" __global__ void NAME(const int* x, int* out) {
  __shared__ int held[128];
  held[threadIdx.x] = x[threadIdx.x];
  held[threadIdx.x + 64] = x[threadIdx.x + 64];
  __syncthreads();
  int a, b, c = 0;
  const int* mine = x + threadIdx.x;
  unsigned place = (unsigned)(__attribute__((address_space(3))) int*)(held + threadIdx.x);
  asm volatile("LINES" : "=&v"(a), "=&v"(b), "+&v"(c) : "v"(mine), "v"(place), "s"(x), "v"(out + 64 + threadIdx.x)
               : "memory", "s20", "s21", "s22", "s23", "vcc");
  out[threadIdx.x] = c;
}
"""
WAITS = {
    "gfx12": {"LOADS": "s_wait_loadcnt {}", "LDS": "s_wait_dscnt {}", "SCALARS": "s_wait_kmcnt {}"},
    "others": {"LOADS": "s_waitcnt vmcnt({})", "LDS": "s_waitcnt lgkmcnt({})", "SCALARS": "s_waitcnt lgkmcnt({})"},
}
TWO_LOADS = ["global_load_b32 %0, %3, off", "global_load_b32 %1, %3, off offset:4"]
A, B = "%0", "%1"


def move(source):
    return f"v_mov_b32 %2, {source}"


def spelled(arch, line):
    """A line of a piece in the words of an architecture."""
    word, _, rest = line.partition(" ")
    waits = WAITS["gfx12" if arch.startswith("gfx12") else "others"]
    if word in waits:
        return waits[word].format(rest)
    if arch.startswith("gfx9"):
        word = word.replace("ds_load", "ds_read")
        word = re.sub("^(global|s)_(load|store)_b32", r"\1_\2_dword", word)
    return f"{word} {rest}".rstrip()


@functools.cache
def pieces(arch):
    """The code object with all pieces, and their kernels' names."""
    known = EARLY | SOUND | (HALVES if arch.startswith("gfx1") else {})
    sources = {what: lines for what, (lines, *_) in known.items()} | {"idle lanes": idle_lanes(arch)}
    text, names = "#include <hip/hip_runtime.h>\n", {}
    for number, (what, lines) in enumerate(sources.items()):
        names[what] = f"piece_{number}"
        written = r"\n".join(spelled(arch, line) for line in lines)
        text += PIECE.replace("NAME", names[what]).replace("LINES", written)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pieces.hip").write_text(text, encoding="ascii")
        return build(
            Source(Path(folder), "pieces.hip"), Target("amd", arch), Options(), tuple(names.values())
        ).code, names


def run(arch, what):
    code, names = pieces(arch)
    x, out = torch.arange(128, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    return emulate(code, names[what], (1,), (64,), [x, out], arch), out


def idle_lanes(arch):
    wide = wave_size(arch) == 64
    active, bits, saved = ("exec", "b64", "s[22:23]") if wide else ("exec_lo", "b32", "s22")
    return [
        f"s_mov_{bits} {saved}, {active}", f"s_mov_{bits} {active}, 0xff", "global_load_b32 %0, %3, off",
        f"s_not_{bits} {active}, {active}", "v_mov_b32 %0, 5", "LOADS 0", f"s_mov_{bits} {active}, {saved}", move(A),
    ]  # fmt: skip


EARLY = {
    "a load of memory": (["global_load_b32 %0, %3, off", move(A), "LOADS 0"], "global_load_b32", "v_mov_b32"),
    "the second of two loads": ([*TWO_LOADS, "LOADS 1", move(B), "LOADS 0"], "global_load_b32", "v_mov_b32"),
    "a load of LDS": (["ds_load_b32 %0, %4", move(A), "LDS 0"], "ds_load_b32", "v_mov_b32"),
    "a permutation": (
        ["v_mov_b32 %1, 7", "ds_bpermute_b32 %0, %4, %1", move(A), "LDS 0"], "ds_bpermute_b32", "v_mov_b32",
    ),
    "a load of memory, waited for as one of LDS": (
        ["global_load_b32 %0, %3, off", "LDS 0", move(A), "LOADS 0"], "global_load_b32", "v_mov_b32",
    ),
    "a scalar load": (["s_load_b32 s20, %5, 0x0", move("s20"), "SCALARS 0"], "s_load_b32", "v_mov_b32"),
    "a scalar load as a scalar": (
        ["s_load_b32 s20, %5, 0x0", "s_lshl_b32 s21, s20, 1", "SCALARS 0", move("s21")], "s_load_b32", "s_lshl_b32",
    ),
    "one of two scalar loads": (
        ["s_load_b32 s20, %5, 0x0", "s_load_b32 s21, %5, 0x4", "SCALARS 1", move("s20"), "SCALARS 0"],
        "s_load_b32", "v_mov_b32",
    ),
    "a loaded address": (
        ["ds_load_b32 %1, %4", "ds_load_b32 %0, %1", "LDS 0", "v_mov_b32 %2, 0"], "ds_load_b32", "ds_load_b32",
    ),
    "a stored value": (
        ["global_load_b32 %0, %3, off", "global_store_b32 %6, %0, off", "LOADS 0"],
        "global_load_b32", "global_store_b32",
    ),
    "an overwritten register": (
        ["global_load_b32 %0, %3, off", "v_mov_b32 %0, 3", "LOADS 0", move(A)], "global_load_b32", "v_mov_b32",
    ),
    "a register that two loads fill": (
        ["global_load_b32 %0, %3, off", "ds_load_b32 %0, %4", "LDS 0", "LOADS 0", move(A)],
        "global_load_b32", "ds_load_b32",
    ),
}  # fmt: skip


@needs_hip
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("what", EARLY)
def test_what_is_used_before_its_wait_is_named_with_its_load(arch, what):
    _, load, use = EARLY[what]
    ran, _ = run(arch, what)
    (found,) = [one for one in ran.findings if one.kind is Kind.UNWAITED]  # an address may be misaligned too
    of_load, of_use = (spelled(arch, text) for text in (load, use))
    assert (found.instruction, found.other_text.split()[0]) == (of_use, of_load)
    register = r"s2[01]" if "scalar" in what else r"v\d+"
    pattern = (
        rf"{register} is used before a wait for what loads it \({of_load} .* at 0x[0-9a-f]+\): {of_use} .* at "
        r"0x[0-9a-f]+; workgroup \(0, 0, 0\), wave 0, lane \d+(, 2 registers in all)?"
    )
    assert re.fullmatch(pattern, str(found))


SOUND = {
    "one wait for both": ([*TWO_LOADS, "LOADS 0", "v_mov_b32 %0, %0", move(B)], 1),
    "the first of two loads": ([*TWO_LOADS, "LOADS 1", move(A), "LOADS 0"], 0),
    "loads to one register in order": (["global_load_b32 %0, %3, off", *TWO_LOADS, "LOADS 1", move(A), "LOADS 0"], 0),
    "its own address": (["v_mov_b32 %0, %4", "ds_load_b32 %0, %0", "LDS 0", move(A)], 0),
    "LDS behind memory": (["global_load_b32 %0, %3, off", "ds_load_b32 %1, %4", "LDS 0", move(B), "LOADS 0"], 0),
    "the first of two of LDS": (
        ["ds_load_b32 %0, %4", "ds_load_b32 %1, %4 offset:4", "LDS 1", move(A), "LDS 0"], 0,
    ),
    "scalars": (["s_load_b32 s20, %5, 0x4", "SCALARS 0", move("s20")], None),
}  # fmt: skip


@needs_hip
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("what", SOUND)
def test_a_wait_for_enough_is_enough(arch, what):
    _, ahead = SOUND[what]
    ran, out = run(arch, what)
    assert ran.clean, ran.findings
    assert out[:32].tolist() == ([1] * 32 if ahead is None else [lane + ahead for lane in range(32)])


# Loads of 16 bits fill the halves of a register: with the load that its use comes too early for, if for any.
TWO_HALVES = ["global_load_d16_b16 %0, %3, off", "global_load_d16_hi_b16 %0, %3, off offset:4"]
HALVES = {
    "the half that is there": ([*TWO_HALVES, "LOADS 1", "ds_store_b16 %4, %0", "LOADS 0"], None),
    "the half that is not": ([*TWO_HALVES, "LOADS 1", "ds_store_b16_d16_hi %4, %0", "LOADS 0"], "d16_hi_b16"),
    "either half": ([*TWO_HALVES, "ds_store_b16 %4, %0", "LOADS 0"], "d16_b16"),
    "both halves": ([*TWO_HALVES, "LOADS 1", move(A), "LOADS 0"], "d16_hi_b16"),
    "a half of a whole load": (["global_load_b32 %0, %3, off", "ds_store_b16_d16_hi %4, %0", "LOADS 0"], "b32"),
}


@needs_hip
@pytest.mark.parametrize("arch", [arch for arch in ARCHS if arch.startswith("gfx1")])
@pytest.mark.parametrize("what", HALVES)
def test_half_of_a_register_waits_for_its_own_load_on_rdna(arch, what):
    _, load = HALVES[what]
    ran, _ = run(arch, what)
    unwaited = [one.other_text.split()[0] for one in ran.findings if one.kind is Kind.UNWAITED]
    assert unwaited == ([] if load is None else [f"global_load_{load}"])


@needs_hip
@pytest.mark.parametrize("arch", ARCHS)
def test_lanes_that_no_load_fills_are_free(arch):
    """Two branches of one source may fill halves of a register, one of them by a load that is on its way."""
    ran, out = run(arch, "idle lanes")
    assert ran.clean, ran.findings
    assert out[:16].tolist() == [*range(8), *[5] * 8]


@pytest.mark.parametrize("arch", ARCHS)
def test_each_wait_that_a_compiled_kernel_loses_is_noticed_or_was_not_needed(arch):
    """Of Triton's softmax most waits are for a register that is used soon; without one of them it is named."""
    code, shared = compiled(softmax, ("*fp32", "*fp32", "i32"), (("BLOCK", 1024),), arch)
    made = program(code, arch)
    at = code.index(made.loaded.text)
    places = [one.offset for one in made.records[: made.flow_count] if waits_for_registers(one.name)]
    noticed = 0
    for place in places:
        changed = bytearray(code)
        struct.pack_into("<I", changed, at + place, 0xBF800000)
        given = [torch.randn(2, 1000), torch.zeros(2, 1000), 1000, None, None]
        block = (4 * wave_size(arch),)
        ran = emulate(bytes(changed), "softmax", (2,), block, given, arch, dynamic_lds=shared)
        assert {one.kind for one in ran.findings} <= {Kind.UNWAITED}
        noticed += bool(ran.findings)
    assert noticed >= 4
    assert noticed >= len(places) // 2


def waits_for_registers(name):
    return name == "s_waitcnt" or (name.startswith("s_wait_") and name.endswith(("loadcnt", "dscnt", "kmcnt")))
