"""HIP sources that tests compile for AMD GPUs that are not here, and run in the emulator."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from portakernel.claims.capability import Rejection
from portakernel.native import clang
from portakernel.native.options import Options
from portakernel.native.source import Source
from portakernel.native.unit import build
from portakernel.words.target import Target

CLANG = clang.find()
needs_hip = pytest.mark.skipif(isinstance(CLANG, Rejection), reason=str(getattr(CLANG, "text", "")))

KERNELS = r"""
#include <hip/hip_runtime.h>

extern "C" __global__ void gelu(const float* x, float* out, int n) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < n) out[at] = 0.5f * x[at] * (1.0f + erff(x[at] * 0.70710678f));
}

template <bool BARRIER>
__device__ void reverse(const float* x, float* out) {
  __shared__ float held[256];
  held[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  if (BARRIER) __syncthreads();
  out[blockIdx.x * 256 + threadIdx.x] = held[255 - threadIdx.x];
}
extern "C" __global__ void reversed(const float* x, float* out) { reverse<true>(x, out); }
extern "C" __global__ void reversed_without_barrier(const float* x, float* out) { reverse<false>(x, out); }

extern "C" __global__ void unwritten(float* out) {
  __shared__ float held[256];
  if (threadIdx.x < 100) held[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = held[threadIdx.x];
}

extern "C" __global__ void row_sums(const float* x, float* out, int n) {
  __shared__ float partial[256];
  float sum = 0;
  for (int at = threadIdx.x; at < n; at += blockDim.x) sum += x[blockIdx.x * n + at];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 128; half; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}

extern "C" __global__ void mix64(const long long* a, const long long* b, long long* out, int n) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= n) return;
  long long x = a[at], y = b[at];
  unsigned long long u = x, v = y;
  out[at] = (x * y) ^ (u / (v | 1)) ^ (x % (y | 1)) ^ (u << (v & 63)) ^ (x >> (v & 63));
}

extern "C" __global__ void divide(const float* a, const float* b, float* quotient, float* root, int n) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= n) return;
  quotient[at] = a[at] / b[at];
  root[at] = sqrtf(fabsf(a[at]));
}

extern "C" __global__ void doubles(const double* a, const double* b, double* out, int n) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < n) out[at] = a[at] / b[at] + sqrt(fabs(a[at])) * b[at];
}

extern "C" __global__ void where(int* out) {
  int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

__device__ __attribute__((noinline)) int collatz(int n) {
  int steps = 0;
  while (n != 1) n = n % 2 ? 3 * n + 1 : n / 2, ++steps;
  return steps;
}
extern "C" __global__ void called(int* out) { out[threadIdx.x] = collatz(threadIdx.x + 1) + collatz(threadIdx.x + 7); }

extern "C" __global__ void private_array(const int* order, int* out) {
  volatile int held[80];  // beyond what registers take
  for (int i = 0; i < 80; ++i) held[i] = i * i + threadIdx.x;
  int sum = 0;
  for (int i = 0; i < 16; ++i) sum = sum * 3 + held[order[i] * 5];
  out[threadIdx.x] = sum;
}

extern "C" __global__ void indexed_registers(const int* order, int* out) {
  int held[8];
  for (int i = 0; i < 8; ++i) held[i] = i * i + threadIdx.x;
  int sum = 0;
  for (int i = 0; i < 16; ++i) sum = sum * 3 + held[order[i] & 7];
  out[threadIdx.x] = sum;
}

// the first wave waits until the last one has written, without a barrier
extern "C" __global__ void handed_over(int* flag, int* out) {
  if (threadIdx.x == 0) {
    while (__hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP) == 0) {}
    out[0] = 5;
  }
  if (threadIdx.x == 255) __hip_atomic_store(flag, 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
}

extern "C" __global__ void counted(int* count) { atomicAdd(count, 1); }

__device__ __attribute__((noinline)) int number(int* count) { return atomicAdd(count, 1); }

// each workgroup overwrites what the one before it reads
extern "C" __global__ void shifted(const int* x, int* out) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  out[at] = x[at + blockDim.x];
}

extern "C" __global__ void shifted_by_number(const int* x, int* out, int* count) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  out[at] = x[at + blockDim.x] + (number(count) < 0);
}

extern "C" __global__ void half_norm(const _Float16* x, _Float16* out, int n) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < n) out[at] = x[at] * x[at] + (_Float16)0.5f * x[at] - (_Float16)1.0f;
}
"""
NAMES = (
    "gelu", "reversed", "reversed_without_barrier", "unwritten", "row_sums", "mix64", "divide", "doubles", "where",
    "called", "private_array", "indexed_registers", "handed_over", "half_norm",
    "counted", "shifted", "shifted_by_number",
)  # fmt: skip


@functools.cache
def compiled_hip(arch: str) -> bytes:
    """The code object with all of them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernels.hip").write_text(KERNELS, encoding="ascii")
        return build(Source(Path(folder), "kernels.hip"), Target("amd", arch), Options(), NAMES).code
