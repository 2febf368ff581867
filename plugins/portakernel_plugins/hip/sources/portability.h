// One name for what AMD's compilers, NVIDIA's and a CPU's call differently. No header of a vendor is needed, so that
// clang alone compiles for AMD, and NVRTC and HIPRTC need no include paths.
//
// Lanes, barriers, exchanges between lanes, and the arithmetic that is an instruction on each vendor's GPUs.
#pragma once

typedef long long int64;
static_assert(sizeof(int64) == 8 && sizeof(unsigned) == 4, "offsets are 64 bits wide, words 32");

// A grid is at most this wide; what is more goes into its second dimension. HIP bounds blocks times threads to 2**32 in
// each dimension.
constexpr int64 GRID_WIDTH = 1 << 20;

#if defined(EMULATED)
#include "emulator.h"
#elif defined(__HIP__)
#include "portability_amd.h"
#elif defined(__CUDACC__)
#include "portability_nvidia.h"
#else
#error "portability.h knows HIP (clang -x hip, HIPRTC), CUDA (nvcc, NVRTC) and, with -DEMULATED, a CPU's C++ compiler"
#endif

// COUNT packs in a thread's registers: an array, and in the emulator one whose indices are checked (accesses.h).
#if !defined(EMULATED)
template <typename Value, int COUNT> using Held = Value[COUNT];
#endif

// Functions that run on the device, and are part of the kernel that calls them.
#define DEVICE __device__ inline __attribute__((always_inline))

DEVICE unsigned bits_of(float x) { return __builtin_bit_cast(unsigned, x); }
DEVICE float float_of(unsigned bits) { return __builtin_bit_cast(float, bits); }

// This block's number in a grid whose rows are GRID_WIDTH long.
DEVICE int64 block_number() { return int64(block_y()) * GRID_WIDTH + block_x(); }

// The lane's partner in a butterfly over lanes: lane ^ MASK, where lanes that differ below MASK already agree.
template <int MASK> DEVICE float exchanged(float x) { return float_of(exchanged_bits<MASK>(bits_of(x))); }
template <int MASK> DEVICE unsigned exchanged(unsigned x) { return exchanged_bits<MASK>(x); }

// The quotient rounded down. Dividing 64 bits costs many times more than 32, and is rarely needed.
DEVICE int64 quotient(int64 dividend, unsigned divisor) {
    return dividend >> 32 ? dividend / divisor : int64(unsigned(dividend) / divisor);
}

// What follows is computed from `words` as they are in registers: the compiler keeps no number made of them before.
template <int COUNT> DEVICE void forget(unsigned (&words)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) opaque(words[i]);
}
