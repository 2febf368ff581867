// quantize_fp8 where squares of 128 times 128 share a scale: one to a block, which holds it. Macros as in
// quantize_fp8_groups.hip.
#include "float8.h"
#include "reduction.h"

constexpr int COUNT = ELEMENTS<ELEMENT>;
constexpr int SIDE = 128;
constexpr int ACROSS = SIDE / COUNT;                   // threads along a square's row
constexpr int DOWN = THREADS / ACROSS;                 // rows at once
constexpr int HELD = SIDE / DOWN;
static_assert(THREADS % ACROSS == 0 && SIDE % DOWN == 0, "threads take whole rows of a square");

extern "C" __global__ BLOCK_OF(THREADS) void quantize_fp8_squares(
    const ELEMENT* x, unsigned char* q, float* scale, int64 rows, int64 columns, int64 x_stride, int64 squares_across) {
    const int64 number = block_number();
    const int64 down = quotient(number, static_cast<unsigned>(squares_across));
    const int64 first_row = down * SIDE + thread_number() / ACROSS;
    const int64 column = (number - down * squares_across) * SIDE + thread_number() % ACROSS * COUNT;
    // Blocks beyond the last square have no rows.
    const int64 left = columns - column;

    Held<Pack<ELEMENT, COUNT>, HELD> held;
    unsigned largest = 0;
#pragma unroll
    for (int p = 0; p < HELD; ++p) {
        const int64 row = first_row + p * DOWN;
        held[p] = load<WHOLE, COUNT>(x + row * x_stride + column, row < rows ? left : 0);
    }
#pragma unroll
    for (int p = 0; p < HELD; ++p) {
        const unsigned here = largest_magnitude(held[p]);
        largest = here > largest ? here : largest;
    }
    const float s = scale_of<FORMAT>(over_row<THREADS, 0>(largest, Larger()));
#pragma unroll
    for (int p = 0; p < HELD; ++p) {
        const int64 row = first_row + p * DOWN;
        forget(held[p].words);
        store_codes<WHOLE>(q + row * columns + column, row < rows ? left : 0, quantized<FORMAT>(held[p], s));
    }
    if (thread_number() == 0 && down * SIDE < rows) scale[number] = s;
}
