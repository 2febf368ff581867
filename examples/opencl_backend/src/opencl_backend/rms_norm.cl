// y = x * rstd * (weight + weight_offset) with rstd = rsqrt(mean(x * x) + eps), one work-item a row.

// Elements are summed in groups, and the groups then, because the error of a sum grows with the number of its terms.
#define GROUP 512

float sum_of_squares(global const STORED(X) *x, ulong columns)
{
    float sum = 0;
    size_t i = 0;
    for (; i + GROUP <= columns; i += GROUP) {
        float8 lanes = 0;
        for (size_t j = i; j < i + GROUP; j += 8) {
            float8 value = LOAD8(X, j, x);
            lanes += value * value;
        }
        sum += sum_of_lanes(lanes);
    }
    float rest = 0;
    for (; i < columns; i++) {
        float value = LOAD(X, i, x);
        rest += value * value;
    }
    return sum + rest;
}

// Writes the norm of a row, and returns its rstd.
float normalised(global const STORED(X) *x, global STORED(X) *y, global const STORED(W) *weight, float eps,
                 float weight_offset, ulong columns)
{
    float rstd = rsqrt(sum_of_squares(x, columns) / columns + eps);
    size_t i = 0;
    for (; i + 8 <= columns; i += 8)
        STORE8(X, LOAD8(X, i, x) * rstd * (LOAD8(W, i, weight) + weight_offset), i, y);
    for (; i < columns; i++)
        STORE(X, LOAD(X, i, x) * rstd * (LOAD(W, i, weight) + weight_offset), i, y);
    return rstd;
}

kernel void rms_norm(global const STORED(X) *x, global STORED(X) *y, global float *rstd,
                     global const STORED(W) *weight, float eps, float weight_offset, ulong columns, ulong rows)
{
    size_t row = get_global_id(0), first = row * columns;
    if (row < rows)
        rstd[row] = normalised(x + first, y + first, weight, eps, weight_offset, columns);
}

// summed = x + residual, rounded to their storage, and y is the norm of what was rounded.
kernel void add_rms_norm(global const STORED(X) *x, global const STORED(X) *residual, global STORED(X) *y,
                         global STORED(X) *summed, global float *rstd, global const STORED(W) *weight, float eps,
                         float weight_offset, ulong columns, ulong rows)
{
    size_t row = get_global_id(0), first = row * columns;
    if (row >= rows)
        return;
    size_t i = 0;
    for (; i + 8 <= columns; i += 8)
        STORE8(X, LOAD8(X, first + i, x) + LOAD8(X, first + i, residual), first + i, summed);
    for (; i < columns; i++)
        STORE(X, LOAD(X, first + i, x) + LOAD(X, first + i, residual), first + i, summed);
    rstd[row] = normalised(summed + first, y + first, weight, eps, weight_offset, columns);
}

// grad_x = rstd * (g - u * mean(g * u)) with g = grad_y * (weight + weight_offset) and u = x * rstd; where summed
// reached the caller too, its gradient is added.
kernel void rms_norm_backward(global const STORED(X) *grad_y, global const STORED(X) *x, global const float *rstd,
#ifdef SUMMED
                              global const STORED(X) *grad_summed,
#endif
                              global STORED(X) *grad_x, global const STORED(W) *weight, float weight_offset,
                              ulong columns, ulong rows)
{
    size_t row = get_global_id(0), first = row * columns;
    if (row >= rows)
        return;
    float scale = rstd[row];
    float sum = 0;
    size_t i = 0;
    for (; i + GROUP <= columns; i += GROUP) {
        float8 lanes = 0;
        for (size_t j = i; j < i + GROUP; j += 8) {
            float8 g = LOAD8(X, first + j, grad_y) * (LOAD8(W, j, weight) + weight_offset);
            lanes += g * (LOAD8(X, first + j, x) * scale);
        }
        sum += sum_of_lanes(lanes);
    }
    float rest = 0;
    for (; i < columns; i++) {
        float g = LOAD(X, first + i, grad_y) * (LOAD(W, i, weight) + weight_offset);
        rest += g * (LOAD(X, first + i, x) * scale);
    }
    float mean = (sum + rest) / columns;
    for (i = 0; i + 8 <= columns; i += 8) {
        float8 g = LOAD8(X, first + i, grad_y) * (LOAD8(W, i, weight) + weight_offset);
        float8 found = scale * (g - LOAD8(X, first + i, x) * scale * mean);
#ifdef SUMMED
        found += LOAD8(X, first + i, grad_summed);
#endif
        STORE8(X, found, first + i, grad_x);
    }
    for (; i < columns; i++) {
        float g = LOAD(X, first + i, grad_y) * (LOAD(W, i, weight) + weight_offset);
        float found = scale * (g - LOAD(X, first + i, x) * scale * mean);
#ifdef SUMMED
        found += LOAD(X, first + i, grad_summed);
#endif
        STORE(X, found, first + i, grad_x);
    }
}

// grad_weight += sum(grad_y * x * rstd) over these rows, one work-item a column. Rows are summed in groups
// too.
kernel void rms_norm_weight_gradient(global const STORED(X) *grad_y, global const STORED(X) *x,
                                     global const float *rstd, global float *grad_weight, ulong columns, ulong rows)
{
    size_t column = get_global_id(0);
    if (column >= columns)
        return;
    float sum = grad_weight[column];
    for (size_t group = 0; group < rows; group += 64) {
        float part = 0;
        for (size_t row = group; row < min(group + 64, (size_t)rows); row++) {
            size_t i = row * columns + column;
            part += LOAD(X, i, grad_y) * (LOAD(X, i, x) * rstd[row]);
        }
        sum += part;
    }
    grad_weight[column] = sum;
}
