// v_cvt_scalef32_*: conversions of gfx950 to and from floats of 8, 6 and 4 bits, with a power of two taken from the
// exponent of a float32. Results of 6 and 4 bits are the largest value where they are too large.
#include "registry.h"
#include "small_float.h"

namespace emu {

namespace {

enum class Wide : uint8_t { f32, f16, bf16 };

struct Conversion {
  const char* name;
  const SmallFloat* small;
  Wide wide;
  uint8_t count;  // elements of a lane
  bool to_small_form, random;
};

const Conversion CONVERSIONS[] = {
    {"pk_fp8_f32", &FP8, Wide::f32, 2, true, false}, {"pk_bf8_f32", &BF8, Wide::f32, 2, true, false},
    {"pk_fp8_f16", &FP8, Wide::f16, 2, true, false}, {"pk_bf8_f16", &BF8, Wide::f16, 2, true, false},
    {"pk_fp8_bf16", &FP8, Wide::bf16, 2, true, false}, {"pk_bf8_bf16", &BF8, Wide::bf16, 2, true, false},
    {"pk_fp4_f32", &FP4, Wide::f32, 2, true, false}, {"pk_fp4_f16", &FP4, Wide::f16, 2, true, false},
    {"pk_fp4_bf16", &FP4, Wide::bf16, 2, true, false},
    {"2xpk16_fp6_f32", &FP6, Wide::f32, 32, true, false}, {"2xpk16_bf6_f32", &BF6, Wide::f32, 32, true, false},
    {"pk32_fp6_f16", &FP6, Wide::f16, 32, true, false}, {"pk32_bf6_f16", &BF6, Wide::f16, 32, true, false},
    {"pk32_fp6_bf16", &FP6, Wide::bf16, 32, true, false}, {"pk32_bf6_bf16", &BF6, Wide::bf16, 32, true, false},
    {"sr_fp8_f32", &FP8, Wide::f32, 1, true, true}, {"sr_bf8_f32", &BF8, Wide::f32, 1, true, true},
    {"sr_fp8_f16", &FP8, Wide::f16, 1, true, true}, {"sr_bf8_f16", &BF8, Wide::f16, 1, true, true},
    {"sr_fp8_bf16", &FP8, Wide::bf16, 1, true, true}, {"sr_bf8_bf16", &BF8, Wide::bf16, 1, true, true},
    {"sr_pk_fp4_f32", &FP4, Wide::f32, 2, true, true}, {"sr_pk_fp4_f16", &FP4, Wide::f16, 2, true, true},
    {"sr_pk_fp4_bf16", &FP4, Wide::bf16, 2, true, true},
    {"sr_pk32_fp6_f32", &FP6, Wide::f32, 32, true, true}, {"sr_pk32_bf6_f32", &BF6, Wide::f32, 32, true, true},
    {"sr_pk32_fp6_f16", &FP6, Wide::f16, 32, true, true}, {"sr_pk32_bf6_f16", &BF6, Wide::f16, 32, true, true},
    {"sr_pk32_fp6_bf16", &FP6, Wide::bf16, 32, true, true}, {"sr_pk32_bf6_bf16", &BF6, Wide::bf16, 32, true, true},
    {"f32_fp8", &FP8, Wide::f32, 1, false, false}, {"f32_bf8", &BF8, Wide::f32, 1, false, false},
    {"f16_fp8", &FP8, Wide::f16, 1, false, false}, {"f16_bf8", &BF8, Wide::f16, 1, false, false},
    {"pk_f32_fp8", &FP8, Wide::f32, 2, false, false}, {"pk_f32_bf8", &BF8, Wide::f32, 2, false, false},
    {"pk_f16_fp8", &FP8, Wide::f16, 2, false, false}, {"pk_f16_bf8", &BF8, Wide::f16, 2, false, false},
    {"pk_bf16_fp8", &FP8, Wide::bf16, 2, false, false}, {"pk_bf16_bf8", &BF8, Wide::bf16, 2, false, false},
    {"pk_f32_fp4", &FP4, Wide::f32, 2, false, false}, {"pk_f16_fp4", &FP4, Wide::f16, 2, false, false},
    {"pk_bf16_fp4", &FP4, Wide::bf16, 2, false, false},
    {"pk32_f32_fp6", &FP6, Wide::f32, 32, false, false}, {"pk32_f32_bf6", &BF6, Wide::f32, 32, false, false},
    {"pk32_f16_fp6", &FP6, Wide::f16, 32, false, false}, {"pk32_f16_bf6", &BF6, Wide::f16, 32, false, false},
    {"pk32_bf16_fp6", &FP6, Wide::bf16, 32, false, false}, {"pk32_bf16_bf6", &BF6, Wide::bf16, 32, false, false},
};

uint32_t next_random(uint32_t value) { return value << 1 ^ (value >> 31 ? 197u : 0u); }

// A source's words by lane, and the lanes where all are known. A scalar or constant has one word.
struct Source {
  std::vector<Lanes> words;
  uint64_t known;
};
Source read(Wave& w, const Op& op, unsigned which, unsigned count, Type type = Type::raw32) {
  Source made{std::vector<Lanes>(count), w.all};
  unsigned code = op.src[which];
  for (unsigned i = 0; i < count; ++i) {
    unsigned at = code < 128 || code >= VGPR ? code + i : code;
    fetch_raw(w, op, at, type, made.words[i]);
    made.known &= lanes_known(w, at, 1);
  }
  return made;
}

float modified(const Op& op, unsigned which, float value) {
  if (op.abs >> which & 1) value = std::fabs(value);
  return op.neg >> which & 1 ? -value : value;
}

double half_value(Wide wide, uint32_t bits) { return wide == Wide::f16 ? from_half(bits & 0xffff) : from_bfloat(bits & 0xffff); }

// Where bits of `count * bits` are put or taken within a register: op_sel[3:2] or [3] of results, [1:0] or [0] of sources.
unsigned place_of(const Conversion& c, const Op& op) {
  unsigned bits = c.count * c.small->bits;
  if (bits > 16) return 0;
  unsigned select = c.to_small_form ? op.op_sel >> 2 : op.op_sel;
  return bits == 16 ? 16 * (c.to_small_form ? select >> 1 & 1 : select & 1) : 8 * (select & 3);
}

void to_small_form(Wave& w, const Op& op, const Conversion& c) {
  bool two_sources = c.wide == Wide::f32 && !c.random;  // elements of sources 0 and 1 alternate
  unsigned per_word = c.wide == Wide::f32 ? 1 : 2, each = two_sources ? c.count / 2 : (c.count + per_word - 1) / per_word;
  // of constants, which are of the elements' format
  Type type = c.wide == Wide::f16 ? Type::pk_f16 : c.wide == Wide::bf16 ? Type::pk_bf16 : Type::raw32;
  Source first = read(w, op, 0, each, type), second = read(w, op, 1, two_sources ? each : 1);
  Source scales = two_sources || c.random ? read(w, op, 2, 1) : second;
  unsigned place = place_of(c, op), bits = c.small->bits, words = (c.count * bits + 31) / 32;
  bool limited = w.mode >> 23 & 1;
  std::vector<Lanes> out(words);
  for (unsigned l = 0; l < w.lanes; ++l) {
    double scale = scale_of(scales.words[0].u32[l] >> 23 & 255);
    uint32_t random = c.random ? second.words[0].u32[l] : 0;
    uint32_t made[7] = {};
    for (unsigned e = 0; e < c.count; ++e) {
      double value;
      if (c.wide == Wide::f32) {
        const Source& from = two_sources && e & 1 ? second : first;
        value = modified(op, two_sources && e & 1, from.words[two_sources ? e / 2 : e].f32[l]);
      } else {
        bool high = c.count == 1 ? op.op_sel & 1 : e & 1;
        value = half_value(c.wide, first.words[e / 2].u32[l] >> (high ? 16 : 0));
        if (c.count == 1) value = modified(op, 0, static_cast<float>(value));
      }
      // a scale that is no number keeps the sign
      double scaled = std::isnan(scale) ? std::copysign(NAN, value) : value / scale;
      uint64_t code = to_small(*c.small, scaled, limited, c.random, random);
      random = next_random(random);
      uint64_t moved = code << (e * bits % 32);
      made[e * bits / 32] |= static_cast<uint32_t>(moved);
      made[e * bits / 32 + 1] |= static_cast<uint32_t>(moved >> 32);
    }
    for (unsigned i = 0; i < words; ++i) out[i].u32[l] = made[i];
    if (words == 1 && c.count * bits < 32) {  // the rest stays
      uint32_t field = ((1u << c.count * bits) - 1) << place;
      out[0].u32[l] = (w.vector(op.dst).lane[l] & ~field) | made[0] << place;
    }
  }
  uint64_t known = first.known & second.known & scales.known;
  for (unsigned i = 0; i < words; ++i) write_lanes(w, op.dst + i, out[i].u32, w.exec(), known);
}

void from_small_form(Wave& w, const Op& op, const Conversion& c) {
  unsigned bits = c.small->bits, place = place_of(c, op);
  Source source = read(w, op, 0, (c.count * bits + 31) / 32), scales = read(w, op, 1, 1);
  unsigned words = c.wide == Wide::f32 ? c.count : (c.count + 1) / 2;
  std::vector<Lanes> out(words);
  bool high = op.op_sel >> 3 & 1;
  for (unsigned l = 0; l < w.lanes; ++l) {
    uint32_t from[7] = {};
    for (size_t i = 0; i < source.words.size(); ++i) from[i] = source.words[i].u32[l];
    double scale = scale_of(scales.words[0].u32[l] >> 23 & 255);
    for (unsigned e = 0; e < c.count; ++e) {
      double value = from_small(*c.small, bits_at(from, place + e * bits, bits)) * scale;
      if (c.wide == Wide::f32) {
        out[e].f32[l] = static_cast<float>(value);
        continue;
      }
      uint32_t half = c.wide == Wide::f16 ? to_half(value) : to_bfloat(static_cast<float>(value));
      uint32_t& word = out[e / 2].u32[l];
      if (c.count == 1) {
        uint32_t old = w.vector(op.dst).lane[l];
        word = high ? (old & 0xffff) | half << 16 : (old & 0xffff0000) | half;
      } else {
        word = e & 1 ? word | half << 16 : half;
      }
    }
  }
  for (unsigned i = 0; i < words; ++i) write_lanes(w, op.dst + i, out[i].u32, w.exec(), source.known & scales.known);
}

void run(Wave& w, const Op& op) {
  const Conversion& c = CONVERSIONS[w.param];
  if (op.dst < VGPR) return refuse(w);
  if (c.to_small_form) to_small_form(w, op, c);
  else from_small_form(w, op, c);
}

}  // namespace

void register_vector_scaled() {
  for (size_t i = 0; i < sizeof(CONVERSIONS) / sizeof(*CONVERSIONS); ++i)
    add(std::string("v_cvt_scalef32_") + CONVERSIONS[i].name, Family::vector, run, static_cast<int32_t>(i));
}

}  // namespace emu
