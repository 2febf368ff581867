// Numbers as tensors hold them. Everything is computed in float32; float16 is stored, not computed in, so that no
// extension is needed, and OpenCL C knows no bfloat16, which is the upper half of a float32.
//
// A program is built for one storage of each kind of argument, named by macros: -D X=f16 -D W=f32.

#define f32_stored float
#define f16_stored half
#define bf16_stored ushort
#define JOINED(a, b) a##b
#define JOIN(a, b) JOINED(a, b)

#define STORED(storage) JOIN(storage, _stored)
#define LOAD(storage, i, from) JOIN(load_, storage)(i, from)
#define LOAD8(storage, i, from) JOIN(load8_, storage)(i, from)
#define STORE(storage, value, i, to) JOIN(store_, storage)(value, i, to)
#define STORE8(storage, value, i, to) JOIN(store8_, storage)(value, i, to)

float load_f32(size_t i, global const float *from) { return from[i]; }
float8 load8_f32(size_t i, global const float *from) { return vload8(0, from + i); }
void store_f32(float value, size_t i, global float *to) { to[i] = value; }
void store8_f32(float8 value, size_t i, global float *to) { vstore8(value, 0, to + i); }

float load_f16(size_t i, global const half *from) { return vload_half(i, from); }
void store_f16(float value, size_t i, global half *to) { vstore_half_rte(value, i, to); }

// Rows begin at any element, and PoCL takes eight halves to begin at 16 bytes, as they do here.
float8 load8_f16(size_t i, global const half *from)
{
    ushort8 bits = vload8(0, (global const ushort *)from + i);
    return vload_half8(0, (private const half *)&bits);
}

void store8_f16(float8 value, size_t i, global half *to)
{
    ushort8 bits;
    vstore_half8_rte(value, 0, (private half *)&bits);
    vstore8(bits, 0, (global ushort *)to + i);
}

float load_bf16(size_t i, global const ushort *from) { return as_float((uint)from[i] << 16); }
float8 load8_bf16(size_t i, global const ushort *from) { return as_float8(convert_uint8(vload8(0, from + i)) << 16); }

ushort bf16_bits(float value)
{
    uint bits = as_uint(value);
    uint nearest = bits + 0x7fff + (bits >> 16 & 1);  // a tie goes to the even one
    // a NaN with all bits set would be rounded to -0
    return (isnan(value) ? bits | 0x400000 : nearest) >> 16;
}

ushort8 bf16_bits8(float8 value)
{
    uint8 bits = as_uint8(value);
    uint8 nearest = bits + 0x7fff + (bits >> 16 & 1);
    return convert_ushort8(select(nearest, bits | 0x400000, isnan(value)) >> 16);
}

void store_bf16(float value, size_t i, global ushort *to) { to[i] = bf16_bits(value); }
void store8_bf16(float8 value, size_t i, global ushort *to) { vstore8(bf16_bits8(value), 0, to + i); }

float sum_of_lanes(float8 lanes)
{
    float4 four = lanes.lo + lanes.hi;
    float2 two = four.lo + four.hi;
    return two.lo + two.hi;
}
