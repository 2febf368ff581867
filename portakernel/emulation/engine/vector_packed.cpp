// Packed arithmetic of VOP3P: two float32 in a pair of registers; two 16-bit values in one, each half chosen by op_sel.
#include "registry.h"

namespace emu {

namespace {

// Half `high` of source `i` in lane `l`: op_sel picks it for the low result, op_sel_hi for the high one.
float pick32(const Alu& s, int i, int l, bool high) {
  unsigned select = (high ? s.op->op_sel_hi : s.op->op_sel) >> i & 1;
  float v = float_of(static_cast<uint32_t>(s.in[i].u64[l] >> 32 * select));
  if (!s.wave->keeps_input32()) v = flush(v);
  return (high ? s.op->neg_hi : s.op->neg) >> i & 1 ? -v : v;
}

// The lanes in which somebody wrote the word that op_sel picks of a pair.
uint64_t picked_known(const Alu& s, int i, bool high) {
  unsigned code = s.op->src[i];
  return lanes_known(*s.wave, code < 128 || code >= VGPR ? code + high : code, 1);
}

template <class F>
void packed32(Alu& s, int sources, F f) {
  s.known = s.known_low = s.wave->all;
  s.low_differs = true;
  for (int i = 0; i < sources; ++i) {
    s.known_low &= picked_known(s, i, s.op->op_sel >> i & 1);
    s.known &= picked_known(s, i, s.op->op_sel_hi >> i & 1);
  }
  EMU_LANES {
    uint64_t r = 0;
    for (int high = 0; high < 2; ++high) {
      float v = f(pick32(s, 0, l, high), pick32(s, 1, l, high), [&] { return pick32(s, 2, l, high); });
      if (!s.wave->keeps_output32()) v = flush(v);
      if (s.op->clamp) v = v > 0 ? std::min(v, 1.0f) : 0.0f;
      r |= uint64_t{bits_of(v)} << 32 * high;
    }
    s.out.u64[l] = r;
  }
}

uint32_t pick16(const Alu& s, int i, int l, bool high) {
  unsigned select = (high ? s.op->op_sel_hi : s.op->op_sel) >> i & 1;
  return s.in[i].u32[l] >> 16 * select & 0xffff;
}
double pick_half(const Alu& s, int i, int l, bool high) {
  uint32_t v = pick16(s, i, l, high) ^ ((high ? s.op->neg_hi : s.op->neg) >> i & 1) << 15;
  return from_half(!s.wave->keeps_input16_64() && !(v & 0x7c00) ? v & 0x8000 : v);
}
uint32_t packed_half(const Alu& s, double v) {
  if (s.op->clamp) v = v > 0 ? std::min(v, 1.0) : 0;
  uint32_t half = to_half(v, s.wave->round16_64());
  return !s.wave->keeps_output16_64() && !(half & 0x7c00) ? half & 0x8000 : half;
}
double least(double a, double b) { return std::isnan(a) ? b : std::isnan(b) ? a : a < b || (a == b && std::signbit(a)) ? a : b; }
double most(double a, double b) { return std::isnan(a) ? b : std::isnan(b) ? a : a > b || (a == b && !std::signbit(a)) ? a : b; }

#define PK_F16_2(name, expr) {name, Type::b32, {Type::pk_f16, Type::pk_f16}, [](Alu& s) { EMU_LANES { uint32_t r = 0; for (int h = 0; h < 2; ++h) { const double a = pick_half(s, 0, l, h), b = pick_half(s, 1, l, h); r |= packed_half(s, expr) << 16 * h; } s.out.u32[l] = r; } }}
#define PK_F16_3(name, expr) {name, Type::b32, {Type::pk_f16, Type::pk_f16, Type::pk_f16}, [](Alu& s) { EMU_LANES { uint32_t r = 0; for (int h = 0; h < 2; ++h) { const double a = pick_half(s, 0, l, h), b = pick_half(s, 1, l, h), c = pick_half(s, 2, l, h); r |= packed_half(s, expr) << 16 * h; } s.out.u32[l] = r; } }}
uint32_t saturate_u(int64_t v, bool clamp) { return static_cast<uint32_t>(clamp ? std::max<int64_t>(0, std::min<int64_t>(65535, v)) : v) & 0xffff; }
uint32_t saturate_i(int64_t v, bool clamp) { return static_cast<uint32_t>(clamp ? std::max<int64_t>(-32768, std::min<int64_t>(32767, v)) : v) & 0xffff; }

// 16-bit integers: a, b, c zero-extended, x, y, z with their sign.
#define PK_16_2(name, expr) {name, Type::b32, {Type::pk_b16, Type::pk_b16}, [](Alu& s) { EMU_LANES { uint32_t r = 0; for (int h = 0; h < 2; ++h) { const uint32_t a = pick16(s, 0, l, h), b = pick16(s, 1, l, h); const int32_t x = static_cast<int16_t>(a), y = static_cast<int16_t>(b); (void)a, (void)b, (void)x, (void)y; r |= (static_cast<uint32_t>(expr) & 0xffff) << 16 * h; } s.out.u32[l] = r; } }}
#define PK_16_3(name, expr) {name, Type::b32, {Type::pk_b16, Type::pk_b16, Type::pk_b16}, [](Alu& s) { EMU_LANES { uint32_t r = 0; for (int h = 0; h < 2; ++h) { const uint32_t a = pick16(s, 0, l, h), b = pick16(s, 1, l, h), c = pick16(s, 2, l, h); const int32_t x = static_cast<int16_t>(a), y = static_cast<int16_t>(b), z = static_cast<int16_t>(c); (void)a, (void)b, (void)c, (void)x, (void)y, (void)z; r |= (static_cast<uint32_t>(expr) & 0xffff) << 16 * h; } s.out.u32[l] = r; } }}
#define CLAMP s.op->clamp

uint32_t flushed(uint32_t half, bool keeps) { return !keeps && !(half & 0x7c00) ? half & 0x8000 : half; }

// Mixed precision: op_sel_hi makes a source a float16, of the half that op_sel picks; neg_hi takes magnitudes.
float mixed(const Alu& s, int i, int l) {
  uint32_t bits = s.in[i].u32[l];
  unsigned code = s.op->src[i];
  bool is_half = s.op->op_sel_hi >> i & 1 && !(code >= 240 && code <= 248);
  float v = is_half ? from_half(flushed(bits >> 16 * (s.op->op_sel >> i & 1) & 0xffff, s.wave->keeps_input16_64()))
                    : s.wave->keeps_input32() ? float_of(bits) : flush(float_of(bits));
  if (s.op->neg_hi >> i & 1) v = std::fabs(v);
  return s.op->neg >> i & 1 ? -v : v;
}
double mixed_sum(const Alu& s, int l) { return sum_to_odd(mixed(s, 0, l), mixed(s, 1, l), mixed(s, 2, l)); }
float clamped(const Alu& s, float v) { return s.op->clamp ? v > 0 ? std::min(v, 1.0f) : 0.0f : v; }

void mix32(Alu& s) {
  EMU_LANES {
    float v = std::fma(mixed(s, 0, l), mixed(s, 1, l), mixed(s, 2, l));
    s.out.f32[l] = s.wave->keeps_output32() ? v : flush(v);
  }
}
template <bool HIGH>
void mix16(Alu& s) {
  const Register& old = s.wave->vector(s.op->dst);
  uint32_t rounding = s.wave->round16_64();
  EMU_LANES {
    uint32_t half = flushed(to_half(mixed_sum(s, l), rounding), s.wave->keeps_output16_64());
    if (s.op->clamp) half = to_half(clamped(s, from_half(half)));
    s.out.u32[l] = HIGH ? (old.lane[l] & 0xffff) | half << 16 : (old.lane[l] & 0xffff0000) | half;
  }
}
#define THREE {Type::raw32, Type::raw32, Type::raw32}

#define PK_32(name, expr) {name, Type::pk_f32, {Type::pk_f32, Type::pk_f32}, [](Alu& s) { packed32(s, 2, [](float a, float b, auto) { return (expr); }); }}

const VectorOp OPS[] = {
    PK_32("v_pk_add_f32", a + b), PK_32("v_pk_mul_f32", a * b),
    {"v_pk_fma_f32", Type::pk_f32, {Type::pk_f32, Type::pk_f32, Type::pk_f32}, [](Alu& s) {
       packed32(s, 3, [](float a, float b, auto c) { return std::fma(a, b, c()); });
     }},
    // each result picks its half of one source: the low of the first, the high of the second
    {"v_pk_mov_b32", Type::b64, {Type::raw64, Type::raw64}, [](Alu& s) {
       s.low_differs = true;
       s.known_low = picked_known(s, 0, s.op->op_sel & 1), s.known = picked_known(s, 1, s.op->op_sel >> 1 & 1);
       EMU_LANES {
         uint32_t low = static_cast<uint32_t>(s.in[0].u64[l] >> 32 * (s.op->op_sel & 1));
         uint32_t high = static_cast<uint32_t>(s.in[1].u64[l] >> 32 * (s.op->op_sel >> 1 & 1));
         s.out.u64[l] = low | uint64_t{high} << 32;
       }
     }},
    PK_16_2("v_pk_add_u16", saturate_u(int64_t{a} + b, CLAMP)), PK_16_2("v_pk_add_i16", saturate_i(int64_t{x} + y, CLAMP)),
    PK_16_2("v_pk_sub_u16", saturate_u(int64_t{a} - b, CLAMP)), PK_16_2("v_pk_sub_i16", saturate_i(int64_t{x} - y, CLAMP)),
    PK_16_2("v_pk_mul_lo_u16", a * b), PK_16_2("v_pk_lshlrev_b16", b << (a & 15)), PK_16_2("v_pk_lshrrev_b16", b >> (a & 15)),
    PK_16_2("v_pk_ashrrev_i16", y >> (a & 15)), PK_16_2("v_pk_max_i16", std::max(x, y)), PK_16_2("v_pk_min_i16", std::min(x, y)),
    PK_16_2("v_pk_max_u16", std::max(a, b)), PK_16_2("v_pk_min_u16", std::min(a, b)),
    PK_16_3("v_pk_mad_u16", saturate_u(int64_t{a} * b + c, CLAMP)), PK_16_3("v_pk_mad_i16", saturate_i(int64_t{x} * y + z, CLAMP)),
    {"v_fma_mix_f32", Type::f32, THREE, mix32}, {"v_mad_mix_f32", Type::f32, THREE, mix32},
    {"v_fma_mixlo_f16", Type::b32, THREE, mix16<false>}, {"v_mad_mixlo_f16", Type::b32, THREE, mix16<false>},
    {"v_fma_mixhi_f16", Type::b32, THREE, mix16<true>}, {"v_mad_mixhi_f16", Type::b32, THREE, mix16<true>},
    PK_F16_2("v_pk_minimum_f16", std::isnan(a) || std::isnan(b) ? NAN : least(a, b)),
    PK_F16_2("v_pk_maximum_f16", std::isnan(a) || std::isnan(b) ? NAN : most(a, b)),
    PK_F16_3("v_pk_minimum3_f16", std::isnan(a) || std::isnan(b) || std::isnan(c) ? NAN : least(least(a, b), c)),
    PK_F16_3("v_pk_maximum3_f16", std::isnan(a) || std::isnan(b) || std::isnan(c) ? NAN : most(most(a, b), c)),
    // VOP2 has no op_sel: each half takes its own; RDNA's constants are in both
    {"v_pk_fmac_f16", Type::b32, {Type::pk_f16, Type::pk_f16, Type::pk_f16}, [](Alu& s) {
       EMU_LANES {
         uint32_t r = 0;
         for (int at = 0; at < 32; at += 16) {
           auto half = [&](int i) {
             bool both = s.wave->rdna() && s.op->src[i] >= 240 && s.op->src[i] <= 248;
             uint32_t bits = s.in[i].u32[l] >> (both ? 0 : at) & 0xffff;
             return static_cast<double>(from_half(flushed(bits, s.wave->keeps_input16_64())));
           };
           r |= packed_half(s, std::fma(half(0), half(1), half(2))) << at;
         }
         s.out.u32[l] = r;
       }
     }},
    PK_F16_2("v_pk_add_f16", a + b), PK_F16_2("v_pk_mul_f16", a * b), PK_F16_3("v_pk_fma_f16", std::fma(a, b, c)),
    PK_F16_2("v_pk_min_f16", least(a, b)), PK_F16_2("v_pk_max_f16", most(a, b)),
    PK_F16_2("v_pk_min_num_f16", least(a, b)), PK_F16_2("v_pk_max_num_f16", most(a, b)),
};

}  // namespace

void register_vector_packed() { add_vectors(OPS); }

}  // namespace emu
