// Packed arithmetic of VOP3P: two float32 in a pair of registers; two 16-bit values in one, each half chosen by op_sel.
#include "registry.h"

namespace emu {

namespace {

// Half `high` of source `i` in lane `l`: op_sel picks it for the low result, op_sel_hi for the high one.
float pick32(const Alu& s, int i, int l, bool high) {
  unsigned select = (high ? s.op->op_sel_hi : s.op->op_sel) >> i & 1;
  float v = float_of(static_cast<uint32_t>(s.in[i].u64[l] >> 32 * select));
  return (high ? s.op->neg_hi : s.op->neg) >> i & 1 ? -v : v;
}

template <class F>
void packed32(Alu& s, F f) {
  EMU_LANES {
    uint64_t r = 0;
    for (int high = 0; high < 2; ++high) {
      float v = f(pick32(s, 0, l, high), pick32(s, 1, l, high), [&] { return pick32(s, 2, l, high); });
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
  return from_half(v);
}

#define PK_F16_2(name, expr) {name, Type::b32, {Type::pk_f16, Type::pk_f16}, [](Alu& s) { EMU_LANES { uint32_t r = 0; for (int h = 0; h < 2; ++h) { const double a = pick_half(s, 0, l, h), b = pick_half(s, 1, l, h); double v = (expr); if (s.op->clamp) v = v > 0 ? std::min(v, 1.0) : 0; r |= to_half(v, s.wave->round16_64()) << 16 * h; } s.out.u32[l] = r; } }}
#define PK_F16_3(name, expr) {name, Type::b32, {Type::pk_f16, Type::pk_f16, Type::pk_f16}, [](Alu& s) { EMU_LANES { uint32_t r = 0; for (int h = 0; h < 2; ++h) { const double a = pick_half(s, 0, l, h), b = pick_half(s, 1, l, h), c = pick_half(s, 2, l, h); double v = (expr); if (s.op->clamp) v = v > 0 ? std::min(v, 1.0) : 0; r |= to_half(v, s.wave->round16_64()) << 16 * h; } s.out.u32[l] = r; } }}
#define PK_32(name, expr) {name, Type::pk_f32, {Type::pk_f32, Type::pk_f32}, [](Alu& s) { packed32(s, [](float a, float b, auto) { return (expr); }); }}

const VectorOp OPS[] = {
    PK_32("v_pk_add_f32", a + b), PK_32("v_pk_mul_f32", a * b),
    {"v_pk_fma_f32", Type::pk_f32, {Type::pk_f32, Type::pk_f32, Type::pk_f32}, [](Alu& s) {
       packed32(s, [](float a, float b, auto c) { return std::fma(a, b, c()); });
     }},
    // each result picks its half of one source: the low of the first, the high of the second
    {"v_pk_mov_b32", Type::b64, {Type::raw64, Type::raw64}, [](Alu& s) {
       EMU_LANES {
         uint32_t low = static_cast<uint32_t>(s.in[0].u64[l] >> 32 * (s.op->op_sel & 1));
         uint32_t high = static_cast<uint32_t>(s.in[1].u64[l] >> 32 * (s.op->op_sel >> 1 & 1));
         s.out.u64[l] = low | uint64_t{high} << 32;
       }
     }},
    PK_F16_2("v_pk_add_f16", a + b), PK_F16_2("v_pk_mul_f16", a * b), PK_F16_3("v_pk_fma_f16", std::fma(a, b, c)),
    PK_F16_2("v_pk_min_f16", std::fmin(a, b)), PK_F16_2("v_pk_max_f16", std::fmax(a, b)),
    PK_F16_2("v_pk_min_num_f16", std::fmin(a, b)), PK_F16_2("v_pk_max_num_f16", std::fmax(a, b)),
};

}  // namespace

void register_vector_packed() { add_vectors(OPS); }

}  // namespace emu
