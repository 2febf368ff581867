// y = (x - top) / temperature - rest with top = max(x) and rest = log(sum(exp((x - top) / temperature))) along a row,
// one work-item a row. Both are kept for the gradient: their sum would lose the digits that a probability needs.

// Elements are summed in groups, and the groups then, because the error of a sum grows with the number of its terms.
#define GROUP 512

float largest(global const STORED(X) *x, ulong columns)
{
    float8 lanes = -INFINITY;
    size_t i = 0;
    for (; i + 8 <= columns; i += 8)
        lanes = fmax(lanes, LOAD8(X, i, x));
    float4 four = fmax(lanes.lo, lanes.hi);
    float2 two = fmax(four.lo, four.hi);
    float most = fmax(two.lo, two.hi);
    for (; i < columns; i++)
        most = fmax(most, LOAD(X, i, x));
    return most;
}

float sum_of_exponentials(global const STORED(X) *x, float most, float temperature, ulong columns)
{
    float sum = 0, rest = 0;
    size_t i = 0;
    for (; i + GROUP <= columns; i += GROUP) {
        float8 lanes = 0;
        for (size_t j = i; j < i + GROUP; j += 8)
            lanes += exp((LOAD8(X, j, x) - most) / temperature);
        sum += sum_of_lanes(lanes);
    }
    float8 lanes = 0;
    for (; i + 8 <= columns; i += 8)
        lanes += exp((LOAD8(X, i, x) - most) / temperature);
    for (; i < columns; i++)
        rest += exp((LOAD(X, i, x) - most) / temperature);
    return sum + sum_of_lanes(lanes) + rest;
}

float sum_of(global const STORED(X) *x, ulong columns)
{
    float sum = 0, rest = 0;
    size_t i = 0;
    for (; i + GROUP <= columns; i += GROUP) {
        float8 lanes = 0;
        for (size_t j = i; j < i + GROUP; j += 8)
            lanes += LOAD8(X, j, x);
        sum += sum_of_lanes(lanes);
    }
    float8 lanes = 0;
    for (; i + 8 <= columns; i += 8)
        lanes += LOAD8(X, i, x);
    for (; i < columns; i++)
        rest += LOAD(X, i, x);
    return sum + sum_of_lanes(lanes) + rest;
}

// The row's maximum is subtracted first, so that nothing overflows; a NaN or +inf makes the sum NaN, and so all of the
// row.
kernel void log_softmax(global const STORED(X) *x, global STORED(X) *y, global float *top, global float *rest,
                        float temperature, ulong columns, ulong rows)
{
    size_t row = get_global_id(0);
    if (row >= rows)
        return;
    x += row * columns;
    y += row * columns;
    float most = largest(x, columns);
    // the sum is at least 1, close to which a driver's log has few digits
    float sum = log1p(sum_of_exponentials(x, most, temperature, columns) - 1);
    top[row] = isnan(sum) ? sum : most;
    rest[row] = sum;
    size_t i = 0;
    for (; i + 8 <= columns; i += 8)
        STORE8(X, (LOAD8(X, i, x) - most) / temperature - sum, i, y);
    for (; i < columns; i++)
        STORE(X, (LOAD(X, i, x) - most) / temperature - sum, i, y);
}

// grad_x = (g - p * sum(g)) / temperature with g = grad_y and the probabilities
// p = exp((x - top) / temperature - rest).
kernel void log_softmax_backward(global const STORED(X) *grad_y, global const STORED(X) *x, global const float *top,
                                 global const float *rest, global STORED(X) *grad_x, float temperature, ulong columns,
                                 ulong rows)
{
    size_t row = get_global_id(0);
    if (row >= rows)
        return;
    grad_y += row * columns;
    x += row * columns;
    grad_x += row * columns;
    float sum = sum_of(grad_y, columns);
    size_t i = 0;
    for (; i + 8 <= columns; i += 8) {
        float8 p = exp((LOAD8(X, i, x) - top[row]) / temperature - rest[row]);
        STORE8(X, (LOAD8(X, i, grad_y) - p * sum) / temperature, i, grad_x);
    }
    for (; i < columns; i++) {
        float p = exp((LOAD(X, i, x) - top[row]) / temperature - rest[row]);
        STORE(X, (LOAD(X, i, grad_y) - p * sum) / temperature, i, grad_x);
    }
}
