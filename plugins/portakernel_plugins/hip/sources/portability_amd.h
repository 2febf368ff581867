// AMD: clang's own names, which hipcc, HIPRTC and a plain `clang -x hip` share.
#pragma once

// A product and a sum are one fma where one expression has both, as the source says it, and nowhere else: HIP's default
// lets the optimizer choose, and a row's bits were others where it was read in whole packs.
#pragma clang fp contract(on)

#ifndef __global__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#endif
#define BLOCK_OF(threads) __attribute__((amdgpu_flat_work_group_size(threads, threads)))

#if defined(__GFX9__)
constexpr int WARP_SIZE = 64;
#else
constexpr int WARP_SIZE = 32;
#endif

// Where instructions convert float32 to float8, and to which kind.
#if defined(__gfx942__)
#define FLOAT8_INSTRUCTIONS_FNUZ 1
#elif defined(__gfx950__) || defined(__GFX12__)
#define FLOAT8_INSTRUCTIONS_OCP 1
#endif

typedef unsigned Words4 __attribute__((ext_vector_type(4)));
typedef unsigned Words2 __attribute__((ext_vector_type(2)));

__device__ inline unsigned thread_number() { return __builtin_amdgcn_workitem_id_x(); }
__device__ inline unsigned block_x() { return __builtin_amdgcn_workgroup_id_x(); }
__device__ inline unsigned block_y() { return __builtin_amdgcn_workgroup_id_y(); }

__device__ inline void synchronize_block() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// Up to 8 the exchange is a modifier of a move (DPP); a mirror serves as well as an exclusive or, because lanes that
// differ below MASK agree.
template <int MASK> __device__ inline unsigned exchanged_bits(unsigned x) {
    static_assert(MASK < WARP_SIZE, "lanes of one wavefront");
    constexpr int QUAD_1032 = 0xB1, QUAD_2301 = 0x4E, ROW_MIRROR = 0x140, ROW_HALF_MIRROR = 0x141;
    if constexpr (MASK <= 8) {
        constexpr int QUAD = MASK == 1 ? QUAD_1032 : QUAD_2301;
        constexpr int PATTERN = MASK <= 2 ? QUAD : MASK == 4 ? ROW_HALF_MIRROR : ROW_MIRROR;
        return unsigned(__builtin_amdgcn_mov_dpp(int(x), PATTERN, 0xF, 0xF, true));
    } else if constexpr (MASK == 16) {
        return unsigned(__builtin_amdgcn_ds_swizzle(int(x), MASK << 10 | 0x1F));
    } else {
        return unsigned(__builtin_amdgcn_ds_bpermute(int((thread_number() ^ MASK) * 4), int(x)));
    }
}

__device__ inline void opaque(unsigned& word) { asm volatile("" : "+v"(word)); }

__device__ inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__device__ inline float maximum(float a, float b) { return __builtin_fmaxf(a, b); }  // the other one's beside NaN
__device__ inline float square_root(float x) { return __builtin_sqrtf(x); }          // rounded correctly
__device__ inline float power_of_two(float x) { return __builtin_amdgcn_exp2f(x); }  // within 1 ulp
__device__ inline float reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }     // within 1 ulp

__device__ inline float from_float16(unsigned bits) {
    return float(__builtin_bit_cast(_Float16, static_cast<unsigned short>(bits)));
}
__device__ inline unsigned to_float16(float x) {
    // LLVM 22 makes one v_fma_mixlo_f16 of a product and its rounding, whose addend of +0 turns a product of -0 into +0
    // (llvm/llvm-project#214544): the rounding is kept apart from what x comes from.
    asm("" : "+v"(x));
    return __builtin_bit_cast(unsigned short, static_cast<_Float16>(x));
}
__device__ inline unsigned to_bfloat16(float x) { return __builtin_bit_cast(unsigned short, static_cast<__bf16>(x)); }
__device__ inline unsigned to_float16_pair(float low, float high) { return to_float16(low) | to_float16(high) << 16; }
__device__ inline unsigned to_bfloat16_pair(float low, float high) {
    return to_bfloat16(low) | to_bfloat16(high) << 16;
}

#if FLOAT8_INSTRUCTIONS_FNUZ || FLOAT8_INSTRUCTIONS_OCP
// Two float8 codes, rounded to nearest, ties to even; what is beyond the largest number is not clamped.
__device__ inline unsigned to_e4m3_pair(float low, float high) {
    return unsigned(__builtin_amdgcn_cvt_pk_fp8_f32(low, high, 0, false)) & 0xFFFF;
}
__device__ inline unsigned to_e5m2_pair(float low, float high) {
    return unsigned(__builtin_amdgcn_cvt_pk_bf8_f32(low, high, 0, false)) & 0xFFFF;
}
#endif
