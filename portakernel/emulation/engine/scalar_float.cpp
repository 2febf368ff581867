// Scalar float ALU of RDNA 3.5 and 4.
#include "registry.h"

namespace emu {

namespace {

int32_t to_i32(float v) { return std::isnan(v) ? 0 : v >= 2147483648.0f ? INT32_MAX : v <= -2147483648.0f ? INT32_MIN : static_cast<int32_t>(v); }
uint32_t to_u32(float v) { return !(v > 0) ? 0 : v >= 4294967296.0f ? ~0u : static_cast<uint32_t>(v); }

#define TO_FLOAT(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { const uint32_t a = w.scalar(op, op.src[0]); w.set(op.dst, bits_of(static_cast<float>(expr)), w.scalar_known(op.src[0])); })
#define FLOAT_2(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { const float a = float_of(w.scalar(op, op.src[0])), b = float_of(w.scalar(op, op.src[1])); w.set(op.dst, bits_of(static_cast<float>(expr)), w.scalar_known(op.src[0]) && w.scalar_known(op.src[1])); })
#define FLOAT_1(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { const float a = float_of(w.scalar(op, op.src[0])); w.set(op.dst, bits_of(static_cast<float>(expr)), w.scalar_known(op.src[0])); })
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
#define COMPARE_F(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { const float a = float_of(w.scalar(op, op.src[0])), b = float_of(w.scalar(op, op.src[1])); w.scc = (expr); w.scc_known = w.scalar_known(op.src[0]) && w.scalar_known(op.src[1]); })

}  // namespace

void register_scalar_float() {
  TO_FLOAT("s_cvt_f32_i32", static_cast<int32_t>(a));
  TO_FLOAT("s_cvt_f32_u32", a);
  TO_FLOAT("s_cvt_f32_f16", from_half(a & 0xffff));
  TO_INTEGER("s_cvt_i32_f32", to_i32(a));
  TO_INTEGER("s_cvt_u32_f32", to_u32(a));
  FLOAT_2("s_add_f32", a + b);
  FLOAT_2("s_sub_f32", a - b);
  FLOAT_2("s_mul_f32", a * b);
  FLOAT_2("s_min_num_f32", std::fmin(a, b));
  FLOAT_2("s_max_num_f32", std::fmax(a, b));
  FLOAT_2("s_min_f32", std::fmin(a, b));
  FLOAT_2("s_max_f32", std::fmax(a, b));
  FLOAT_1("s_ceil_f32", std::ceil(a));
  FLOAT_1("s_floor_f32", std::floor(a));
  FLOAT_1("s_trunc_f32", std::trunc(a));
  FLOAT_1("s_rndne_f32", std::nearbyint(a));
  for (const char* name : {"s_fmac_f32", "s_fmamk_f32", "s_fmaak_f32"})
    add(name, Family::scalar, [](Wave& w, const Op& op) {
      float a = float_of(w.scalar(op, op.src[0])), b = float_of(w.scalar(op, op.src[1])), c = float_of(w.scalar(op, op.src[2]));
      w.set(op.dst, bits_of(std::fma(a, b, c)), w.scalar_known(op.src[0]) && w.scalar_known(op.src[1]) && w.scalar_known(op.src[2]));
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
