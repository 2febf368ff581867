// Each head's pairs (a, b) become (a * cos - b * sin, b * cos + a * sin), one work-item a token; W is the storage of the
// tables cos and sin: (positions, pairs).

void turned(global const STORED(X) *x, global STORED(X) *out, global const STORED(W) *cosines,
            global const STORED(W) *sines, ulong heads, ulong width, ulong pairs)
{
    for (size_t head = 0; head < heads; head++, x += width, out += width) {
        for (size_t pair = 0; pair < pairs; pair++) {
#ifdef INTERLEAVED
            size_t first = 2 * pair, second = first + 1;
#else
            size_t first = pair, second = pairs + pair;
#endif
            float a = LOAD(X, first, x), b = LOAD(X, second, x);
            float c = LOAD(W, pair, cosines), s = LOAD(W, pair, sines);
            STORE(X, a * c - b * s, first, out);
            STORE(X, b * c + a * s, second, out);
        }
        for (size_t i = 2 * pairs; i < width; i++)
            STORE(X, LOAD(X, i, x), i, out);
    }
}

kernel void rotary_embedding(global const STORED(X) *q, global const STORED(X) *k, global const long *positions,
                             global STORED(X) *rotated_q, global STORED(X) *rotated_k, global const STORED(W) *cosines,
                             global const STORED(W) *sines, ulong q_heads, ulong k_heads, ulong width, ulong pairs,
                             ulong tokens)
{
    size_t token = get_global_id(0);
    if (token >= tokens)
        return;
    cosines += positions[token] * pairs;
    sines += positions[token] * pairs;
    size_t first_q = token * q_heads * width, first_k = token * k_heads * width;
    turned(q + first_q, rotated_q + first_q, cosines, sines, q_heads, width, pairs);
    turned(k + first_k, rotated_k + first_k, cosines, sines, k_heads, width, pairs);
}
