// Transcendental units, and the steps of a division.
// The units are within 1 ulp by the documents; here they are rounded from double precision.
#include <cfenv>

#include "registry.h"

namespace emu {

namespace {

double rcp(double a) { return 1.0 / a; }
double rsq(double a) { return a < 0 ? NAN : 1.0 / std::sqrt(a); }
// sin(2 pi a) and cos(2 pi a); beyond 256 the unit gives the value at 0
double sin_turns(double a) { return std::isinf(a) ? NAN : std::fabs(a) > 256 ? 0.0 : std::sin(std::fmod(a, 1.0) * 6.283185307179586); }
double cos_turns(double a) { return std::isinf(a) ? NAN : std::fabs(a) > 256 ? 1.0 : std::cos(std::fmod(a, 1.0) * 6.283185307179586); }

// The units take subnormal inputs as zero and give none.
float in(float a) { return flush(a); }
float out(double a) { return flush(static_cast<float>(a)); }

int exponent(float a) { return static_cast<int>(bits_of(a) >> 23 & 0xff); }
int exponent(double a) { return static_cast<int>(bits_of(a) >> 52 & 0x7ff); }

// (a * b + c) * 2^128 or 2^-128, rounded once: where that is subnormal, from a sum whose last bit is odd if inexact.
double fma_scaled(double a, double b, double c) {
  double r = std::fma(a, b, c), scale = exponent(c) > 1023 ? 0x1p128 : 0x1p-128;
  if (!(std::fabs(r * scale) < 0x1p-1022)) return r * scale;
  int rounding = std::fegetround();
  std::fesetround(FE_TOWARDZERO);
  std::feclearexcept(FE_INEXACT);
  volatile double odd = std::fma(a, b, c);
  bool inexact = std::fetestexcept(FE_INEXACT);
  std::fesetround(rounding);
  return double_of(bits_of(odd) | inexact) * scale;
}

struct Scaled32 { float value; bool vcc; };
// src: the one that is scaled, denominator, numerator.
Scaled32 div_scale(float a, float b, float c) {
  bool vcc = false;
  float r = a;
  bool denominator = bits_of(a) == bits_of(b);
  if (c == 0.0f || b == 0.0f) return {NAN, false};
  if (exponent(c) - exponent(b) >= 96) {
    vcc = true;
    if (denominator) r = std::ldexp(a, 64);
  } else if (std::fpclassify(b) == FP_SUBNORMAL) {
    r = std::ldexp(a, 64);
  } else {
    bool small_inverse = std::fpclassify(1.0f / b) == FP_SUBNORMAL;
    float quotient = c / b;
    bool small_quotient = std::fpclassify(quotient) == FP_SUBNORMAL || quotient == 0.0f;
    if (small_inverse && small_quotient) {
      // the documents say 64 here, which would overflow: v_div_fmas multiplies small quotients by 2^-64
      vcc = true;
      if (denominator) r = std::ldexp(a, -64);
    } else if (small_inverse) {
      r = std::ldexp(a, -64);
    } else if (small_quotient) {
      vcc = true;
      if (!denominator) r = std::ldexp(a, 64);
    } else if (exponent(c) <= 23) {
      r = std::ldexp(a, 64);
    }
  }
  return {r, vcc};
}

struct Scaled64 { double value; bool vcc; };
Scaled64 div_scale(double a, double b, double c) {
  bool vcc = false;
  double r = a;
  bool denominator = bits_of(a) == bits_of(b);
  if (c == 0.0 || b == 0.0) return {NAN, false};
  if (exponent(c) - exponent(b) >= 768) {
    vcc = true;
    if (denominator) r = std::ldexp(a, 128);
  } else if (std::fpclassify(b) == FP_SUBNORMAL) {
    r = std::ldexp(a, 128);
  } else {
    bool small_inverse = std::fpclassify(1.0 / b) == FP_SUBNORMAL;
    double quotient = c / b;
    bool small_quotient = std::fpclassify(quotient) == FP_SUBNORMAL || quotient == 0.0;
    if (small_inverse && small_quotient) {
      vcc = true;
      if (denominator) r = std::ldexp(a, -128);
    } else if (small_inverse) {
      r = std::ldexp(a, -128);
    } else if (small_quotient) {
      vcc = true;
      if (!denominator) r = std::ldexp(a, 128);
    } else if (exponent(c) <= 53) {
      r = std::ldexp(a, 128);
    }
  }
  return {r, vcc};
}

// src: quotient, denominator, numerator.
template <class F>
F div_fixup(F q, F b, F c, int low) {
  bool negative = std::signbit(b) != std::signbit(c);
  if (std::isnan(c)) return c;
  if (std::isnan(b)) return b;
  if ((b == 0 && c == 0) || (std::isinf(b) && std::isinf(c))) return std::copysign(static_cast<F>(NAN), F(-1));
  if (b == 0 || std::isinf(c)) return negative ? -static_cast<F>(INFINITY) : static_cast<F>(INFINITY);
  if (std::isinf(b) || c == 0) return negative ? -F(0) : F(0);
  if (exponent(c) - exponent(b) < low) return negative ? -F(0) : F(0);  // underflow, as MODE rounds to nearest
  // a quotient that overflowed although it was scaled is inf - inf by now
  if (std::isnan(q)) return negative ? -static_cast<F>(INFINITY) : static_cast<F>(INFINITY);
  F magnitude = std::fabs(q);
  return negative ? -magnitude : magnitude;
}

const VectorOp OPS[] = {
    F32_1("v_exp_f32", out(std::exp2(static_cast<double>(in(a))))),
    F32_1("v_log_f32", out(std::log2(static_cast<double>(in(a))))),
    F32_1("v_exp_legacy_f32", out(std::exp2(static_cast<double>(in(a))))),
    F32_1("v_log_legacy_f32", out(std::log2(static_cast<double>(in(a))))),
    F32_1("v_rcp_f32", out(rcp(in(a)))), F32_1("v_rcp_iflag_f32", out(rcp(in(a)))), F32_1("v_rsq_f32", out(rsq(in(a)))),
    F32_1("v_sqrt_f32", out(std::sqrt(static_cast<double>(in(a))))),
    F32_1("v_sin_f32", out(sin_turns(in(a)))), F32_1("v_cos_f32", out(cos_turns(in(a)))),
    F16_1("v_exp_f16", std::exp2(a)), F16_1("v_log_f16", std::log2(a)), F16_1("v_rcp_f16", rcp(a)),
    F16_1("v_rsq_f16", rsq(a)), F16_1("v_sqrt_f16", std::sqrt(a)), F16_1("v_sin_f16", sin_turns(a)),
    F16_1("v_cos_f16", cos_turns(a)),
    F64_1("v_rcp_f64", rcp(a)), F64_1("v_rsq_f64", rsq(a)), F64_1("v_sqrt_f64", std::sqrt(a)),
    {"v_div_scale_f32", Type::f32, {Type::f32, Type::f32, Type::f32}, [](Alu& s) {
       EMU_LANES {
         Scaled32 r = div_scale(s.in[0].f32[l], s.in[1].f32[l], s.in[2].f32[l]);
         s.out.f32[l] = r.value;
         s.out_mask |= uint64_t{r.vcc} << l;
       }
     }, WRITES_MASK},
    {"v_div_scale_f64", Type::f64, {Type::f64, Type::f64, Type::f64}, [](Alu& s) {
       EMU_LANES {
         Scaled64 r = div_scale(s.in[0].f64[l], s.in[1].f64[l], s.in[2].f64[l]);
         s.out.f64[l] = r.value;
         s.out_mask |= uint64_t{r.vcc} << l;
       }
     }, WRITES_MASK},
    {"v_div_fmas_f32", Type::f32, {Type::f32, Type::f32, Type::f32}, [](Alu& s) {
       uint64_t vcc = s.wave->mask(VCC);
       EMU_LANES {
         const float a = s.in[0].f32[l], b = s.in[1].f32[l], c = s.in[2].f32[l];
         // the scale that v_div_scale chose is undone, in one rounding
         s.out.f32[l] = vcc >> l & 1 ? static_cast<float>(sum_to_odd(a, b, c) * (exponent(c) > 127 ? 0x1p64 : 0x1p-64))
                                     : std::fma(a, b, c);
       }
     }},
    {"v_div_fmas_f64", Type::f64, {Type::f64, Type::f64, Type::f64}, [](Alu& s) {
       uint64_t vcc = s.wave->mask(VCC);
       EMU_LANES {
         const double a = s.in[0].f64[l], b = s.in[1].f64[l], c = s.in[2].f64[l];
         s.out.f64[l] = vcc >> l & 1 ? fma_scaled(a, b, c) : std::fma(a, b, c);
       }
     }},
    F32_3("v_div_fixup_f32", div_fixup(a, b, c, -150)),
    F64_3("v_div_fixup_f64", div_fixup(a, b, c, -1075)),
};

}  // namespace

void register_vector_special() { add_vectors(OPS); }

}  // namespace emu
