"""Words that compilers leave unwritten as nobody reads them are no findings; where they are read, they are named."""

import functools
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("tinygrad")
import torch
from cxx import HAS_CXX
from emulated_hip import needs_hip

from portakernel.emulation import Kind, emulate
from portakernel.native.options import Options
from portakernel.native.source import Source
from portakernel.native.unit import build
from portakernel.words.target import Target

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
pytestmark = [needs_hip, pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine")]

# s60 and s64 are written, the high halves s61 and s65 of their pairs are not.
KERNEL = """
extern "C" __global__ void NAME(int* out) {
  int word;
  asm volatile("s_mov_b32 s60, 12\\n s_mov_b32 s64, 10\\n s_cmp_eq_u32 s60, s60\\n TEXT\\n v_mov_b32 %0, WORD"
               : "=v"(word) :: "s60", "s61", "s62", "s63", "s64", "s65", "scc");
  out[threadIdx.x] = word;
}
"""
CASES = {
    "mov": ("s_mov_b64 s[62:63], s[60:61]", 12),
    "cselect": ("s_cselect_b64 s[62:63], s[60:61], s[64:65]", 12),
    "cmov": ("s_cmov_b64 s[62:63], s[60:61]", 12),
    "and": ("s_and_b64 s[62:63], s[60:61], s[64:65]", 8),
    "or": ("s_or_b64 s[62:63], s[60:61], s[64:65]", 14),
    "xor": ("s_xor_b64 s[62:63], s[60:61], s[64:65]", 6),
    "lshl": ("s_lshl_b64 s[62:63], s[60:61], 2", 48),
}
SUMS = {
    "add": ("s_add_nc_u64 s[62:63], s[60:61], s[64:65]", 22),
    "sub": ("s_sub_nc_u64 s[62:63], s[60:61], s[64:65]", 2),
    "mul": ("s_mul_u64 s[62:63], s[60:61], s[64:65]", 120),
}
# What a field of 32 bits beside 64 bits has behind it says nothing; what is left of a destination, and all of 64 bits
# that are counted, do.
WHOLE = {
    "bitcmp": ("s_mov_b64 s[60:61], 12\\n s_bitcmp1_b64 s[60:61], s64\\n s_cselect_b32 s62, 7, 9", 9),
    "bitset": ("s_mov_b64 s[62:63], 3\\n s_bitset1_b64 s[62:63], s64", 1027),
}
PARTLY = {
    "bitset of nothing": "s_bitset1_b32 s62, s64",
    "bitset of half": "s_mov_b32 s62, 0\\n s_bitset1_b64 s[62:63], s64\\n s_mov_b32 s62, s63",
    "count": "s_bcnt1_i32_b64 s62, s[60:61]",
}


def cases(arch):
    return CASES | (SUMS if arch == "gfx1201" else {})


@functools.cache
def compiled(arch):
    named = {f"{name}_{word}": (text, word) for name, (text, _) in cases(arch).items() for word in ("s62", "s63")}
    named |= {of_single(name): (text, "s62") for name, (text, _) in WHOLE.items()}
    named |= {of_single(name): (text, "s62") for name, text in PARTLY.items()}
    kernels = [
        KERNEL.replace("NAME", name).replace("TEXT", text).replace("WORD", word) for name, (text, word) in named.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "words.hip").write_text("#include <hip/hip_runtime.h>\n" + "".join(kernels), encoding="ascii")
        return build(Source(Path(folder), "words.hip"), Target("amd", arch), Options(), tuple(named)).code


def of_single(name):
    return f"single_{name.replace(' ', '_')}"


def run(arch, name):
    out = torch.zeros(32, dtype=torch.int32)
    return emulate(compiled(arch), name, (1,), (32,), [out], arch), out


@pytest.mark.parametrize("arch", ARCHS)
def test_the_low_word_of_64_bits_is_written_where_the_high_one_is_not(arch):
    for name, (_, expected) in cases(arch).items():
        ran, out = run(arch, f"{name}_s62")
        assert ran.clean, (name, ran.findings)
        assert set(out.tolist()) == {expected}, name


@pytest.mark.parametrize("arch", ARCHS)
def test_the_high_word_is_still_named_where_it_is_stored(arch):
    for name in cases(arch):
        ran, _ = run(arch, f"{name}_s63")
        assert [one.kind for one in ran.findings] == [Kind.UNINITIALISED_REGISTER], name


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", WHOLE)
def test_a_field_of_32_bits_is_one_register(arch, name):
    ran, out = run(arch, of_single(name))
    assert ran.clean, ran.findings
    assert set(out.tolist()) == {WHOLE[name][1]}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", PARTLY)
def test_what_of_64_bits_or_of_a_destination_nobody_wrote_is_named(arch, name):
    ran, _ = run(arch, of_single(name))
    assert [one.kind for one in ran.findings] == [Kind.UNINITIALISED_REGISTER]
