// out = x + y, one work-item an element.
kernel void add(global const STORED(X) *x, global const STORED(X) *y, global STORED(X) *out, ulong elements)
{
    size_t i = get_global_id(0);
    if (i < elements)
        STORE(X, LOAD(X, i, x) + LOAD(X, i, y), i, out);
}
