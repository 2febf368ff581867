// quantize_fp8 where a whole tensor shares a scale: that of the `parts` which largest_magnitudes.hip left. Macros as in
// quantize_fp8_groups.hip; PACKS a thread quantises.
#include "float8.h"
#include "reduction.h"

constexpr int COUNT = ELEMENTS<ELEMENT>;

extern "C" __global__ BLOCK_OF(THREADS) void quantize_fp8_tensor(
    const ELEMENT* x, unsigned char* q, float* scale, const unsigned* parts, int64 count, int64 rows, int64 columns,
    int64 x_stride, int64 packs_of_row, int64 blocks) {
    // The tensor's end was read last, and may still be cached.
    const int64 block = blocks - 1 - block_number();
    const int64 first = block * (THREADS * PACKS) + thread_number();
    Held<Pack<ELEMENT, COUNT>, PACKS> held;
    int64 to[PACKS], left[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int64 at = first + p * THREADS;
        const int64 row = rows == 1 || at < 0 ? 0 : quotient(at, static_cast<unsigned>(packs_of_row));
        const int64 column = (at - row * packs_of_row) * COUNT;
        to[p] = row * columns + column;
        left[p] = block >= 0 && row < rows ? columns - column : 0;
        held[p] = load<WHOLE, COUNT>(x + row * x_stride + column, left[p]);
    }
    unsigned largest = 0;
    for (int64 part = thread_number(); part < count; part += THREADS) {
        largest = parts[part] > largest ? parts[part] : largest;
    }
    const float s = scale_of<FORMAT>(over_row<THREADS, 0>(largest, Larger()));
#pragma unroll
    for (int p = 0; p < PACKS; ++p) store_codes<WHOLE>(q + to[p], left[p], quantized<FORMAT>(held[p], s));
    if (thread_number() == 0 && block == 0) scale[0] = s;
}
