// NVIDIA: nvcc and NVRTC, sm_80 and later. NVRTC has no header but its own: what CUDA's headers would give is PTX here.
#pragma once

#define BLOCK_OF(threads) __launch_bounds__(threads)

constexpr int WARP_SIZE = 32;

#if __CUDA_ARCH__ >= 890
#define FLOAT8_INSTRUCTIONS_OCP 1
#endif

typedef uint4 Words4;
typedef uint2 Words2;

__device__ inline unsigned thread_number() { return threadIdx.x; }
__device__ inline unsigned block_x() { return blockIdx.x; }
__device__ inline unsigned block_y() { return blockIdx.y; }
__device__ inline void synchronize_block() { __syncthreads(); }

template <int MASK> __device__ inline unsigned exchanged_bits(unsigned x) {
    static_assert(MASK < WARP_SIZE, "lanes of one warp");
    return __shfl_xor_sync(0xFFFFFFFFu, x, MASK);
}

__device__ inline void opaque(unsigned& word) { asm volatile("" : "+r"(word)); }

__device__ inline float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ inline float maximum(float a, float b) { return fmaxf(a, b); }         // the other one's beside NaN
__device__ inline float square_root(float x) { return __fsqrt_rn(x); }            // rounded correctly
__device__ inline float power_of_two(float x) {                                   // within 2 ulp
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float reciprocal(float x) {                                     // within 1 ulp
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float from_float16(unsigned bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<unsigned short>(bits)));
    return x;
}
__device__ inline unsigned to_float16(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ inline unsigned to_bfloat16(float x) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ inline unsigned to_float16_pair(float low, float high) {
    unsigned bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
__device__ inline unsigned to_bfloat16_pair(float low, float high) {
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

#if FLOAT8_INSTRUCTIONS_OCP
// Two float8 codes, rounded to nearest, ties to even, and clamped.
__device__ inline unsigned to_e4m3_pair(float low, float high) {
    unsigned short codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
}
__device__ inline unsigned to_e5m2_pair(float low, float high) {
    unsigned short codes;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
}
#endif
