// Floats of 8, 6 and 4 bits, and the scales of microscaling formats.
#pragma once
#include <algorithm>

#include "abi.h"
#include "float16.h"

namespace emu {

// What the topmost codes mean: nothing special (fp6, fp4), NaN alone (OCP E4M3), infinity and NaN (OCP E5M2), or
// FNUZ, where the code of -0 is the one NaN and the bias is one more.
enum class Specials : uint8_t { none, nan, ieee, fnuz };

struct SmallFloat {
  int bits, mantissa, bias;
  Specials specials;
};

constexpr SmallFloat FP8 = {8, 3, 7, Specials::nan}, BF8 = {8, 2, 15, Specials::ieee}, FP8_FNUZ = {8, 3, 8, Specials::fnuz},
                     BF8_FNUZ = {8, 2, 16, Specials::fnuz}, FP6 = {6, 3, 1, Specials::none}, BF6 = {6, 2, 3, Specials::none},
                     FP4 = {4, 1, 1, Specials::none};

// float8 of gfx942 is FNUZ; that of later ones is OCP's.
inline bool has_fnuz(const Launch& launch) { return launch.major == 9 && launch.minor == 4; }
inline const SmallFloat& fp8_of(const Launch& launch) { return has_fnuz(launch) ? FP8_FNUZ : FP8; }
inline const SmallFloat& bf8_of(const Launch& launch) { return has_fnuz(launch) ? BF8_FNUZ : BF8; }

inline double from_small(const SmallFloat& format, uint32_t code) {
  uint32_t sign = code >> (format.bits - 1) & 1, rest = code & ((1u << (format.bits - 1)) - 1);
  uint32_t exponent = rest >> format.mantissa, mantissa = rest & ((1u << format.mantissa) - 1);
  uint32_t highest = (1u << (format.bits - 1 - format.mantissa)) - 1;
  if (format.specials == Specials::fnuz && sign && !rest) return NAN;
  double value = std::ldexp(exponent ? mantissa + (1u << format.mantissa) : mantissa,
                            static_cast<int>(exponent ? exponent : 1) - format.bias - format.mantissa);
  if (format.specials == Specials::nan && rest == (1u << (format.bits - 1)) - 1) value = NAN;
  if (format.specials == Specials::ieee && exponent == highest) value = mantissa ? NAN : INFINITY;
  return sign ? -value : value;
}

// The largest finite code without a sign.
inline uint32_t largest_small(const SmallFloat& format) {
  uint32_t all = (1u << (format.bits - 1)) - 1;
  if (format.specials == Specials::nan) return all - 1;
  if (format.specials == Specials::ieee) return all - (1u << format.mantissa);
  return all;
}

// Rounded to nearest even, or by a random number of 32 bits, whose upper bits are added to those that are dropped.
// What is too large becomes the format's infinity or NaN, or the largest finite value where `saturates`.
inline uint32_t to_small(const SmallFloat& format, double value, bool saturates, bool stochastic = false, uint32_t random = 0) {
  uint32_t sign = std::signbit(value) ? 1u << (format.bits - 1) : 0, all = (1u << (format.bits - 1)) - 1;
  uint32_t largest = largest_small(format);
  uint32_t overflow = format.specials == Specials::none ? largest
                      : format.specials == Specials::ieee ? largest + 1 : all;
  if (format.specials == Specials::fnuz) {
    if (std::isnan(value) || std::isinf(value)) return 1u << (format.bits - 1);
  } else if (std::isnan(value)) {
    return sign | (format.specials == Specials::none ? largest : all);
  } else if (std::isinf(value)) {
    return sign | overflow;
  }
  double magnitude = std::fabs(value);
  int exponent = magnitude > 0 ? std::max(std::ilogb(magnitude), 1 - format.bias) : 1 - format.bias;
  double scaled = std::ldexp(magnitude, format.mantissa - exponent), whole = std::floor(scaled), rest = scaled - whole;
  bool more = stochastic ? rest + std::ldexp(static_cast<double>(random), -32) >= 1
                         : rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2.0) == 1.0);
  whole += more;
  // a carry out of the mantissa raises the exponent by itself
  double code = whole + std::ldexp(static_cast<double>(exponent + format.bias - 1), format.mantissa);
  if (code > largest) {
    if (saturates || format.specials == Specials::none) return sign | largest;
    return format.specials == Specials::fnuz ? 1u << (format.bits - 1) : sign | overflow;
  }
  uint32_t bits = static_cast<uint32_t>(code);
  return format.specials == Specials::fnuz && !bits ? 0 : sign | bits;
}

// E8M0: a power of two, 255 is NaN.
inline double scale_of(uint32_t exponent) { return exponent == 255 ? NAN : std::ldexp(1.0, static_cast<int>(exponent) - 127); }

// Bits `at` to `at + bits` of words that lie side by side.
inline uint32_t bits_at(const uint32_t* words, unsigned at, unsigned bits) {
  uint64_t two = words[at / 32];
  if (at % 32 + bits > 32) two |= uint64_t{words[at / 32 + 1]} << 32;
  return static_cast<uint32_t>(two >> at % 32) & ((1u << bits) - 1);
}

}  // namespace emu
