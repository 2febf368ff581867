// Vector 16-bit integers: v_add_u16, v_mad_i16, v_lshlrev_b16 and their like.
#include "registry.h"

namespace emu {

namespace {

int32_t sx(uint32_t v) { return static_cast<int16_t>(v); }
uint32_t clamp_u(int64_t v, bool clamp) { return static_cast<uint32_t>(clamp ? std::max<int64_t>(0, std::min<int64_t>(65535, v)) : v) & 0xffff; }
uint32_t clamp_i(int64_t v, bool clamp) { return static_cast<uint32_t>(clamp ? std::max<int64_t>(-32768, std::min<int64_t>(32767, v)) : v) & 0xffff; }
uint32_t median_u(uint32_t a, uint32_t b, uint32_t c) { return std::max(std::min(a, b), std::min(std::max(a, b), c)); }
int32_t median_i(int32_t a, int32_t b, int32_t c) { return std::max(std::min(a, b), std::min(std::max(a, b), c)); }

// `a`, `b`, `c` are zero-extended; x, y, z the same with their sign.
#define U16_2(name, expr, ...) {name, Type::b16, {Type::b16, Type::b16}, [](Alu& s) { EMU_LANES { const uint32_t a = s.in[0].u32[l], b = s.in[1].u32[l]; const int32_t x = sx(a), y = sx(b); (void)a, (void)b, (void)x, (void)y; s.out.u32[l] = (expr) & 0xffff; } }, ##__VA_ARGS__}
#define U16_3(name, expr, ...) {name, Type::b16, {Type::b16, Type::b16, Type::b16}, [](Alu& s) { EMU_LANES { const uint32_t a = s.in[0].u32[l], b = s.in[1].u32[l], c = s.in[2].u32[l]; const int32_t x = sx(a), y = sx(b), z = sx(c); (void)a, (void)b, (void)c, (void)x, (void)y, (void)z; s.out.u32[l] = (expr) & 0xffff; } }, ##__VA_ARGS__}
#define CLAMP s.op->clamp

const VectorOp OPS[] = {
    U16_2("v_add_u16", clamp_u(int64_t{a} + b, CLAMP)), U16_2("v_sub_u16", clamp_u(int64_t{a} - b, CLAMP)),
    U16_2("v_subrev_u16", clamp_u(int64_t{b} - a, CLAMP)),
    U16_2("v_add_nc_u16", clamp_u(int64_t{a} + b, CLAMP)), U16_2("v_sub_nc_u16", clamp_u(int64_t{a} - b, CLAMP)),
    U16_2("v_add_i16", clamp_i(int64_t{x} + y, CLAMP), KEEPS_HIGH), U16_2("v_sub_i16", clamp_i(int64_t{x} - y, CLAMP), KEEPS_HIGH),
    U16_2("v_add_nc_i16", clamp_i(int64_t{x} + y, CLAMP)), U16_2("v_sub_nc_i16", clamp_i(int64_t{x} - y, CLAMP)),
    U16_2("v_mul_lo_u16", a * b),
    U16_2("v_lshlrev_b16", b << (a & 15)), U16_2("v_lshrrev_b16", b >> (a & 15)),
    U16_2("v_ashrrev_i16", static_cast<uint32_t>(y >> (a & 15))),
    U16_2("v_max_u16", std::max(a, b)), U16_2("v_min_u16", std::min(a, b)),
    U16_2("v_max_i16", static_cast<uint32_t>(std::max(x, y))), U16_2("v_min_i16", static_cast<uint32_t>(std::min(x, y))),
    U16_2("v_and_b16", a & b), U16_2("v_or_b16", a | b), U16_2("v_xor_b16", a ^ b),
    U16_3("v_mad_u16", clamp_u(int64_t{a} * b + c, CLAMP), KEEPS_HIGH), U16_3("v_mad_i16", clamp_i(int64_t{x} * y + z, CLAMP), KEEPS_HIGH),
    U16_3("v_mad_legacy_u16", clamp_u(int64_t{a} * b + c, CLAMP)), U16_3("v_mad_legacy_i16", clamp_i(int64_t{x} * y + z, CLAMP)),
    U16_3("v_min3_u16", std::min({a, b, c}), KEEPS_HIGH), U16_3("v_max3_u16", std::max({a, b, c}), KEEPS_HIGH),
    U16_3("v_min3_i16", static_cast<uint32_t>(std::min({x, y, z})), KEEPS_HIGH),
    U16_3("v_max3_i16", static_cast<uint32_t>(std::max({x, y, z})), KEEPS_HIGH),
    U16_3("v_med3_u16", median_u(a, b, c), KEEPS_HIGH), U16_3("v_med3_i16", static_cast<uint32_t>(median_i(x, y, z)), KEEPS_HIGH),
    {"v_bitop3_b16", Type::b16, {Type::b16, Type::b16, Type::b16}, [](Alu& s) {
       EMU_LANES {
         uint32_t a = s.in[0].u32[l], b = s.in[1].u32[l], c = s.in[2].u32[l], r = 0;
         for (int i = 0; i < 8; ++i)
           if (s.op->imm >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
         s.out.u32[l] = r & 0xffff;
       }
     }, KEEPS_HIGH},
    {"v_mov_b16", Type::b16, {Type::b16}, [](Alu& s) { s.out = s.in[0]; }},
    {"v_not_b16", Type::b16, {Type::b16}, [](Alu& s) { EMU_LANES s.out.u32[l] = ~s.in[0].u32[l] & 0xffff; }},
    {"v_mad_u32_u16", Type::b32, {Type::b16, Type::b16, Type::b32}, [](Alu& s) {
       EMU_LANES {
         uint64_t r = uint64_t{s.in[0].u32[l]} * s.in[1].u32[l] + s.in[2].u32[l];
         s.out.u32[l] = static_cast<uint32_t>(CLAMP ? std::min<uint64_t>(r, ~0u) : r);
       }
     }},
    {"v_mad_i32_i16", Type::b32, {Type::b16, Type::b16, Type::b32}, [](Alu& s) {
       EMU_LANES {
         int64_t r = int64_t{sx(s.in[0].u32[l])} * sx(s.in[1].u32[l]) + s.in[2].i32[l];
         s.out.u32[l] = static_cast<uint32_t>(CLAMP ? std::max<int64_t>(INT32_MIN, std::min<int64_t>(INT32_MAX, r)) : r);
       }
     }},
};

}  // namespace

void register_vector_integer16() { add_vectors(OPS); }

}  // namespace emu
