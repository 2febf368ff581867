// Scalar float16 ALU of RDNA 3.5 and 4. Operands and results lie in low halves; the high one is kept, as the documents
// write D0.f16, and set to zero by the transcendental units alone.
#include "operands.h"
#include "registry.h"

namespace emu {

namespace {

// Constants are float16 here, as wide as the operation.
uint32_t bits16(const Wave& w, const Op& op, unsigned code) {
  uint32_t bits = w.scalar(op, code);
  if (code == 248) return 0x3118;  // 1 / (2 pi)
  return code >= 240 && code < 248 ? to_half(float_of(bits)) : bits & 0xffff;
}

double flushed(bool keeps, uint32_t half) { return from_half(keeps || half & 0x7c00 ? half : half & 0x8000); }
double source(const Wave& w, const Op& op, int i) { return flushed(w.keeps_input16_64(), bits16(w, op, op.src[i])); }

uint32_t rounded(const Wave& w, double value) {
  uint32_t half = to_half(value, w.round16_64());
  return w.keeps_output16_64() || half & 0x7c00 ? half : half & 0x8000;
}

bool known(const Wave& w, const Op& op, int sources) {
  bool all = true;
  for (int i = 0; i < sources; ++i) all &= w.scalar_known(op.src[i]);
  return all;
}

double least(double a, double b) { return std::isnan(a) ? b : std::isnan(b) ? a : a < b || (a == b && std::signbit(a)) ? a : b; }
double most(double a, double b) { return std::isnan(a) ? b : std::isnan(b) ? a : a > b || (a == b && !std::signbit(a)) ? a : b; }
double minimum(double a, double b) { return std::isnan(a) ? a : std::isnan(b) ? b : least(a, b); }
double maximum(double a, double b) { return std::isnan(a) ? a : std::isnan(b) ? b : most(a, b); }

// A transcendental unit, whose operand and result take VOP3's modifiers.
template <class F>
void unit(Wave& w, const Op& op, F f) {
  static const double FACTOR[] = {1.0, 2.0, 4.0, 0.5};
  uint32_t bits = bits16(w, op, op.src[0]);
  if (op.abs & 1) bits &= 0x7fff;
  if (op.neg & 1) bits ^= 0x8000;
  double r = f(flushed(w.keeps_input16_64(), bits));
  if (op.omod) r = from_half(rounded(w, r)) * FACTOR[op.omod & 3];
  if (op.clamp) r = r > 0 ? std::min(r, 1.0) : 0.0;
  w.set(op.dst, rounded(w, r), w.scalar_known(op.src[0]));
}

void write(Wave& w, const Op& op, double value, bool is_known) {
  w.set(op.dst, (w.scalar(op, op.dst) & 0xffff0000) | rounded(w, value), is_known);
}

#define HALF_1(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { const double a = source(w, op, 0); write(w, op, expr, known(w, op, 1)); })
#define HALF_2(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { const double a = source(w, op, 0), b = source(w, op, 1); write(w, op, expr, known(w, op, 2)); })
#define COMPARE_H(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { const double a = source(w, op, 0), b = source(w, op, 1); w.scc = (expr); w.scc_known = known(w, op, 2); })
#define UNIT(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { unit(w, op, [](double a) -> double { return (expr); }); })

double float32(const Wave& w, const Op& op, int i) {
  float v = float_of(w.scalar(op, op.src[i]));
  return w.keeps_input32() ? v : flush(v);
}

void conversions() {
  add("s_cvt_f16_f32", Family::scalar, [](Wave& w, const Op& op) { write(w, op, float32(w, op, 0), known(w, op, 1)); });
  add("s_cvt_pk_rtz_f16_f32", Family::scalar, [](Wave& w, const Op& op) {
    w.set(op.dst, to_half(float32(w, op, 0), to_zero) | to_half(float32(w, op, 1), to_zero) << 16, known(w, op, 2));
  });
  add("s_cvt_f32_f16", Family::scalar, [](Wave& w, const Op& op) {
    w.set(op.dst, bits_of(static_cast<float>(source(w, op, 0))), known(w, op, 1));
  });
  add("s_cvt_hi_f32_f16", Family::scalar, [](Wave& w, const Op& op) {
    // constants but literals are of 16 bits, and have no high half
    unsigned code = op.src[0];
    uint32_t high = code < 128 || code == LITERAL ? w.scalar(op, code) >> 16 : 0;
    w.set(op.dst, bits_of(static_cast<float>(flushed(w.keeps_input16_64(), high))), known(w, op, 1));
  });
}

void compares() {
  COMPARE_H("s_cmp_lt_f16", a < b); COMPARE_H("s_cmp_eq_f16", a == b); COMPARE_H("s_cmp_le_f16", a <= b);
  COMPARE_H("s_cmp_gt_f16", a > b); COMPARE_H("s_cmp_lg_f16", a < b || a > b); COMPARE_H("s_cmp_ge_f16", a >= b);
  COMPARE_H("s_cmp_o_f16", a == a && b == b); COMPARE_H("s_cmp_u_f16", a != a || b != b);
  COMPARE_H("s_cmp_nge_f16", !(a >= b)); COMPARE_H("s_cmp_nlg_f16", !(a < b || a > b)); COMPARE_H("s_cmp_ngt_f16", !(a > b));
  COMPARE_H("s_cmp_nle_f16", !(a <= b)); COMPARE_H("s_cmp_neq_f16", !(a == b)); COMPARE_H("s_cmp_nlt_f16", !(a < b));
}

}  // namespace

void register_scalar_half() {
  conversions();
  compares();
  HALF_2("s_add_f16", a + b);
  HALF_2("s_sub_f16", a - b);
  HALF_2("s_mul_f16", a * b);
  for (const char* name : {"s_min_num_f16", "s_min_f16"}) HALF_2(name, least(a, b));
  for (const char* name : {"s_max_num_f16", "s_max_f16"}) HALF_2(name, most(a, b));
  HALF_2("s_minimum_f16", minimum(a, b));
  HALF_2("s_maximum_f16", maximum(a, b));
  HALF_1("s_ceil_f16", std::ceil(a));
  HALF_1("s_floor_f16", std::floor(a));
  HALF_1("s_trunc_f16", std::trunc(a));
  HALF_1("s_rndne_f16", __builtin_roundeven(a));
  add("s_fmac_f16", Family::scalar, [](Wave& w, const Op& op) {
    write(w, op, std::fma(source(w, op, 0), source(w, op, 1), source(w, op, 2)), known(w, op, 3));
  });
  UNIT("v_s_exp_f16", std::exp2(a));
  UNIT("v_s_log_f16", std::log2(a));
  UNIT("v_s_rcp_f16", 1.0 / a);
  UNIT("v_s_rsq_f16", a < 0 ? NAN : 1.0 / std::sqrt(a));
  UNIT("v_s_sqrt_f16", std::sqrt(a));
}

}  // namespace emu
