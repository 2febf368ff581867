// Sums and maxima over the threads of a row, equal in all of them. The order is that of the threads: results are
// deterministic, and do not depend on what other rows there are.
#pragma once

#include "portability.h"

struct Add {
    DEVICE float operator()(float a, float b) const { return a + b; }
};
struct Larger {
    DEVICE float operator()(float a, float b) const { return maximum(a, b); }
    DEVICE unsigned operator()(unsigned a, unsigned b) const { return a > b ? a : b; }
};

template <int LANES, int MASK = 1, typename Value, typename Operation>
DEVICE Value over_lanes(Value mine, Operation operation) {
    if constexpr (MASK < LANES) {
        mine = operation(mine, exchanged<MASK>(mine));
        return over_lanes<LANES, MASK * 2>(mine, operation);
    } else {
        return mine;
    }
}

// `operation` over what the Threads threads of a row hold, Threads being a power of two: several rows share a warp, or
// one row is the block's. Each call in a kernel has a SLOT of its own, so that one barrier is enough.
template <int Threads, int SLOT, typename Value, typename Operation>
DEVICE Value over_row(Value mine, Operation operation) {
    if constexpr (Threads <= WARP_SIZE) {
        return over_lanes<Threads>(mine, operation);
    } else {
        constexpr int WARPS = Threads / WARP_SIZE;
        __shared__ Value parts[WARPS];
        mine = over_lanes<WARP_SIZE>(mine, operation);
        if (thread_number() % WARP_SIZE == 0) parts[thread_number() / WARP_SIZE] = mine;
        synchronize_block();
        Value all = parts[0];
#pragma unroll
        for (int warp = 1; warp < WARPS; ++warp) all = operation(all, parts[warp]);
        return all;
    }
}

// The sum of neighbours, of their sums, and so on: the error grows with the logarithm of their number.
template <int COUNT> DEVICE float pairwise_sum(const float (&numbers)[COUNT]) {
    float sums[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = numbers[i];
#pragma unroll
    for (int width = COUNT / 2; width > 0; width /= 2) {
#pragma unroll
        for (int i = 0; i < width; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
    }
    return sums[0];
}

// A sum that keeps what rounding takes off (Kahan 1965): rows that are read in many steps lose no digits by it. Beside
// an infinite total nothing is kept, or NaN would follow from it.
struct LongSum {
    float total = 0.0f, lost = 0.0f;

    DEVICE void add(float number) {
        const float corrected = number - lost;
        const float sum = total + corrected;
        lost = (sum - total) - corrected;
        if (!(lost - lost == 0.0f)) lost = 0.0f;
        total = sum;
    }
};
