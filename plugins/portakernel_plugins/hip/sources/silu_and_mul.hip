// silu_and_mul: y = gate * sigmoid(gate) * up, where a row of x is gate and then up.
//
// ELEMENT: float32, float16 or bfloat16. THREADS of a block; of shorter rows, ROW_THREADS take one each, of a longer
// one a block takes a part of THREADS * PACKS packs. WHOLE: packs are aligned, and neither half ends within one.
#include "numbers.h"

constexpr int COUNT = ELEMENTS<ELEMENT>;

DEVICE float silu(float gate) {
    // exp(-gate), which is infinite far below zero: gate / infinity is zero there, and NaN at -infinity
    const float away = power_of_two(-1.44269504088896340736f * gate);
    return gate * reciprocal(1.0f + away);
}

extern "C" __global__ BLOCK_OF(THREADS) void silu_and_mul(
    const ELEMENT* x, ELEMENT* y, int64 rows, int64 columns, int64 x_stride, int64 y_stride, int64 blocks_of_row) {
    const int64 block = block_number();
    const int64 part_of = quotient(block, static_cast<unsigned>(blocks_of_row));
    const int64 row = part_of * (THREADS / ROW_THREADS) + thread_number() / ROW_THREADS;
    const int part = static_cast<int>(block - part_of * blocks_of_row);
    const int first = (part * (ROW_THREADS * PACKS) + thread_number() % ROW_THREADS) * COUNT;
    const int width = row < rows ? static_cast<int>(columns) : 0;

    Held<Pack<ELEMENT, COUNT>, PACKS> gates, ups;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int column = first + p * (ROW_THREADS * COUNT);
        const ELEMENT* const at = x + row * x_stride + column;
        gates[p] = load<WHOLE, COUNT>(at, width - column);
        ups[p] = load<WHOLE, COUNT>(at + columns, width - column);
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int column = first + p * (ROW_THREADS * COUNT);
        float numbers[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) numbers[i] = silu(element(gates[p], i)) * element(ups[p], i);
        store<WHOLE>(y + row * y_stride + column, width - column, pack<ELEMENT>(numbers));
    }
}
