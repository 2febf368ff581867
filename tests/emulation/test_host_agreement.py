"""The same source compiled for this machine's CPU and for each GPU: equal bits, or so many units.

A kernel is a list of phases with barriers between them; the host runs a phase for all threads before the next, and
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

# NAME(phase) gets what it keeps between phases in `me`; `x`, `y` are inputs, `out` a result of each thread.
BODIES = r"""
struct Kept { float f[4]; int i[4]; };

KERNEL(arithmetic, 1, {
  float a = x[t], b = y[t], sum = 0;
  for (int i = 0; i < 9; ++i) { sum = sum * 0.75f + a * b; a = a - b * 0.5f; b = b + 1.0f / (i + 1); }
  out[t] = __builtin_fmaf(a, b, sum) + (a < b ? a : b) - __builtin_fabsf(sum) + (float)(int)(a * 100);
})

KERNEL(integers, 1, {
  unsigned a = (unsigned)xi[t], b = (unsigned)yi[t], made = 2166136261u;
  for (int i = 0; i < 20; ++i) {
    made = (made ^ (a >> (i & 31))) * 16777619u + (b << (i * 7 & 31));
    made ^= (unsigned)((int)a / ((int)(b & 0xffff) | 1)) + a % (b | 3);
    made += __builtin_popcount(made) + __builtin_clz(made | 1) + (unsigned)(((unsigned long long)a * made) >> 32);
    a += made; b ^= a;
  }
  outi[t] = (int)made;
})

KERNEL(shared, 8, {
  if (phase == 0) lds[t] = x[t] * y[t];
  else { int half = 128 >> phase; if (t < half) lds[t] += lds[t + half]; }
  if (phase == 7) out[t] = lds[t & 3] + t;
})

KERNEL(counts, 2, {
  if (phase == 0) { if (t < 16) counted[t] = 0; }
  else ADD(&counted[xi[t] & 15], 1);
}, { if (t < 16) outi[t] = counted[t]; else outi[t] = 0; })

KERNEL(halves, 1, {
  half_t a = (half_t)x[t], b = (half_t)y[t];
  for (int i = 0; i < 5; ++i) { a = a * b; a = a + (half_t)0.25f; b = b - a; }
  bfloat_t c = (bfloat_t)(x[t] * 3.0f);
  out[t] = (float)a + (float)b * 2.0f + (float)c;
})

KERNEL(doubles, 1, {
  double a = x[t], b = y[t];
  for (int i = 0; i < 6; ++i) { a = a / (b * b + 1.0) + __builtin_sqrt(b * b + 0.5); b = b - a * 0.3; }
  out[t] = (float)(a * b);
})

KERNEL(shuffles, 5, {
  if (phase == 0) me.f[0] = x[t];
  int other = t ^ (1 << phase);
  PUT(me.f[0]);
}, {
  me.f[0] = me.f[0] * 0.5f + GET(t ^ (1 << phase), 1 << phase);
  if (phase == 4) out[t] = me.f[0];
})

KERNEL(functions, 1, {
  float a = x[t], b = y[t];
  out[t] = __builtin_expf(a) + __builtin_logf(__builtin_fabsf(b) + 0.1f) + __builtin_sinf(a) * __builtin_cosf(b) + __builtin_tanhf(b);
})
"""
EXACT = {"arithmetic", "integers", "shared", "counts", "halves", "doubles", "shuffles"}
NAMES = (*sorted(EXACT), "functions")

ARGUMENTS = "const float* x, const float* y, const int* xi, const int* yi, float* out, int* outi"


def source(*, host: bool) -> str:
    """The bodies with their macros written out: a kernel has one or two parts in each phase, a barrier behind each."""
    made = ["#include <math.h>" if host else "#include <hip/hip_runtime.h>", "typedef _Float16 half_t;"]
    made.append("typedef __bf16 bfloat_t;")
    text = BODIES
    made.append(text[: text.index("KERNEL(")])
    for part in text.split("KERNEL(")[1:]:
        head, _, rest = part.partition(", {")
        name, phases = head.split(", ")
        bodies = [f"{{{one}" for one in ("{" + rest.rsplit("})", 1)[0] + "}").lstrip("{").split("}, {")]
        bodies = [one if one.endswith("}") else one + "}" for one in bodies]
        inner = "static float lds[128], exchanged[128]; static int counted[16]; static Kept all[128];" if host else (
            "__shared__ float lds[128]; __shared__ int counted[16]; Kept me; int t = threadIdx.x;"
        )
        steps = [
            f"for (int t = 0; t < 128; ++t) {{ Kept& me = all[t]; {one} }}" if host else f"{one} __syncthreads();"
            for one in bodies
        ]
        begin = 'extern "C" void' if host else 'extern "C" __global__ void'
        loop = f"for (int phase = 0; phase < {phases}; ++phase) {{ {' '.join(steps)} }}"
        made.append(f"{begin} {name}({ARGUMENTS}) {{ {inner} {loop} }}")
    macros = {
        "ADD(": "(*[](int* p, int v) -> int* { *p += v; return p; })(" if host else "atomicAdd(",
        "PUT(me.f[0])": "exchanged[t] = me.f[0]" if host else "(void)other",
        "GET(t ^ (1 << phase), 1 << phase)": "exchanged[t ^ (1 << phase)]" if host else "__shfl_xor(me.f[0], 1 << phase, 32)",
    }
    joined = "\n".join(made)
    if host:
        macros["ADD("] = "host_add("
        joined = joined.replace("struct Kept", "static void host_add(int* p, int v) { *p += v; }\nstruct Kept", 1)
    for macro, meaning in macros.items():
        joined = joined.replace(macro, meaning)
    return joined


@functools.cache
def on_host() -> ctypes.CDLL:
    """The kernels as functions of this machine."""
    folder = tempfile.mkdtemp()
    path = Path(folder, "host.cpp")
    path.write_text(source(host=True), encoding="ascii")
    library = Path(folder, "host.so")
    flags = ["-O1", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off", "-fwrapv", "-w"]
    flags += [] if "++" in str(HOST) else ["-x", "c++"]
    subprocess.run([str(HOST), *flags, str(path), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))


@functools.cache
def on_gpu(arch: str) -> bytes:
    """The same kernels as a code object; contraction is off in both."""
    with tempfile.TemporaryDirectory() as folder:
        text = "#pragma clang fp contract(off)\n" + source(host=False)
        Path(folder, "both.hip").write_text(text, encoding="ascii")
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
    assert here[0].abs().sum() + here[1].abs().sum() > 0
    if name in EXACT:
        assert torch.equal(here[0].view(torch.int32), there[0].view(torch.int32))
    else:  # exp, log, sin, cos, tanh: within a few units of each summand, by OpenCL's bounds
        assert ((here[0] - there[0]).abs() <= 16 * 2.0**-23 * (here[0].abs() + 4)).all()
