// Dot products of the parts of registers: v_dot2_f32_f16, v_dot4_i32_iu8 and their like.
// Floating-point sums are exact and rounded once, to nearest even whatever MODE says; gfx90a takes subnormal numbers as zero and gives none.
#include "registry.h"
#include "small_float.h"

namespace emu {

namespace {

#define THREE {Type::raw32, Type::raw32, Type::raw32}
// pk_b16: constants are float16's, and MODE says nothing.
#define HALVES {Type::pk_b16, Type::pk_b16, Type::raw32}
#define BF_HALVES {Type::pk_bf16, Type::pk_bf16, Type::raw32}

bool flushes(const Wave& w) { return w.launch->major == 9 && w.launch->minor == 0; }

// A sum of few terms whose rest is kept beside it. A result that is not exact ends in a one, so that rounding it to a
// smaller format rounds the exact sum.
class Sum {
 public:
  explicit Sum(double first) : total_(first) {}
  void add(double term) {
    double next = total_ + term, back = next - total_;
    rest_ += (total_ - (next - back)) + (term - back);
    total_ = next;
  }
  double odd() const {
    if (!std::isfinite(total_) || rest_ == 0) return total_;
    double made = total_ + rest_, lost = rest_ - (made - total_);
    uint64_t bits = bits_of(made);
    if (lost == 0 || bits & 1) return made;
    return double_of((lost > 0) == (made > 0) ? bits + 1 : bits - 1);
  }

