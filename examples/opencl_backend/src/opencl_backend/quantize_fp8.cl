// q = round(clamp(x / scale)) in float8, and scale = amax(abs(x)) / largest of the elements that share one. A float8 has
// MANTISSA bits behind the point and the exponent's BIAS; FNUZ is defined where it has no negative zero.

// The code of a number in float8, to nearest, ties to even.
uchar float8_code(float value, float largest)
{
#ifdef FNUZ
    uchar nan = 0x80;
#else
    uchar nan = 0x7f;
#endif
    if (isnan(value))
        return nan;
    float magnitude = fmin(fabs(value), largest);
    // no exponent is below that of the smallest normal number, so that subnormal ones are multiples of one quantum too
    int exponent = max((int)(as_uint(magnitude) >> 23) - 127, 1 - BIAS);
    float quantum = as_float((uint)(exponent - MANTISSA + 127) << 23);
    uint multiple = (uint)rint(magnitude / quantum);
    // a multiple that was rounded up to the next power of two carries into the exponent, as it should
    uint code = ((uint)(exponent + BIAS - 1) << MANTISSA) + multiple;
#ifdef FNUZ
    return code == 0 || !signbit(value) ? code : code | 0x80;
#else
    return signbit(value) ? code | 0x80 : code;
#endif
}

// The largest magnitude of `width` elements; NaN where there is a NaN or an infinity.
float magnitude_of(global const STORED(X) *x, size_t width)
{
    uint8 lanes = 0;
    size_t i = 0;
    for (; i + 8 <= width; i += 8)
        lanes = max(lanes, as_uint8(fabs(LOAD8(X, i, x))));
    uint4 four = max(lanes.lo, lanes.hi);
    uint2 two = max(four.lo, four.hi);
    uint largest = max(two.lo, two.hi);
    for (; i < width; i++)
        largest = max(largest, as_uint(fabs(LOAD(X, i, x))));
    // without a sign, floats are in the order of their bits, with infinity and NaN at the end
    return largest < 0x7f800000 ? as_float(largest) : NAN;
}

float scale_of(float magnitude, float largest)
{
    float scale = magnitude / largest;
    return scale < 0x1p-100f ? 1 : scale;
}

// One scale for each `block` columns of a row, one work-item a row.
kernel void quantize_rows(global const STORED(X) *x, global uchar *q, global float *scales, float largest,
                          ulong block, ulong columns, ulong rows)
{
    size_t row = get_global_id(0), blocks = (columns + block - 1) / block;
    if (row >= rows)
        return;
    for (size_t b = 0; b < blocks; b++) {
        size_t first = row * columns + b * block, width = min(block, columns - b * block);
        float scale = scale_of(magnitude_of(x + first, width), largest);
        scales[row * blocks + b] = scale;
        for (size_t i = first; i < first + width; i++)
            q[i] = float8_code(LOAD(X, i, x) / scale, largest);
    }
}

// The largest magnitude of each `block` columns of a row, for scales that several rows share.
kernel void block_magnitudes(global const STORED(X) *x, global float *magnitudes, ulong block, ulong columns,
                             ulong rows)
{
    size_t row = get_global_id(0), blocks = (columns + block - 1) / block;
    if (row >= rows)
        return;
    for (size_t b = 0; b < blocks; b++)
        magnitudes[row * blocks + b] =
            magnitude_of(x + row * columns + b * block, min(block, columns - b * block));
}

// q by scales that are known, one for each `block` columns of a row.
kernel void quantize_by(global const STORED(X) *x, global const float *scales, global uchar *q, float largest,
                        ulong block, ulong columns, ulong rows)
{
    size_t row = get_global_id(0), blocks = (columns + block - 1) / block;
    if (row >= rows)
        return;
    for (size_t i = 0; i < columns; i++)
        q[row * columns + i] = float8_code(LOAD(X, row * columns + i, x) / scales[row * blocks + i / block], largest);
}
