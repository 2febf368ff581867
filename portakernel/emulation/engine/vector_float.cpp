// Vector float32 arithmetic.
#include "registry.h"

namespace emu {

namespace {

// IEEE 754-2008's minNum and maxNum, with -0 below +0.
float least(float a, float b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return a < b || (a == b && std::signbit(a)) ? a : b;
}
float most(float a, float b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}
// IEEE 754-2019's minimum and maximum: a NaN stays.
float minimum(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : least(a, b); }
float maximum(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : most(a, b); }
float median(float a, float b, float c) {
  if (std::isnan(a) || std::isnan(b) || std::isnan(c)) return least(least(a, b), c);
  return most(least(a, b), least(most(a, b), c));
}
float mul_legacy(float a, float b) { return a == 0.0f || b == 0.0f ? 0.0f : a * b; }

float mad(float a, float b, float c) {
  float product = flush(flush(a) * flush(b));
  return flush(product + flush(c));
}

const VectorOp OPS[] = {
    F32_2("v_add_f32", a + b), F32_2("v_sub_f32", a - b), F32_2("v_subrev_f32", b - a), F32_2("v_mul_f32", a * b),
    F32_2("v_mul_legacy_f32", mul_legacy(a, b)), F32_2("v_mul_dx9_zero_f32", mul_legacy(a, b)),
    F32_2("v_min_f32", least(a, b)), F32_2("v_max_f32", most(a, b)),
    F32_2("v_min_num_f32", least(a, b)), F32_2("v_max_num_f32", most(a, b)),
    F32_2("v_minimum_f32", minimum(a, b)), F32_2("v_maximum_f32", maximum(a, b)),
    F32_3("v_fma_f32", std::fma(a, b, c)), F32_3("v_fmac_f32", std::fma(a, b, c)),
    F32_3("v_fmamk_f32", std::fma(a, b, c)), F32_3("v_fmaak_f32", std::fma(a, b, c)),
    F32_3("v_fma_dx9_zero_f32", a == 0.0f || b == 0.0f ? c : std::fma(a, b, c)),
    F32_3("v_fmac_dx9_zero_f32", a == 0.0f || b == 0.0f ? c : std::fma(a, b, c)),
    // gfx90a's mad: two roundings, subnormals flushed whatever MODE says
    F32_3("v_mad_f32", mad(a, b, c)), F32_3("v_mac_f32", mad(a, b, c)), F32_3("v_madmk_f32", mad(a, b, c)),
    F32_3("v_madak_f32", mad(a, b, c)), F32_3("v_mad_legacy_f32", flush(mul_legacy(flush(a), flush(b)) + flush(c))),
    F32_3("v_min3_f32", least(least(a, b), c)), F32_3("v_max3_f32", most(most(a, b), c)),
    F32_3("v_min3_num_f32", least(least(a, b), c)), F32_3("v_max3_num_f32", most(most(a, b), c)),
    F32_3("v_minimum3_f32", minimum(minimum(a, b), c)), F32_3("v_maximum3_f32", maximum(maximum(a, b), c)),
    F32_3("v_med3_f32", median(a, b, c)), F32_3("v_med3_num_f32", median(a, b, c)),
    F32_3("v_maxmin_f32", least(most(a, b), c)), F32_3("v_minmax_f32", most(least(a, b), c)),
    F32_3("v_maxmin_num_f32", least(most(a, b), c)), F32_3("v_minmax_num_f32", most(least(a, b), c)),
    F32_3("v_minimummaximum_f32", maximum(minimum(a, b), c)), F32_3("v_maximumminimum_f32", minimum(maximum(a, b), c)),
    F32_1("v_trunc_f32", std::trunc(a)), F32_1("v_ceil_f32", std::ceil(a)), F32_1("v_floor_f32", std::floor(a)),
    F32_1("v_rndne_f32", __builtin_roundeven(a)),
    F32_1("v_fract_f32", std::isinf(a) ? NAN : std::min(a - std::floor(a), 0x1.fffffep-1f)),
    {"v_ldexp_f32", Type::f32, {Type::f32, Type::raw32}, [](Alu& s) {
       EMU_LANES s.out.f32[l] = std::ldexp(s.in[0].f32[l], std::max(-600, std::min(600, s.in[1].i32[l])));
     }},
    {"v_frexp_mant_f32", Type::f32, {Type::f32}, [](Alu& s) {
       EMU_LANES { int e; float a = s.in[0].f32[l]; s.out.f32[l] = std::isfinite(a) ? std::frexp(a, &e) : a; }
     }},
    {"v_frexp_exp_i32_f32", Type::b32, {Type::f32}, [](Alu& s) {
       EMU_LANES { int e = 0; float a = s.in[0].f32[l]; if (std::isfinite(a)) std::frexp(a, &e); s.out.i32[l] = std::isfinite(a) ? e : 0; }
     }},
};

}  // namespace

void register_vector_float() { add_vectors(OPS); }

}  // namespace emu
