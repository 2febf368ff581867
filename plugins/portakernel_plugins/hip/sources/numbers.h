// Numbers as they lie in memory, float32 in between: packs of elements, which a thread reads and writes at once.
#pragma once

#include "portability.h"

// Storage alone: everything is computed in float.
struct float16 { unsigned short bits; };
struct bfloat16 { unsigned short bits; };
typedef float float32;

// Elements of T in 16 bytes, the widest access there is.
template <typename T> constexpr int ELEMENTS = 16 / sizeof(T);

// COUNT neighbouring elements in registers, as narrow as they are in memory.
template <typename T, int COUNT> struct Pack {
    static constexpr int WORDS = COUNT * int(sizeof(T)) / 4;
    unsigned words[WORDS];
};

DEVICE float widened(float x) { return x; }
DEVICE float widened(float16 x) { return from_float16(x.bits); }
DEVICE float widened(bfloat16 x) { return float_of(unsigned(x.bits) << 16); }

template <typename T> DEVICE T narrowed(float x);
template <> DEVICE float narrowed<float>(float x) { return x; }
template <> DEVICE float16 narrowed<float16>(float x) { return {static_cast<unsigned short>(to_float16(x))}; }
template <> DEVICE bfloat16 narrowed<bfloat16>(float x) { return {static_cast<unsigned short>(to_bfloat16(x))}; }

// Element `i` of a pack.
template <int COUNT> DEVICE float element(const Pack<float, COUNT>& pack, int i) { return float_of(pack.words[i]); }
template <int COUNT> DEVICE float element(const Pack<float16, COUNT>& pack, int i) {
    return from_float16(pack.words[i / 2] >> i % 2 * 16 & 0xFFFF);
}
template <int COUNT> DEVICE float element(const Pack<bfloat16, COUNT>& pack, int i) {
    return float_of(i % 2 ? pack.words[i / 2] & 0xFFFF0000 : pack.words[i / 2] << 16);
}

template <typename T, int COUNT> DEVICE void unpack(const Pack<T, COUNT>& pack, float (&numbers)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) numbers[i] = element(pack, i);
}

// A pack of numbers, each rounded to nearest, ties to even.
template <typename T> struct Packed;
template <> struct Packed<float> {
    template <int COUNT> static DEVICE void fill(const float (&numbers)[COUNT], unsigned* words) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) words[i] = bits_of(numbers[i]);
    }
};
template <> struct Packed<float16> {
    template <int COUNT> static DEVICE void fill(const float (&numbers)[COUNT], unsigned* words) {
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) words[i] = to_float16_pair(numbers[2 * i], numbers[2 * i + 1]);
    }
};
template <> struct Packed<bfloat16> {
    template <int COUNT> static DEVICE void fill(const float (&numbers)[COUNT], unsigned* words) {
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) words[i] = to_bfloat16_pair(numbers[2 * i], numbers[2 * i + 1]);
    }
};
template <typename T, int COUNT> DEVICE Pack<T, COUNT> pack(const float (&numbers)[COUNT]) {
    Pack<T, COUNT> found;
    Packed<T>::fill(numbers, found.words);
    return found;
}

// --- memory ----------------------------------------------------------------------------------------------------------

// Accesses of 4, 8 or 16 bytes.
template <int WORDS> DEVICE void read_words(const void* at, unsigned* words) {
    if constexpr (WORDS >= 4) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            const Words4 four = static_cast<const Words4*>(at)[i / 4];
            words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
        }
    } else if constexpr (WORDS == 2) {
        const Words2 two = *static_cast<const Words2*>(at);
        words[0] = two.x, words[1] = two.y;
    } else {
        words[0] = *static_cast<const unsigned*>(at);
    }
}

template <int WORDS> DEVICE void write_words(void* at, const unsigned* words) {
    if constexpr (WORDS >= 4) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            static_cast<Words4*>(at)[i / 4] = Words4{words[i], words[i + 1], words[i + 2], words[i + 3]};
        }
    } else if constexpr (WORDS == 2) {
        *static_cast<Words2*>(at) = Words2{words[0], words[1]};
    } else {
        *static_cast<unsigned*>(at) = words[0];
    }
}

// Of a pack, how many elements exist where `left` of the row do: said so that Whole leaves one question for all.
template <bool Whole, int COUNT> DEVICE int existing(int left) {
    return Whole ? (left > 0 ? COUNT : 0) : left;
}

// The pack at `at`, of whose elements the first `left` exist; the others are zero.
//
// Whole: packs exist whole or not at all, and are aligned to their size or 16 bytes. Else elements are read one by one,
// each by the thread that owns it in the other case too: a sum's order does not depend on where a tensor begins.
template <bool Whole, int COUNT, typename T> DEVICE Pack<T, COUNT> load(const T* at, int64 left) {
    Pack<T, COUNT> found = {};
    if constexpr (Whole) {
        if (left > 0) read_words<Pack<T, COUNT>::WORDS>(at, found.words);
    } else {
        float numbers[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) numbers[i] = i < left ? widened(at[i]) : 0.0f;
        found = pack<T>(numbers);
    }
    return found;
}

template <bool Whole, int COUNT, typename T> DEVICE void store(T* at, int64 left, const Pack<T, COUNT>& given) {
    if constexpr (Whole) {
        if (left > 0) write_words<Pack<T, COUNT>::WORDS>(at, given.words);
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (i < left) at[i] = narrowed<T>(element(given, i));
        }
    }
}
