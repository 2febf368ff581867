"""The same source compiled for this machine's CPU and for each GPU: equal bits, or so many units.

A kernel is a list of parts with barriers between them; the host runs a part for all threads before the next, and
exchanges lanes through an array.
"""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("tinygrad")
import torch
from cxx import HAS_CXX
from emulated_hip import needs_hip

from portakernel.emulation import emulate
from portakernel.native.options import Options
from portakernel.native.source import Source
from portakernel.native.unit import build
from portakernel.words.target import Target

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
THREADS = 128
HOST = next(filter(None, map(shutil.which, ("clang++-22", "clang-22", "clang++"))), None)
pytestmark = [
    needs_hip,
    pytest.mark.skipif(not HAS_CXX or HOST is None, reason="lacks clang, which compiles the source for the host too"),
]

# By name: how many phases, and the parts of one, with a barrier behind each. `me` is kept between phases; ADD, PUT and
# GET are an atomic sum and the two halves of a shuffle.
BODIES = {
    "arithmetic": (1, ("""
        float a = x[t], b = y[t], sum = 0;
        for (int i = 0; i < 9; ++i) { sum = sum * 0.75f + a * b; a = a - b * 0.5f; b = b + 1.0f / (i + 1); }
        out[t] = __builtin_fmaf(a, b, sum) + (a < b ? a : b) - __builtin_fabsf(sum) + (float)(int)(a * 100);""",)),
    "integers": (1, ("""
        unsigned a = (unsigned)xi[t], b = (unsigned)yi[t], made = 2166136261u;
        for (int i = 0; i < 20; ++i) {
          made = (made ^ (a >> (i & 31))) * 16777619u + (b << (i * 7 & 31));
          made ^= (unsigned)((int)a / ((int)(b & 0xffff) | 1)) + a % (b | 3);
          made += __builtin_popcount(made) + __builtin_clz(made | 1) + (unsigned)(((unsigned long long)a * made) >> 32);
          a += made; b ^= a;
        }
        outi[t] = (int)made;""",)),
    "shared": (8, ("""
        int half = 128 >> phase;
        if (phase == 0) lds[t] = x[t] * y[t];
        else if (t < half) lds[t] += lds[t + half];""", """
        if (phase == 7) out[t] = lds[0] + t;""")),
    "counts": (1, ("if (t < 16) counted[t] = 0;", "ADD(&counted[xi[t] & 15], 1);", "outi[t] = counted[t & 15];")),
    "halves": (1, ("""
        half_t a = (half_t)x[t], b = (half_t)y[t];
        for (int i = 0; i < 5; ++i) { a = a * b; a = a + (half_t)0.25f; b = b - a; }
        out[t] = (float)a + (float)b * 2.0f + BFLOAT16(x[t] * 3.0f);""",)),
    "doubles": (1, ("""
        double a = x[t], b = y[t];
        for (int i = 0; i < 6; ++i) { a = a / (b * b + 1.0) + __builtin_sqrt(b * b + 0.5); b = b - a * 0.3; }
        out[t] = (float)(a * b);""",)),
    "shuffles": (5, ("if (phase == 0) me = x[t]; PUT(me);", """
        me = me * 0.5f + GET(me, 1 << phase);
        if (phase == 4) out[t] = me;""")),
    "functions": (1, ("""
        float a = x[t], b = y[t];
        out[t] = expf(a) + logf(fabsf(b) + 0.1f) + sinf(a) * cosf(b) + tanhf(b);""",)),
}  # fmt: skip
NAMES = tuple(BODIES)
EXACT = frozenset(NAMES) - {"functions"}
ARGUMENTS = "const float* x, const float* y, const int* xi, const int* yi, float* out, int* outi"
ON_HOST = """#include <math.h>
#define ADD(place, value) (*(place) += (value))
#define PUT(value) exchanged[t] = (value)
#define GET(value, step) exchanged[t ^ (step)]
"""
# The host's bfloat16 is written out: what clang calls for it only some compilers' libraries have.
TO_BFLOAT16 = """
static float BFLOAT16(float value) {
  unsigned bits; __builtin_memcpy(&bits, &value, 4);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
"""
ON_GPU = """#include <hip/hip_runtime.h>
#pragma clang fp contract(off)
#define ADD(place, value) atomicAdd(place, value)
#define PUT(value)
#define GET(value, step) __shfl_xor(value, step, 32)
#define BFLOAT16(value) ((float)(__bf16)(value))
"""


def source(*, host: bool) -> str:
    """All kernels: loops over threads on the host, a barrier behind each part on the GPU."""
    made = [ON_HOST + TO_BFLOAT16 if host else ON_GPU, "typedef _Float16 half_t;"]
    for name, (phases, parts) in BODIES.items():
        if host:
            held = (
                "float lds[128], exchanged[128], kept[128]; int counted[16]; (void)lds; (void)exchanged; (void)counted;"
            )
            steps = [f"for (int t = 0; t < 128; ++t) {{ float& me = kept[t]; {part} }}" for part in parts]
        else:
            held = "__shared__ float lds[128]; __shared__ int counted[16]; float me = 0; int t = threadIdx.x;"
            steps = [f"{{ {part} }} __syncthreads();" for part in parts]
        begin = f'extern "C" {"" if host else "__global__ "}void {name}({ARGUMENTS})'
        made.append(f"{begin} {{ {held} for (int phase = 0; phase < {phases}; ++phase) {{ {' '.join(steps)} }} }}")
    return "\n".join(made)


@functools.cache
def on_host() -> ctypes.CDLL:
    """The kernels as functions of this machine."""
    folder = tempfile.mkdtemp()
    path = Path(folder, "host.cpp")
    path.write_text(source(host=True), encoding="ascii")
    library = Path(folder, "host.so")
    flags = ["-O1", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off", "-fwrapv", "-march=native", "-w"]
    flags += [] if "++" in str(HOST) else ["-x", "c++"]
    subprocess.run([str(HOST), *flags, str(path), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))


@functools.cache
def on_gpu(arch: str) -> bytes:
    """The same kernels as a code object; contraction is off in both."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "both.hip").write_text(source(host=False), encoding="ascii")
        return build(Source(Path(folder), "both.hip"), Target("amd", arch), Options(), NAMES).code


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", NAMES)
def test_the_host_and_the_emulated_gpu_give_equal_bits(arch, name):
    generator = torch.Generator().manual_seed(NAMES.index(name))
    x, y = torch.randn(2, THREADS, generator=generator)
    xi, yi = torch.randint(-(2**31), 2**31 - 1, (2, THREADS), generator=generator, dtype=torch.int32)
    here, there = [[torch.zeros(THREADS), torch.zeros(THREADS, dtype=torch.int32)] for _ in range(2)]
    pointers = [ctypes.c_void_p(one.data_ptr()) for one in (x, y, xi, yi, *here)]
    getattr(on_host(), name)(*pointers)
    ran = emulate(on_gpu(arch), name, (1,), (THREADS,), [x, y, xi, yi, *there], arch)
    assert ran.clean, ran.findings
    assert torch.equal(here[1], there[1])
    assert here[0].nonzero().numel() + here[1].nonzero().numel() > THREADS // 2
    if name in EXACT:
        bits = [
            one[0].nan_to_num(nan=-7.25, posinf=torch.inf, neginf=-torch.inf).view(torch.int32) for one in (here, there)
        ]
        assert torch.equal(*bits)
    else:  # exp, log, sin, cos, tanh: within a few units of each summand, by OpenCL's bounds
        assert ((here[0] - there[0]).abs() <= 16 * 2.0**-23 * (here[0].abs() + 4)).all()
