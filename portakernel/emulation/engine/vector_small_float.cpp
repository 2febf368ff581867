// Conversions of float8 (of each architecture's formats), and those by a random number.
//
// Rounding is to nearest even whatever MODE says. What is too large becomes NaN or infinity, or, where MODE's FP16_OVFL
// is set, the largest finite value. By a random number: its upper bits are added to those that are dropped.
#include "registry.h"
#include "small_float.h"

namespace emu {

namespace {

bool saturates(const Wave& w) { return w.mode >> 23 & 1; }

const SmallFloat& format(const Wave& w, bool bf) { return bf ? bf8_of(*w.launch) : fp8_of(*w.launch); }

uint32_t byte_of(const Alu& s, int l) {
  const Op& op = *s.op;
  uint32_t word = s.in[0].u32[l];
  if (op.permute == Permute::sdwa || !(op.flags & VOP3_FORM)) return word & 255;
  // the two bits of op_sel come in the opposite order
  unsigned byte = s.wave->rdna() ? (op.op_sel & 1) << 1 | (op.op_sel >> 1 & 1) : op.op_sel & 3;
  return word >> 8 * byte & 255;
}

template <bool BF>
void from_one(Alu& s) {
  const SmallFloat& f = format(*s.wave, BF);
  EMU_LANES s.out.f32[l] = static_cast<float>(from_small(f, byte_of(s, l)));
}

template <bool BF>
void from_two(Alu& s) {
  const SmallFloat& f = format(*s.wave, BF);
  bool high = s.op->permute != Permute::sdwa && (s.op->flags & VOP3_FORM) && s.op->op_sel & 1;
  EMU_LANES {
    uint32_t two = s.in[0].u32[l] >> (high ? 16 : 0);
    uint64_t low = bits_of(static_cast<float>(from_small(f, two & 255)));
    s.out.u64[l] = low | uint64_t{bits_of(static_cast<float>(from_small(f, two >> 8 & 255)))} << 32;
  }
}

template <bool BF>
void to_two(Alu& s) {
  const SmallFloat& f = format(*s.wave, BF);
  const Register& old = s.wave->vector(s.op->dst);
  bool high = s.op->op_sel >> 3 & 1, limited = saturates(*s.wave);
  EMU_LANES {
    uint32_t two = to_small(f, s.in[0].f32[l], limited) | to_small(f, s.in[1].f32[l], limited) << 8;
    s.out.u32[l] = high ? (old.lane[l] & 0xffff) | two << 16 : (old.lane[l] & 0xffff0000) | two;
  }
}

template <bool BF>
void to_one_random(Alu& s) {
  const SmallFloat& f = format(*s.wave, BF);
  const Register& old = s.wave->vector(s.op->dst);
  unsigned shift = 8 * (s.op->op_sel >> 2 & 3);
  EMU_LANES {
    uint32_t one = to_small(f, s.in[0].f32[l], saturates(*s.wave), true, s.in[1].u32[l]);
    s.out.u32[l] = (old.lane[l] & ~(255u << shift)) | one << shift;
  }
}

template <bool BF>
void to_half_random(Alu& s) {
  constexpr SmallFloat f = BF ? SmallFloat{16, 7, 127, Specials::ieee} : SmallFloat{16, 10, 15, Specials::ieee};
  const Register& old = s.wave->vector(s.op->dst);
  unsigned shift = s.op->op_sel >> 3 & 1 ? 16 : 0;
  EMU_LANES {
    uint32_t one = to_small(f, s.in[0].f32[l], !BF && saturates(*s.wave), true, s.in[1].u32[l]);
    s.out.u32[l] = (old.lane[l] & ~(0xffffu << shift)) | one << shift;
  }
}

template <bool SIGNED>
void shift_two(Alu& s) {
  const Register& old = s.wave->vector(s.op->dst);
  int32_t low = SIGNED ? -128 : 0, high = SIGNED ? 127 : 255;
  unsigned place = s.op->op_sel >> 3 & 1 ? 16 : 0;
  EMU_LANES {
    uint32_t two = 0;
    for (int i = 0; i < 2; ++i)
      two |= (static_cast<uint32_t>(std::max(low, std::min(high, s.in[i].i32[l] >> (s.in[2].u32[l] & 31)))) & 255) << 8 * i;
    s.out.u32[l] = (old.lane[l] & ~(0xffffu << place)) | two << place;
  }
}

const VectorOp OPS[] = {
    {"v_cvt_f32_fp8", Type::f32, {Type::raw32}, from_one<false>}, {"v_cvt_f32_bf8", Type::f32, {Type::raw32}, from_one<true>},
    {"v_cvt_pk_f32_fp8", Type::b64, {Type::raw32}, from_two<false>},
    {"v_cvt_pk_f32_bf8", Type::b64, {Type::raw32}, from_two<true>},
    {"v_cvt_pk_fp8_f32", Type::b32, {Type::f32, Type::f32}, to_two<false>},
    {"v_cvt_pk_bf8_f32", Type::b32, {Type::f32, Type::f32}, to_two<true>},
    {"v_cvt_sr_fp8_f32", Type::b32, {Type::f32, Type::raw32}, to_one_random<false>},
    {"v_cvt_sr_bf8_f32", Type::b32, {Type::f32, Type::raw32}, to_one_random<true>},
    {"v_cvt_sr_f16_f32", Type::b32, {Type::f32, Type::raw32}, to_half_random<false>},
    {"v_cvt_sr_bf16_f32", Type::b32, {Type::f32, Type::raw32}, to_half_random<true>},
    {"v_ashr_pk_i8_i32", Type::b32, {Type::raw32, Type::raw32, Type::raw32}, shift_two<true>},
    {"v_ashr_pk_u8_i32", Type::b32, {Type::raw32, Type::raw32, Type::raw32}, shift_two<false>},
    U32_1("v_prng_b32", a << 1 ^ (a >> 31 ? 197u : 0u)),
};

}  // namespace

void register_vector_small_float() { add_vectors(OPS); }

}  // namespace emu
