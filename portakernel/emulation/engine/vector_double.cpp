// Vector float64 arithmetic.
#include "registry.h"

namespace emu {

namespace {

double least(double a, double b) { return std::isnan(a) ? b : std::isnan(b) ? a : a < b || (a == b && std::signbit(a)) ? a : b; }
double most(double a, double b) { return std::isnan(a) ? b : std::isnan(b) ? a : a > b || (a == b && !std::signbit(a)) ? a : b; }

const VectorOp OPS[] = {
    F64_2("v_add_f64", a + b), F64_2("v_mul_f64", a * b), F64_2("v_min_f64", least(a, b)), F64_2("v_max_f64", most(a, b)),
    F64_2("v_min_num_f64", least(a, b)), F64_2("v_max_num_f64", most(a, b)),
    F64_3("v_fma_f64", std::fma(a, b, c)), F64_3("v_fmac_f64", std::fma(a, b, c)),
    F64_1("v_trunc_f64", std::trunc(a)), F64_1("v_ceil_f64", std::ceil(a)), F64_1("v_floor_f64", std::floor(a)),
    F64_1("v_rndne_f64", __builtin_roundeven(a)),
    F64_1("v_fract_f64", std::isinf(a) ? NAN : std::min(a - std::floor(a), 0x1.fffffffffffffp-1)),
    {"v_ldexp_f64", Type::f64, {Type::f64, Type::raw32}, [](Alu& s) {
       EMU_LANES s.out.f64[l] = std::ldexp(s.in[0].f64[l], std::max(-4000, std::min(4000, s.in[1].i32[l])));
     }},
    {"v_frexp_mant_f64", Type::f64, {Type::f64}, [](Alu& s) {
       EMU_LANES { int e; double a = s.in[0].f64[l]; s.out.f64[l] = std::isfinite(a) ? std::frexp(a, &e) : a; }
     }},
    {"v_frexp_exp_i32_f64", Type::b32, {Type::f64}, [](Alu& s) {
       EMU_LANES { int e = 0; double a = s.in[0].f64[l]; if (std::isfinite(a)) std::frexp(a, &e); s.out.i32[l] = std::isfinite(a) ? e : 0; }
     }},
};

}  // namespace

void register_vector_double() { add_vectors(OPS); }

}  // namespace emu
