// rotary_embedding: pairs (a, b) of a head's first 2 * PAIRS elements are turned by the angles of their token's
// position.
//
//     a * cos - b * sin, b * cos + a * sin
//
// A pair is (x[i], x[PAIRS + i]) or, INTERLEAVED, (x[2i], x[2i + 1]); what lies beyond the pairs is copied. One launch
// serves queries and keys: a token's rows are its query heads, then its key heads, and neighbouring rows share its
// angles.
//
// ELEMENT of queries and keys, TABLE of cos and sin: float32, float16 or bfloat16. POSITION: int or int64; THREADS of a
// block, ROW_THREADS of a row. WHOLE: packs of elements are aligned, and neither the pairs nor the rest end within one.
#include "numbers.h"

constexpr int COUNT = ELEMENTS<ELEMENT>;
typedef Pack<ELEMENT, COUNT> Elements;
typedef Pack<TABLE, COUNT> Angles;

// Where the heads of queries or keys lie.
struct Heads {
    const ELEMENT* x;
    ELEMENT* y;
    int64 x_token_stride, x_head_stride, y_token_stride, y_head_stride;
    int rest;  // elements beyond the pairs that are to be copied
};

// Turns pairs in place of their registers.
DEVICE void turn(float (&a)[COUNT], float (&b)[COUNT], const Angles& cosines, const Angles& sines) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const float c = element(cosines, i), s = element(sines, i), first = a[i], second = b[i];
        a[i] = first * c - second * s;
        b[i] = second * c + first * s;
    }
}

// The pairs `pair` to `pair + COUNT - 1`, of which the first `left` exist.
DEVICE void turn_halves(const ELEMENT* x, ELEMENT* y, int pairs, int pair, int left, const Angles& c, const Angles& s) {
    float a[COUNT], b[COUNT];
    unpack(load<WHOLE, COUNT>(x + pair, left), a);
    unpack(load<WHOLE, COUNT>(x + pairs + pair, left), b);
    turn(a, b, c, s);
    store<WHOLE>(y + pair, left, pack<ELEMENT>(a));
    store<WHOLE>(y + pairs + pair, left, pack<ELEMENT>(b));
}

DEVICE void turn_neighbours(const ELEMENT* x, ELEMENT* y, int pair, int left, const Angles& c, const Angles& s) {
    float low[COUNT], high[COUNT], a[COUNT], b[COUNT];
    unpack(load<WHOLE, COUNT>(x + 2 * pair, 2 * left), low);
    unpack(load<WHOLE, COUNT>(x + 2 * pair + COUNT, 2 * left - COUNT), high);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        a[i] = i < COUNT / 2 ? low[2 * i % COUNT] : high[2 * i % COUNT];
        b[i] = i < COUNT / 2 ? low[2 * i % COUNT + 1] : high[2 * i % COUNT + 1];
    }
    turn(a, b, c, s);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        low[i] = i % 2 ? b[i / 2] : a[i / 2];
        high[i] = i % 2 ? b[COUNT / 2 + i / 2] : a[COUNT / 2 + i / 2];
    }
    store<WHOLE>(y + 2 * pair, 2 * left, pack<ELEMENT>(low));
    store<WHOLE>(y + 2 * pair + COUNT, 2 * left - COUNT, pack<ELEMENT>(high));
}

extern "C" __global__ BLOCK_OF(THREADS) void rotary_embedding(
    const TABLE* cos, const TABLE* sin, const POSITION* positions, const ELEMENT* q, const ELEMENT* k,
    ELEMENT* turned_q, ELEMENT* turned_k, int64 tokens, int64 length, int64 q_heads, int64 k_heads, int64 pairs,
    int64 q_rest, int64 k_rest, int64 q_token_stride, int64 q_head_stride, int64 k_token_stride, int64 k_head_stride,
    int64 turned_q_token_stride, int64 turned_q_head_stride, int64 turned_k_token_stride, int64 turned_k_head_stride,
    int64 cos_stride, int64 sin_stride, int64 position_stride) {
    const int lane = thread_number() % ROW_THREADS;
    const unsigned heads = static_cast<unsigned>(q_heads + k_heads);
    const int64 row = block_number() * (THREADS / ROW_THREADS) + thread_number() / ROW_THREADS;
    const int64 token = quotient(row, heads);
    if (token >= tokens) return;
    int64 head = row - token * heads;

    // Without positions a token's position is its index in the last leading dimension, which is `length` long.
    const int64 position = positions != nullptr ? static_cast<int64>(positions[token * position_stride])
                                                : token - quotient(token, static_cast<unsigned>(length)) * length;
    Heads of = {q, turned_q, q_token_stride, q_head_stride, turned_q_token_stride, turned_q_head_stride,
                static_cast<int>(q_rest)};
    if (head >= q_heads) {
        head -= q_heads;
        of = {k, turned_k, k_token_stride, k_head_stride, turned_k_token_stride, turned_k_head_stride,
              static_cast<int>(k_rest)};
    }
    const ELEMENT* const x = of.x + token * of.x_token_stride + head * of.x_head_stride;
    ELEMENT* const y = of.y + token * of.y_token_stride + head * of.y_head_stride;
    const int count = static_cast<int>(pairs);

    for (int pair = lane * COUNT; pair < count; pair += ROW_THREADS * COUNT) {
        const int left = count - pair;
        const Angles cosines = load<WHOLE, COUNT>(cos + position * cos_stride + pair, left);
        const Angles sines = load<WHOLE, COUNT>(sin + position * sin_stride + pair, left);
#if INTERLEAVED
        turn_neighbours(x, y, pair, left, cosines, sines);
#else
        turn_halves(x, y, count, pair, left, cosines, sines);
#endif
    }
    for (int beyond = lane * COUNT; beyond < of.rest; beyond += ROW_THREADS * COUNT) {
        const int at = 2 * count + beyond, left = of.rest - beyond;
        store<WHOLE>(y + at, left, load<WHOLE, COUNT>(x + at, left));
    }
}
