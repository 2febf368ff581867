// Vector comparisons: v_cmp_* and v_cmpx_*, of every type.
#include <deque>

#include "registry.h"

namespace emu {

namespace {

// As the relation's number in names: f lt eq le gt lg/ne ge, then for floats o u nge nlg ngt nle neq nlt.
template <class T>
bool holds(int relation, T a, T b) {
  switch (relation) {
    case 0: return false;
    case 1: return a < b;
    case 2: return a == b;
    case 3: return a <= b;
    case 4: return a > b;
    case 5: return a < b || a > b;
    case 6: return a >= b;
    case 7: return a == a && b == b;
    case 8: return a != a || b != b;
    case 9: return !(a >= b);
    case 10: return !(a < b || a > b);
    case 11: return !(a > b);
    case 12: return !(a <= b);
    case 13: return !(a == b);
    case 14: return !(a < b);
    default: return true;
  }
}

struct F32 { static constexpr Type type = Type::f32; static float get(Alu& s, int i, int l) { return s.in[i].f32[l]; } };
struct F64 { static constexpr Type type = Type::f64; static double get(Alu& s, int i, int l) { return s.in[i].f64[l]; } };
struct F16 { static constexpr Type type = Type::f16; static float get(Alu& s, int i, int l) { return s.half(i, l); } };
struct I32 { static constexpr Type type = Type::b32; static int32_t get(Alu& s, int i, int l) { return s.in[i].i32[l]; } };
struct U32 { static constexpr Type type = Type::b32; static uint32_t get(Alu& s, int i, int l) { return s.in[i].u32[l]; } };
struct I64 { static constexpr Type type = Type::b64; static int64_t get(Alu& s, int i, int l) { return s.in[i].i64[l]; } };
struct U64 { static constexpr Type type = Type::b64; static uint64_t get(Alu& s, int i, int l) { return s.in[i].u64[l]; } };
struct I16 { static constexpr Type type = Type::b16; static int16_t get(Alu& s, int i, int l) { return static_cast<int16_t>(s.in[i].u32[l]); } };
struct U16 { static constexpr Type type = Type::b16; static uint16_t get(Alu& s, int i, int l) { return static_cast<uint16_t>(s.in[i].u32[l]); } };

template <class T, int RELATION>
void compare(Alu& s) {
  EMU_LANES s.out_mask |= uint64_t{holds(RELATION, T::get(s, 0, l), T::get(s, 1, l))} << l;
}

// Bits: signalling NaN, quiet NaN, -inf, -normal, -subnormal, -0, +0, +subnormal, +normal, +inf.
template <class T, int EXPONENT, int MANTISSA>
bool in_class(T bits, uint32_t wanted) {
  T mantissa = bits & ((T{1} << MANTISSA) - 1), exponent = bits >> MANTISSA & ((T{1} << EXPONENT) - 1);
  bool negative = bits >> (EXPONENT + MANTISSA) & 1;
  int kind;
  if (exponent == (T{1} << EXPONENT) - 1) kind = mantissa ? (mantissa >> (MANTISSA - 1) ? 1 : 0) : negative ? 2 : 9;
  else if (exponent) kind = negative ? 3 : 8;
  else if (mantissa) kind = negative ? 4 : 7;
  else kind = negative ? 5 : 6;
  return wanted >> kind & 1;
}

void class32(Alu& s) { EMU_LANES s.out_mask |= uint64_t{in_class<uint32_t, 8, 23>(s.in[0].u32[l], s.in[1].u32[l])} << l; }
void class64(Alu& s) { EMU_LANES s.out_mask |= uint64_t{in_class<uint64_t, 11, 52>(s.in[0].u64[l], s.in[1].u32[l])} << l; }
void class16(Alu& s) { EMU_LANES s.out_mask |= uint64_t{in_class<uint32_t, 5, 10>(s.in[0].u32[l], s.in[1].u32[l])} << l; }

// The table's entries point at these names.
std::deque<std::string> names;
std::deque<VectorOp> made;

void one(const std::string& relation, const std::string& type, Type a, Type b, void (*run)(Alu&)) {
  for (bool x : {false, true}) {
    names.push_back((x ? "v_cmpx_" : "v_cmp_") + relation + "_" + type);
    made.push_back({names.back().c_str(), Type::mask, {a, b}, run, static_cast<uint8_t>(x ? WRITES_EXEC : WRITES_MASK)});
    add_vector(&made.back(), 1);
  }
}

template <class T, int... R>
void all(const char* type, const char* const* relations, std::integer_sequence<int, R...>) {
  (one(relations[R], type, T::type, T::type, compare<T, R>), ...);
}

const char* const FLOAT[] = {"f", "lt", "eq", "le", "gt", "lg", "ge", "o", "u", "nge", "nlg", "ngt", "nle", "neq", "nlt", "tru"};
const char* const INTEGER[] = {"f", "lt", "eq", "le", "gt", "ne", "ge"};

}  // namespace

void register_vector_compare() {
  auto floats = std::make_integer_sequence<int, 16>{};
  auto integers = std::make_integer_sequence<int, 7>{};
  all<F32>("f32", FLOAT, floats);
  all<F64>("f64", FLOAT, floats);
  all<F16>("f16", FLOAT, floats);
  all<I32>("i32", INTEGER, integers);
  all<U32>("u32", INTEGER, integers);
  all<I64>("i64", INTEGER, integers);
  all<U64>("u64", INTEGER, integers);
  all<I16>("i16", INTEGER, integers);
  all<U16>("u16", INTEGER, integers);
  one("t", "f32", Type::f32, Type::f32, compare<F32, 15>);
  one("t", "f64", Type::f64, Type::f64, compare<F64, 15>);
  one("t", "f16", Type::f16, Type::f16, compare<F16, 15>);
  one("t", "i32", Type::b32, Type::b32, compare<I32, 15>);
  one("t", "u32", Type::b32, Type::b32, compare<U32, 15>);
  one("t", "i64", Type::b64, Type::b64, compare<I64, 15>);
  one("t", "u64", Type::b64, Type::b64, compare<U64, 15>);
  one("t", "i16", Type::b16, Type::b16, compare<I16, 15>);
  one("t", "u16", Type::b16, Type::b16, compare<U16, 15>);
  one("class", "f32", Type::b32, Type::raw32, class32);
  one("class", "f64", Type::b64, Type::raw32, class64);
  one("class", "f16", Type::b16, Type::b16, class16);
}

}  // namespace emu
