// y = exp(x - max(x)) / sum(exp(x - max(x))) along a row, one work-item a row. A NaN or +inf makes the sum NaN, and so
// all of the row.
kernel void softmax(global const STORED(X) *x, global STORED(X) *y, ulong columns, ulong rows)
{
    size_t row = get_global_id(0);
    if (row >= rows)
        return;
    x += row * columns;
    y += row * columns;
    float8 largest = -INFINITY;
    size_t i = 0;
    for (; i + 8 <= columns; i += 8)
        largest = fmax(largest, LOAD8(X, i, x));
    float4 four = fmax(largest.lo, largest.hi);
    float2 two = fmax(four.lo, four.hi);
    float most = fmax(two.lo, two.hi);
    for (; i < columns; i++)
        most = fmax(most, LOAD(X, i, x));
    float8 terms = 0;
    for (i = 0; i + 8 <= columns; i += 8)
        terms += exp(LOAD8(X, i, x) - most);
    float sum = sum_of_lanes(terms);
    for (; i < columns; i++)
        sum += exp(LOAD(X, i, x) - most);
    for (i = 0; i + 8 <= columns; i += 8)
        STORE8(X, exp(LOAD8(X, i, x) - most) / sum, i, y);
    for (; i < columns; i++)
        STORE(X, exp(LOAD(X, i, x) - most) / sum, i, y);
}
