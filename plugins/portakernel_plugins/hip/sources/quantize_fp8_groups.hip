// quantize_fp8 where the elements that share a scale are neighbours in a row: all of it, or GROUP of them.
//
// ELEMENT: float32, float16 or bfloat16. FORMAT: a float8 dtype. THREADS of a block, ROW_THREADS of a group, PACKS a
// thread holds of it (0: the group, a row, is read again instead). WHOLE: packs are aligned, and no row ends within
// one.
#include "float8.h"
#include "reduction.h"

constexpr int COUNT = ELEMENTS<ELEMENT>;
static_assert(ROW_THREADS == THREADS || ROW_THREADS <= WARP_SIZE, "a group is within a warp, or the block's");

// q is contiguous. `groups` in all, `groups_of_row` of at most `group` elements in each row.
extern "C" __global__ BLOCK_OF(THREADS) void quantize_fp8_groups(
    const ELEMENT* x, unsigned char* q, float* scale, int64 groups, int64 groups_of_row, int64 group, int64 columns,
    int64 x_stride) {
    const int lane = thread_number() % ROW_THREADS;
    const int64 number = block_number() * (THREADS / ROW_THREADS) + thread_number() / ROW_THREADS;
    const int64 row = quotient(number, static_cast<unsigned>(groups_of_row));
    const int64 first = (number - row * groups_of_row) * group;
    const int64 rest = columns - first;
    const int width = number < groups ? static_cast<int>(rest < group ? rest : group) : 0;
    const ELEMENT* const from = x + row * x_stride + first;
    unsigned char* const to = q + row * columns + first;

    unsigned largest = 0;
#if PACKS
    Held<Pack<ELEMENT, COUNT>, PACKS> held;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int column = (p * ROW_THREADS + lane) * COUNT;
        held[p] = load<WHOLE, COUNT>(from + column, width - column);
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const unsigned here = largest_magnitude(held[p]);
        largest = here > largest ? here : largest;
    }
    const float s = scale_of<FORMAT>(over_row<ROW_THREADS, 0>(largest, Larger()));
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int column = (p * ROW_THREADS + lane) * COUNT;
        forget(held[p].words);
        store_codes<WHOLE>(to + column, width - column, quantized<FORMAT>(held[p], s));
    }
#else
    for (int column = lane * COUNT; column < width; column += THREADS * COUNT) {
        const unsigned here = largest_magnitude(load<WHOLE, COUNT>(from + column, width - column));
        largest = here > largest ? here : largest;
    }
    const float s = scale_of<FORMAT>(over_row<ROW_THREADS, 0>(largest, Larger()));
    // From the end, because its end is what caches still hold.
    const int step = THREADS * COUNT;
    for (int column = (width - 1) / step * step + lane * COUNT; column >= 0; column -= step) {
        const int left = width - column;
        store_codes<WHOLE>(to + column, left, quantized<FORMAT>(load<WHOLE, COUNT>(from + column, left), s));
    }
#endif
    if (lane == 0 && number < groups) scale[number] = s;
}
