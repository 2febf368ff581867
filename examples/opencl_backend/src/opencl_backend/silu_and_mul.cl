// y = silu(gate) * up for the halves gate and up of a row of x, one work-item a row of `columns` results.

// gate * sigmoid(gate); a gate of -inf gives NaN, as -inf * 0 does.
float8 silu8(float8 gate) { return gate / (1 + exp(-gate)); }
float silu(float gate) { return gate / (1 + exp(-gate)); }

kernel void silu_and_mul(global const STORED(X) *x, global STORED(X) *y, ulong columns, ulong rows)
{
    size_t row = get_global_id(0);
    if (row >= rows)
        return;
    global const STORED(X) *gate = x + row * 2 * columns, *up = gate + columns;
    y += row * columns;
    size_t i = 0;
    for (; i + 8 <= columns; i += 8)
        STORE8(X, silu8(LOAD8(X, i, gate)) * LOAD8(X, i, up), i, y);
    for (; i < columns; i++)
        STORE(X, silu(LOAD(X, i, gate)) * LOAD(X, i, up), i, y);
}

// The slope in gate is sigmoid(gate) * (1 + gate * (1 - sigmoid(gate))) * up, where 1 - sigmoid(gate) is
// sigmoid(-gate), which loses no digits where sigmoid(gate) is close to 1; in up it is silu(gate).
kernel void silu_and_mul_backward(global const STORED(X) *grad_y, global const STORED(X) *x,
                                  global STORED(X) *grad_x, ulong columns, ulong rows)
{
    size_t row = get_global_id(0);
    if (row >= rows)
        return;
    global const STORED(X) *gates = x + row * 2 * columns, *ups = gates + columns;
    grad_y += row * columns;
    grad_x += row * 2 * columns;
    for (size_t i = 0; i < columns; i++) {
        float g = LOAD(X, i, grad_y), gate = LOAD(X, i, gates), up = LOAD(X, i, ups);
        float sigmoid = 1 / (1 + exp(-gate)), rest = 1 / (1 + exp(gate));
        STORE(X, g * up * (sigmoid * (1 + gate * rest)), i, grad_x);
        STORE(X, g * (gate * sigmoid), columns + i, grad_x);
    }
}
