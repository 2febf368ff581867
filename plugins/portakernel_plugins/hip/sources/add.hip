// add: x + y, computed in float32 and rounded once.
//
// ELEMENT: float32, float16 or bfloat16. THREADS of a block, PACKS that each of them adds. WHOLE: all three tensors
// begin at a multiple of 16 bytes.
#include "numbers.h"

constexpr int COUNT = ELEMENTS<ELEMENT>;

DEVICE Pack<ELEMENT, COUNT> sum(const Pack<ELEMENT, COUNT>& a, const Pack<ELEMENT, COUNT>& b) {
    float numbers[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) numbers[i] = element(a, i) + element(b, i);
    return pack<ELEMENT>(numbers);
}

extern "C" __global__ BLOCK_OF(THREADS) void add(const ELEMENT* x, const ELEMENT* y, ELEMENT* out, int64 elements) {
    const int64 first = (block_number() * (THREADS * PACKS) + thread_number()) * COUNT;
    Held<Pack<ELEMENT, COUNT>, PACKS> a, b;
    // All is read before anything is written: more is on its way at once, and `out` may be an input.
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int64 at = first + p * (THREADS * COUNT), left = elements - at;
        if (WHOLE && left >= COUNT) {
            a[p] = load<true, COUNT>(x + at, left);
            b[p] = load<true, COUNT>(y + at, left);
        } else {
            a[p] = load<false, COUNT>(x + at, left);
            b[p] = load<false, COUNT>(y + at, left);
        }
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int64 at = first + p * (THREADS * COUNT), left = elements - at;
        const Pack<ELEMENT, COUNT> found = sum(a[p], b[p]);
        if (WHOLE && left >= COUNT) {
            store<true>(out + at, left, found);
        } else {
            store<false>(out + at, left, found);
        }
    }
}
