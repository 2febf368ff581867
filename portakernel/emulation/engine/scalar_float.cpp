// Scalar float ALU of RDNA 3.5 and 4.
#include <cfenv>

#include "registry.h"

namespace emu {

namespace {

int32_t to_i32(float v) { return std::isnan(v) ? 0 : v >= 2147483648.0f ? INT32_MAX : v <= -2147483648.0f ? INT32_MIN : static_cast<int32_t>(v); }
uint32_t to_u32(float v) { return !(v > 0) ? 0 : v >= 4294967296.0f ? ~0u : static_cast<uint32_t>(v); }

const int HOST_ROUNDING[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};

// As the vector ALU's float32: MODE says how results are rounded, and whether subnormals are kept.
template <class F>
void write32(Wave& w, const Op& op, unsigned sources, F f) {
  volatile float v[3] = {};  // read after the host's rounding is set
  bool known = true;
  for (unsigned i = 0; i < sources; ++i) {
    v[i] = float_of(w.scalar(op, op.src[i]));
    if (!w.keeps_input32()) v[i] = flush(v[i]);
    known &= w.scalar_known(op.src[i]);
  }
  std::fesetround(HOST_ROUNDING[w.round32()]);
  volatile float r = f(v[0], v[1], v[2]);
  std::fesetround(FE_TONEAREST);
  w.set(op.dst, bits_of(w.keeps_output32() ? r : flush(r)), known);
}
float least(float a, float b) { return std::isnan(a) ? b : std::isnan(b) ? a : a < b || (a == b && std::signbit(a)) ? a : b; }
float most(float a, float b) { return std::isnan(a) ? b : std::isnan(b) ? a : a > b || (a == b && !std::signbit(a)) ? a : b; }
float minimum(float a, float b) { return std::isnan(a) ? a : std::isnan(b) ? b : least(a, b); }
float maximum(float a, float b) { return std::isnan(a) ? a : std::isnan(b) ? b : most(a, b); }

// `a` is an integer here.
#define TO_FLOAT(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { volatile uint32_t held = w.scalar(op, op.src[0]); std::fesetround(HOST_ROUNDING[w.round32()]); const uint32_t a = held; volatile float r = static_cast<float>(expr); std::fesetround(FE_TONEAREST); w.set(op.dst, bits_of(r), w.scalar_known(op.src[0])); })
#define FLOAT_2(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { write32(w, op, 2, [](float a, float b, float) -> float { return (expr); }); })
#define FLOAT_1(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { write32(w, op, 1, [](float a, float, float) -> float { return (expr); }); })
#define TO_INTEGER(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { const float a = float_of(w.scalar(op, op.src[0])); w.set(op.dst, expr, w.scalar_known(op.src[0])); })
float modified(Wave& w, const Op& op) {
  uint32_t bits = w.scalar(op, op.src[0]);
  if (op.abs & 1) bits &= 0x7fffffff;
  if (op.neg & 1) bits ^= 0x80000000;
  return flush(float_of(bits));
}
float finished(const Op& op, double value) {
  static const float FACTOR[] = {1.0f, 2.0f, 4.0f, 0.5f};
  float r = flush(static_cast<float>(value)) * FACTOR[op.omod & 3];
  return op.clamp ? r > 0.0f ? std::min(r, 1.0f) : 0.0f : r;
}
#define TRANSCENDENTAL(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { const double a = modified(w, op); w.set(op.dst, bits_of(finished(op, expr)), w.scalar_known(op.src[0])); })
float compared(const Wave& w, const Op& op, int i) {
  float v = float_of(w.scalar(op, op.src[i]));
  return w.keeps_input32() ? v : flush(v);
}
#define COMPARE_F(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { const float a = compared(w, op, 0), b = compared(w, op, 1); w.scc = (expr); w.scc_known = w.scalar_known(op.src[0]) && w.scalar_known(op.src[1]); })

}  // namespace

void register_scalar_float() {
  TO_FLOAT("s_cvt_f32_i32", static_cast<int32_t>(a));
  TO_FLOAT("s_cvt_f32_u32", a);
  TO_INTEGER("s_cvt_i32_f32", to_i32(a));
  TO_INTEGER("s_cvt_u32_f32", to_u32(a));
  FLOAT_2("s_add_f32", a + b);
  FLOAT_2("s_sub_f32", a - b);
  FLOAT_2("s_mul_f32", a * b);
  for (const char* name : {"s_min_num_f32", "s_min_f32"}) FLOAT_2(name, least(a, b));
  for (const char* name : {"s_max_num_f32", "s_max_f32"}) FLOAT_2(name, most(a, b));
  FLOAT_2("s_minimum_f32", minimum(a, b));
  FLOAT_2("s_maximum_f32", maximum(a, b));
  FLOAT_1("s_ceil_f32", std::ceil(a));
  FLOAT_1("s_floor_f32", std::floor(a));
  FLOAT_1("s_trunc_f32", std::trunc(a));
  FLOAT_1("s_rndne_f32", __builtin_roundeven(a));
  for (const char* name : {"s_fmac_f32", "s_fmamk_f32", "s_fmaak_f32"})
    add(name, Family::scalar, [](Wave& w, const Op& op) {
      write32(w, op, 3, [](float a, float b, float c) { return std::fma(a, b, c); });
    });
  // transcendental units on scalar registers: v_s_*
  TRANSCENDENTAL("v_s_exp_f32", std::exp2(a));
  TRANSCENDENTAL("v_s_log_f32", std::log2(a));
  TRANSCENDENTAL("v_s_rcp_f32", 1.0 / a);
  TRANSCENDENTAL("v_s_rsq_f32", 1.0 / std::sqrt(a));
  TRANSCENDENTAL("v_s_sqrt_f32", std::sqrt(a));
  COMPARE_F("s_cmp_lt_f32", a < b); COMPARE_F("s_cmp_eq_f32", a == b); COMPARE_F("s_cmp_le_f32", a <= b);
  COMPARE_F("s_cmp_gt_f32", a > b); COMPARE_F("s_cmp_lg_f32", a < b || a > b); COMPARE_F("s_cmp_ge_f32", a >= b);
  COMPARE_F("s_cmp_o_f32", a == a && b == b); COMPARE_F("s_cmp_u_f32", a != a || b != b);
  COMPARE_F("s_cmp_nge_f32", !(a >= b)); COMPARE_F("s_cmp_nlg_f32", !(a < b || a > b)); COMPARE_F("s_cmp_ngt_f32", !(a > b));
  COMPARE_F("s_cmp_nle_f32", !(a <= b)); COMPARE_F("s_cmp_neq_f32", !(a == b)); COMPARE_F("s_cmp_nlt_f32", !(a < b));
}

}  // namespace emu
