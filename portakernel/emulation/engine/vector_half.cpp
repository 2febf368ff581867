// Vector float16 arithmetic; bfloat16's where an architecture has it.
#include "registry.h"

namespace emu {

namespace {

double least(double a, double b) { return std::isnan(a) ? b : std::isnan(b) ? a : a < b || (a == b && std::signbit(a)) ? a : b; }
double most(double a, double b) { return std::isnan(a) ? b : std::isnan(b) ? a : a > b || (a == b && !std::signbit(a)) ? a : b; }
double minimum(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : least(a, b); }
double maximum(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : most(a, b); }
double median(double a, double b, double c) {
  if (std::isnan(a) || std::isnan(b) || std::isnan(c)) return least(least(a, b), c);
  return most(least(a, b), least(most(a, b), c));
}

#define KEEP(op) [] { VectorOp made = op; made.flags |= KEEPS_HIGH; return made; }()

const VectorOp OPS[] = {
    F16_2("v_add_f16", a + b), F16_2("v_sub_f16", a - b), F16_2("v_subrev_f16", b - a), F16_2("v_mul_f16", a * b),
    F16_2("v_min_f16", least(a, b)), F16_2("v_max_f16", most(a, b)),
    F16_2("v_min_num_f16", least(a, b)), F16_2("v_max_num_f16", most(a, b)),
    F16_2("v_minimum_f16", minimum(a, b)), F16_2("v_maximum_f16", maximum(a, b)),
    KEEP(F16_3("v_fma_f16", std::fma(a, b, c))), F16_3("v_fmac_f16", std::fma(a, b, c)),
    F16_3("v_fmamk_f16", std::fma(a, b, c)), F16_3("v_fmaak_f16", std::fma(a, b, c)),
    F16_3("v_fma_legacy_f16", std::fma(a, b, c)),
    KEEP(F16_3("v_min3_f16", least(least(a, b), c))), KEEP(F16_3("v_max3_f16", most(most(a, b), c))),
    KEEP(F16_3("v_min3_num_f16", least(least(a, b), c))), KEEP(F16_3("v_max3_num_f16", most(most(a, b), c))),
    KEEP(F16_3("v_med3_f16", median(a, b, c))), KEEP(F16_3("v_med3_num_f16", median(a, b, c))),
    F16_1("v_trunc_f16", std::trunc(a)), F16_1("v_ceil_f16", std::ceil(a)), F16_1("v_floor_f16", std::floor(a)),
    F16_1("v_rndne_f16", __builtin_roundeven(a)), F16_1("v_fract_f16", std::min(a - std::floor(a), 0x1.ffcp-1)),
    {"v_ldexp_f16", Type::f16, {Type::f16, Type::b16}, [](Alu& s) {
       EMU_LANES s.out.u32[l] = to_half(std::ldexp(static_cast<double>(s.half(0, l)), std::max(-300, std::min<int>(300, static_cast<int16_t>(s.in[1].u32[l])))), s.wave->round16_64());
     }},
};

}  // namespace

void register_vector_half() { add_vectors(OPS); }

}  // namespace emu
