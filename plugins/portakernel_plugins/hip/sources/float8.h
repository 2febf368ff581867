// float8 codes and the float32 scales that give the numbers back.
//
//     scale = amax(abs(x)) / largest(format)      of the elements that share it; 1 below 2**-100
//     q     = x / scale                           rounded to nearest, ties to even
#pragma once

#include "numbers.h"

enum Float8 { float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz };

DEVICE constexpr bool has_e4m3(Float8 format) { return format == float8_e4m3fn || format == float8_e4m3fnuz; }
DEVICE constexpr bool is_fnuz(Float8 format) { return format == float8_e4m3fnuz || format == float8_e5m2fnuz; }
DEVICE constexpr float largest_number(Float8 format) {
    return !has_e4m3(format) ? 57344.0f : is_fnuz(format) ? 240.0f : 448.0f;
}

// Whether this architecture has instructions that convert to the format.
DEVICE constexpr bool has_instructions(Float8 format) {
#if FLOAT8_INSTRUCTIONS_FNUZ
    return is_fnuz(format);
#elif FLOAT8_INSTRUCTIONS_OCP
    return !is_fnuz(format);
#else
    return false;
#endif
}

// The bits of abs(x): ordered as magnitudes are, above them infinity, and above that NaN.
DEVICE unsigned magnitude(float x) { return bits_of(x) & 0x7FFFFFFF; }

template <typename T, int COUNT> DEVICE unsigned largest_magnitude(const Pack<T, COUNT>& x) {
    unsigned found = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const unsigned here = magnitude(element(x, i));
        found = here > found ? here : found;
    }
    return found;
}

// The scale of elements of which the largest magnitude is this; NaN where one of them is not finite.
template <Float8 Format> DEVICE float scale_of(unsigned largest) {
    const float scale = float_of(largest >= 0x7F800000 ? 0x7FC00000 : largest) / largest_number(Format);
    return scale < 7.888609052210118e-31f ? 1.0f : scale;  // 2**-100
}

// The code of a number by integer arithmetic, for architectures without an instruction.
template <Float8 Format> DEVICE unsigned code_of(float x) {
    constexpr int KEPT = has_e4m3(Format) ? 3 : 2;
    constexpr int BIAS = (has_e4m3(Format) ? 7 : 15) + (is_fnuz(Format) ? 1 : 0);
    constexpr int CUT = 23 - KEPT;
    const unsigned size = magnitude(x), top = bits_of(largest_number(Format));
    const unsigned clamped = size < top ? size : top;
    // Half of what is cut off, less one where the last bit kept is even: rounds to nearest, ties to even.
    const unsigned normal =
        (clamped + ((1u << (CUT - 1)) - 1) + (clamped >> CUT & 1)) / (1u << CUT) - ((127 - BIAS) << KEPT);
    // The sum's last bit is worth what that of the format's subnormal numbers is: the addition rounds.
    constexpr int POWER = 24 - BIAS - KEPT;
    constexpr unsigned POWER_BITS = (127u + POWER) << 23;
    const unsigned subnormal = bits_of(float_of(clamped) + float_of(POWER_BITS)) - POWER_BITS;
    unsigned code = clamped < ((128u - BIAS) << 23) ? subnormal : normal;
    if (size > 0x7F800000) return is_fnuz(Format) ? 0x80 : 0x7F;
    // What would be negative zero is NaN in the FNUZ formats.
    if (!is_fnuz(Format) || code != 0) code |= bits_of(x) >> 24 & 0x80;
    return code;
}

// The codes of two numbers, the first in the low byte. None is beyond the format's largest by more than rounding.
template <Float8 Format> DEVICE unsigned pair_of_codes(float low, float high) {
    if constexpr (!has_instructions(Format)) {
        return code_of<Format>(low) | code_of<Format>(high) << 8;
    } else {
#if FLOAT8_INSTRUCTIONS_FNUZ || FLOAT8_INSTRUCTIONS_OCP
        if constexpr (has_e4m3(Format)) return to_e4m3_pair(low, high);
        return to_e5m2_pair(low, high);
#endif
    }
}

// A pack's elements divided by `scale`, as codes: COUNT bytes.
//
// The quotient is IEEE 754's (Markstein's theorem): the remainder of the approximate quotient is exact, and corrects
// it, where neither underflows; tiny quotients are zero in all formats.
template <Float8 Format, typename T, int COUNT>
DEVICE Pack<unsigned char, COUNT> quantized(const Pack<T, COUNT>& x, float scale) {
    const float inverse = 1.0f / scale;
    float numbers[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const float given = element(x, i), near = given * inverse;
        numbers[i] = fused(fused(-near, scale, given), inverse, near);
    }
    Pack<unsigned char, COUNT> codes;
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        codes.words[i / 4] = pair_of_codes<Format>(numbers[i], numbers[i + 1]) |
                             pair_of_codes<Format>(numbers[i + 2], numbers[i + 3]) << 16;
    }
    return codes;
}

// As `store`: COUNT codes, aligned to as many bytes where Whole.
template <bool Whole, int COUNT>
DEVICE void store_codes(unsigned char* at, int64 left, const Pack<unsigned char, COUNT>& codes) {
    if constexpr (Whole) {
        if (left > 0) write_words<COUNT / 4>(at, codes.words);
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (i < left) at[i] = static_cast<unsigned char>(codes.words[i / 4] >> i % 4 * 8);
        }
    }
}
