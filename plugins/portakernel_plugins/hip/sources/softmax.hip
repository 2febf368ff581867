// softmax: exp(x - max) / sum(exp(x - max)) of each row, computed in float32 and rounded once.
//
// Macros as in norms.hip. Infinities and NaN as the contract has them: a maximum leaves NaN out and is never below the
// lowest number, so that a row of -infinity sums to 0 and becomes 0 / 0, and NaN or infinity make the sum NaN.
#include "numbers.h"
#include "reduction.h"

constexpr int COUNT = ELEMENTS<ELEMENT>;
constexpr float LOWEST = -3.4028234663852886e38f;

DEVICE float exponential(float x) { return power_of_two(1.44269504088896340736f * x); }

DEVICE float largest(const Pack<ELEMENT, COUNT>& x, int left) {
    float found = LOWEST;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) found = i < left ? maximum(found, element(x, i)) : found;
    return found;
}

DEVICE float sum_of_exponentials(const Pack<ELEMENT, COUNT>& x, float m, int left) {
    float terms[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) terms[i] = i < left ? exponential(element(x, i) - m) : 0.0f;
    return pairwise_sum(terms);
}

DEVICE Pack<ELEMENT, COUNT> shares(const Pack<ELEMENT, COUNT>& x, float m, float scale) {
    float numbers[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) numbers[i] = exponential(element(x, i) - m) * scale;
    return pack<ELEMENT>(numbers);
}

#if PACKS
// Rows that stay in registers, as narrow as they are in memory.
extern "C" __global__ BLOCK_OF(THREADS) void softmax(
    const ELEMENT* x, ELEMENT* y, int64 rows, int64 columns, int64 x_stride, int64 y_stride) {
    static_assert(ROW_THREADS == THREADS || ROW_THREADS <= WARP_SIZE, "a row is within a warp, or the block's");
    const int lane = thread_number() % ROW_THREADS;
    const int64 row = block_number() * (THREADS / ROW_THREADS) + thread_number() / ROW_THREADS;
    const int width = row < rows ? static_cast<int>(columns) : 0;

    Held<Pack<ELEMENT, COUNT>, PACKS> held;
    float m = LOWEST;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int column = (p * ROW_THREADS + lane) * COUNT;
        held[p] = load<WHOLE, COUNT>(x + row * x_stride + column, width - column);
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        m = maximum(m, largest(held[p], existing<WHOLE, COUNT>(width - (p * ROW_THREADS + lane) * COUNT)));
    }
    m = over_row<ROW_THREADS, 0>(m, Larger());

    float total = 0.0f;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        forget(held[p].words);
        total += sum_of_exponentials(held[p], m, existing<WHOLE, COUNT>(width - (p * ROW_THREADS + lane) * COUNT));
    }
    const float scale = 1.0f / over_row<ROW_THREADS, 1>(total, Add());

    // Computed again: the exponentials would take two to four times the registers.
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int column = (p * ROW_THREADS + lane) * COUNT;
        forget(held[p].words);
        store<WHOLE>(y + row * y_stride + column, width - column, shares(held[p], m, scale));
    }
}
#else
// A longer row is one block's, read twice. Each thread has a maximum of its own, and the sum of exponentials below it
// (Milakov & Gimelshein 2018, arXiv 1805.02867).
extern "C" __global__ BLOCK_OF(THREADS) void softmax(
    const ELEMENT* x, ELEMENT* y, int64 rows, int64 columns, int64 x_stride, int64 y_stride) {
    const int lane = thread_number();
    const int64 row = block_number();
    const int width = row < rows ? static_cast<int>(columns) : 0;

    float mine = LOWEST;
    LongSum terms;
    for (int column = lane * COUNT; column < width; column += THREADS * COUNT) {
        const int left = existing<WHOLE, COUNT>(width - column);
        const Pack<ELEMENT, COUNT> found = load<WHOLE, COUNT>(x + row * x_stride + column, left);
        const float higher = largest(found, left);
        if (higher > mine) {
            const float factor = exponential(mine - higher);
            terms.total *= factor;
            terms.lost *= factor;
            mine = higher;
        }
        terms.add(sum_of_exponentials(found, mine, left));
    }
    const float m = over_row<THREADS, 0>(mine, Larger());
    const float total = over_row<THREADS, 1>(terms.total * exponential(mine - m), Add());
    const float scale = 1.0f / total;

    // From the end, because its end is what caches still hold.
    const int step = THREADS * COUNT;
    for (int column = (width - 1) / step * step + lane * COUNT; column >= 0; column -= step) {
        const int left = existing<WHOLE, COUNT>(width - column);
        const Pack<ELEMENT, COUNT> found = load<WHOLE, COUNT>(x + row * x_stride + column, left);
        store<WHOLE>(y + row * y_stride + column, left, shares(found, m, scale));
    }
}
#endif