 private:
  double total_, rest_ = 0;
};

// To float32 in the same way: cut, and ending in a one where something was lost.
float odd_float(double value) {
  float made = static_cast<float>(value);
  if (!std::isfinite(made) || made == value) return std::isinf(made) && std::isfinite(value) ? std::copysign(0x1.fffffep127f, made) : made;
  uint32_t bits = bits_of(made);
  if (std::fabs(made) > std::fabs(value)) --bits;
  return float_of(bits | 1);
}

// A result's modifiers.
float clamped(const Alu& s, float v) {
  static const float FACTOR[] = {1.0f, 2.0f, 4.0f, 0.5f};
  v *= FACTOR[s.op->omod];
  return s.op->clamp ? v > 0 ? std::min(v, 1.0f) : 0.0f : v;
}

// Half `half` of a source of two: op_sel picks the register's half, neg and neg_hi are those of the low and the high one.
template <bool BF>
double half_of(const Alu& s, int i, int l, int half) {
  bool packed = s.op->flags & PACKED_FORM;
  unsigned select = packed ? (half ? s.op->op_sel_hi : s.op->op_sel) >> i & 1 : half;
  uint32_t bits = s.in[i].u32[l] >> 16 * select & 0xffff;
  if (flushes(*s.wave) && !(bits & (BF ? 0x7f80 : 0x7c00))) bits &= 0x8000;
  double value = BF ? from_bfloat(bits) : from_half(bits);
  return packed && (half ? s.op->neg_hi : s.op->neg) >> i & 1 ? -value : value;
}

double addend(const Alu& s, int l) {
  float c = s.in[2].f32[l];
  if (flushes(*s.wave)) c = flush(c);
  if (!(s.op->flags & PACKED_FORM)) return c;
  if (s.op->neg_hi >> 2 & 1) c = std::fabs(c);
  return s.op->neg >> 2 & 1 ? -c : c;
}

template <bool BF>
void dot2(Alu& s) {
  EMU_LANES {
    Sum sum(addend(s, l));
    for (int half = 0; half < 2; ++half) sum.add(half_of<BF>(s, 0, l, half) * half_of<BF>(s, 1, l, half));
    float rounded = clamped(s, static_cast<float>(sum.odd()));
    s.out.f32[l] = flushes(*s.wave) ? flush(rounded) : rounded;
  }
}

// RDNA's with results of 16 bits: sources 0 and 1 are pairs, source 2 is one half.
template <bool BF>
void dot2_half(Alu& s) {
  EMU_LANES {
    Sum sum(BF ? from_bfloat(s.in[2].u32[l]) : from_half(s.in[2].u32[l]));
    for (int half = 0; half < 2; ++half) {
      double part[2];
      for (int i = 0; i < 2; ++i) {
        uint32_t bits = s.in[i].u32[l] >> 16 * half & 0xffff;
        part[i] = BF ? from_bfloat(bits) : from_half(bits);
        if (s.op->abs >> i & 1) part[i] = std::fabs(part[i]);
        if (s.op->neg >> i & 1) part[i] = -part[i];
      }
      sum.add(part[0] * part[1]);
    }
    float rounded = BF ? from_bfloat(to_bfloat(odd_float(sum.odd()))) : from_half(to_half(sum.odd()));
    s.out.u32[l] = BF ? to_bfloat(clamped(s, rounded)) : to_half(clamped(s, rounded));
  }
}

int64_t part_of(uint32_t word, unsigned at, unsigned bits, bool is_signed) {
  int64_t part = word >> at & ((1u << bits) - 1);
  return is_signed && part >> (bits - 1) ? part - (int64_t{1} << bits) : part;
}

// BITS of each part; NEG: neg says of RDNA's sources whether they are signed, else SIGNED does.
template <unsigned BITS, bool SIGNED, bool NEG = false>
void dot_integer(Alu& s) {
  bool halves = BITS == 16 && s.op->flags & PACKED_FORM;  // op_sel picks them
  auto word = [&](int i, int l) {
    uint32_t bits = s.in[i].u32[l];
    if (!halves) return bits;
    return (bits >> 16 * (s.op->op_sel >> i & 1) & 0xffff) | bits >> 16 * (s.op->op_sel_hi >> i & 1) << 16;
  };
  bool sign_a = NEG ? s.op->neg & 1 : SIGNED, sign_b = NEG ? s.op->neg >> 1 & 1 : SIGNED;
  EMU_LANES {
    int64_t sum = SIGNED ? s.in[2].i32[l] : static_cast<int64_t>(s.in[2].u32[l]);
    for (unsigned at = 0; at < 32; at += BITS)
      sum += part_of(word(0, l), at, BITS, sign_a) * part_of(word(1, l), at, BITS, sign_b);
    if (s.op->clamp) {
      int64_t low = SIGNED ? INT32_MIN : 0, high = SIGNED ? INT32_MAX : int64_t{UINT32_MAX};
      sum = std::max(low, std::min(high, sum));
    }
    s.out.u32[l] = static_cast<uint32_t>(sum);
  }
}

template <bool BF_A, bool BF_B>
void dot4_small(Alu& s) {
  const SmallFloat &a = BF_A ? BF8 : FP8, &b = BF_B ? BF8 : FP8;
  EMU_LANES {
    Sum sum(addend(s, l));
    for (unsigned at = 0; at < 32; at += 8)
      sum.add(from_small(a, s.in[0].u32[l] >> at & 255) * from_small(b, s.in[1].u32[l] >> at & 255));
    s.out.f32[l] = clamped(s, static_cast<float>(sum.odd()));
  }
}

const VectorOp OPS[] = {
    {"v_dot2_f32_f16", Type::b32, HALVES, dot2<false>}, {"v_dot2_f32_bf16", Type::b32, BF_HALVES, dot2<true>},
    {"v_dot2c_f32_f16", Type::b32, HALVES, dot2<false>}, {"v_dot2acc_f32_f16", Type::b32, HALVES, dot2<false>},
    {"v_dot2c_f32_bf16", Type::b32, BF_HALVES, dot2<true>},
    {"v_dot2_f16_f16", Type::b16, {Type::pk_b16, Type::pk_b16, Type::b16}, dot2_half<false>},
    {"v_dot2_bf16_bf16", Type::b16, {Type::pk_bf16, Type::pk_bf16, Type::b16}, dot2_half<true>},
    {"v_dot2_i32_i16", Type::b32, THREE, dot_integer<16, true>}, {"v_dot2_u32_u16", Type::b32, THREE, dot_integer<16, false>},
    {"v_dot2c_i32_i16", Type::b32, THREE, dot_integer<16, true>},
    {"v_dot4_i32_i8", Type::b32, THREE, dot_integer<8, true>}, {"v_dot4_u32_u8", Type::b32, THREE, dot_integer<8, false>},
    {"v_dot4c_i32_i8", Type::b32, THREE, dot_integer<8, true>},
    {"v_dot4_i32_iu8", Type::b32, THREE, dot_integer<8, true, true>},
    {"v_dot8_i32_i4", Type::b32, THREE, dot_integer<4, true>}, {"v_dot8_u32_u4", Type::b32, THREE, dot_integer<4, false>},
    {"v_dot8c_i32_i4", Type::b32, THREE, dot_integer<4, true>},
    {"v_dot8_i32_iu4", Type::b32, THREE, dot_integer<4, true, true>},
    {"v_dot4_f32_fp8_fp8", Type::b32, THREE, dot4_small<false, false>},
    {"v_dot4_f32_fp8_bf8", Type::b32, THREE, dot4_small<false, true>},
    {"v_dot4_f32_bf8_fp8", Type::b32, THREE, dot4_small<true, false>},
    {"v_dot4_f32_bf8_bf8", Type::b32, THREE, dot4_small<true, true>},
};

}  // namespace

void register_vector_dot() { add_vectors(OPS); }

}  // namespace emu
