// The largest magnitude, as bits, in each of `blocks` parts of a tensor, for a scale that all of it shares. No atomics:
// whatever the order, the largest of the largest is the same. Macros as in quantize_fp8_groups.hip; PACKS at once.
#include "float8.h"
#include "reduction.h"

constexpr int COUNT = ELEMENTS<ELEMENT>;

extern "C" __global__ BLOCK_OF(THREADS) void largest_magnitudes(
    const ELEMENT* x, unsigned* parts, int64 rows, int64 columns, int64 x_stride, int64 packs_of_row, int64 blocks) {
    const int64 packs = rows * packs_of_row;
    unsigned largest = 0;
    for (int64 first = block_number() * (THREADS * PACKS) + thread_number(); first < packs;
         first += blocks * (THREADS * PACKS)) {
        Held<Pack<ELEMENT, COUNT>, PACKS> found;
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            const int64 at = first + p * THREADS;
            const int64 row = rows == 1 ? 0 : quotient(at, static_cast<unsigned>(packs_of_row));
            const int64 column = (at - row * packs_of_row) * COUNT;
            found[p] = load<WHOLE, COUNT>(x + row * x_stride + column, row < rows ? columns - column : 0);
        }
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            const unsigned here = largest_magnitude(found[p]);
            largest = here > largest ? here : largest;
        }
    }
    largest = over_row<THREADS, 0>(largest, Larger());
    if (thread_number() == 0 && block_number() < blocks) parts[block_number()] = largest;
}
