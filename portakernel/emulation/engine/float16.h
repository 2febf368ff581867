// 16-bit floating-point formats, rounded to nearest even unless said otherwise.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace emu {

inline uint32_t bits_of(float value) { uint32_t b; memcpy(&b, &value, 4); return b; }
inline float float_of(uint32_t bits) { float v; memcpy(&v, &bits, 4); return v; }
inline uint64_t bits_of(double value) { uint64_t b; memcpy(&b, &value, 8); return b; }
inline double double_of(uint64_t bits) { double v; memcpy(&v, &bits, 8); return v; }

inline float from_half(uint32_t h) {
  uint32_t sign = (h & 0x8000) << 16, magnitude = h & 0x7fff;
  if (magnitude >= 0x7c00) return float_of(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  // 2^-112 scales the exponent of a float16 that is read as a float32's, subnormal ones included
  return float_of(sign | bits_of(float_of(magnitude << 13) * 0x1p112f));
}

// a * b + c in double, with the last bit odd where that is not exact: rounding it once more is rounding once.
inline double sum_to_odd(float a, float b, float c) {
  double product = static_cast<double>(a) * b, sum = product + c, part = sum - product;
  double error = (product - (sum - part)) + (c - part);
  uint64_t bits = bits_of(sum);
  if (error == 0 || !std::isfinite(sum) || bits & 1) return sum;
  bool away = (error > 0) == (sum > 0);
  return double_of(away ? bits + 1 : bits - 1);
}

// How the last bit is rounded: MODE's two bits.
enum Rounding : uint32_t { to_nearest = 0, up = 1, down = 2, to_zero = 3 };

// `value` carries more bits than the result keeps; from a double, so that sums and products are rounded once.
inline uint32_t to_half(double value, uint32_t rounding = to_nearest) {
  uint64_t b = bits_of(value);
  uint32_t sign = static_cast<uint32_t>(b >> 48) & 0x8000;
  double magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00 | (static_cast<uint32_t>(b >> 42) & 0x3ff);
  if (std::isinf(value)) return sign | 0x7c00;
  int exponent = magnitude > 0 ? static_cast<int>(b >> 52 & 0x7ff) - 1023 : -1023;
  if (exponent < -14) exponent = -14;
  double quantum = std::ldexp(1.0, exponent - 10), steps = magnitude / quantum;
  double whole = std::floor(steps), rest = steps - whole;
  bool more;
  switch (rounding) {
    case up: more = rest > 0 && !sign; break;
    case down: more = rest > 0 && sign; break;
    case to_zero: more = false; break;
    default: more = rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2.0) == 1.0);
  }
  double rounded = (whole + more) * quantum;
  if (rounded >= 65536.0) {
    bool infinite = rounding == to_nearest || (rounding == up && !sign) || (rounding == down && sign);
    return sign | (infinite ? 0x7c00 : 0x7bff);
  }
  if (rounded < 0x1p-14) return sign | static_cast<uint32_t>(rounded * 0x1p24);
  uint64_t r = bits_of(rounded);
  return sign | (static_cast<uint32_t>(r >> 52 & 0x7ff) - 1008) << 10 | (static_cast<uint32_t>(r >> 42) & 0x3ff);
}

inline float from_bfloat(uint32_t b) { return float_of((b & 0xffff) << 16); }

inline uint32_t to_bfloat(float value) {
  uint32_t b = bits_of(value);
  if (std::isnan(value)) return b >> 16 | 0x40;
  return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

}  // namespace emu
