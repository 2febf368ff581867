// Products of small matrices, and elements from their bits.
#include "matrix.h"

namespace emu {

unsigned element_bits(Element type) {
  switch (type) {
    case Element::f64: return 64;
    case Element::f32: case Element::xf32: return 32;
    case Element::f16: case Element::bf16: return 16;
    case Element::i8: case Element::u8: case Element::fp8: case Element::bf8: return 8;
    case Element::fp6: case Element::bf6: return 6;
    case Element::i4: case Element::u4: case Element::fp4: return 4;
  }
  return 32;
}

namespace {

template <size_t N>
struct Values { double of[N]; };

template <size_t N>
Values<N> values_of(const SmallFloat& format) {
  Values<N> made;
  for (uint32_t code = 0; code < N; ++code) made.of[code] = from_small(format, code);
  return made;
}

double small_value(const SmallFloat& format, uint32_t bits) {
  static const Values<256> fp8 = values_of<256>(FP8), bf8 = values_of<256>(BF8), fp8_fnuz = values_of<256>(FP8_FNUZ),
                           bf8_fnuz = values_of<256>(BF8_FNUZ);
  return (&format == &FP8 ? fp8 : &format == &BF8 ? bf8 : &format == &FP8_FNUZ ? fp8_fnuz : bf8_fnuz).of[bits & 255];
}

}  // namespace

double element_value(const Launch& launch, Element type, uint32_t bits) {
  // the documents of gfx90a: its 16-bit matrix instructions take subnormal numbers as zero
  bool flushes = launch.major == 9 && launch.minor == 0;
  switch (type) {
    case Element::f64: return 0;
    case Element::f32: return float_of(bits);
    case Element::xf32: return float_of(bits & 0xffffe000);
    case Element::f16: return flushes && !(bits & 0x7c00) ? from_half(bits & 0x8000) : from_half(bits);
    case Element::bf16: return flushes && !(bits & 0x7f80) ? from_bfloat(bits & 0x8000) : from_bfloat(bits);
    case Element::i8: return static_cast<int8_t>(bits);
    case Element::i4: return static_cast<int32_t>(bits << 28) >> 28;
    case Element::u8: case Element::u4: return bits;
    case Element::fp8: return small_value(has_fnuz(launch) ? FP8_FNUZ : FP8, bits);
    case Element::bf8: return small_value(has_fnuz(launch) ? BF8_FNUZ : BF8, bits);
    case Element::fp6: return from_small(FP6, bits);
    case Element::bf6: return from_small(BF6, bits);
    case Element::fp4: return from_small(FP4, bits);
  }
  return 0;
}

bool read_words(Wave& wave, unsigned code, unsigned count, Words& to) {
  if (code < VGPR || code == NO_OPERAND) return false;
  to.known = lanes_known(wave, code, count);
  for (unsigned w = 0; w < count; ++w) {
    const Register& from = wave.vector(code + w);
    for (unsigned l = 0; l < wave.lanes; ++l) to.word[l][w] = from.lane[l];
  }
  return true;
}

namespace {

template <int N>
void wide(int m, int k, const double* a, const double* b, const double* c, double* d) {
  for (int i = 0; i < m; ++i) {
    double sum[N];
    for (int j = 0; j < N; ++j) sum[j] = c[i * N + j];
    for (int at = 0; at < k; ++at) {
      double x = a[i * k + at];
      for (int j = 0; j < N; ++j) sum[j] += x * b[at * N + j];
    }
    for (int j = 0; j < N; ++j) d[i * N + j] = sum[j];
  }
}

template <int N, class F>
void chain(int m, int k, const double* a, const double* b, const double* c, double* d) {
  for (int i = 0; i < m; ++i) {
    F sum[N];
    for (int j = 0; j < N; ++j) sum[j] = static_cast<F>(c[i * N + j]);
    for (int at = 0; at < k; ++at) {
      F x = static_cast<F>(a[i * k + at]);
      for (int j = 0; j < N; ++j) sum[j] = std::fma(x, static_cast<F>(b[at * N + j]), sum[j]);
    }
    for (int j = 0; j < N; ++j) d[i * N + j] = sum[j];
  }
}

}  // namespace

void product_wide(int m, int n, int k, const double* a, const double* b, const double* c, double* d) {
  if (n == 32) wide<32>(m, k, a, b, c, d);
  else if (n == 16) wide<16>(m, k, a, b, c, d);
  else wide<4>(m, k, a, b, c, d);
}

void product_float(int m, int n, int k, const double* a, const double* b, const double* c, double* d) {
  if (n == 32) chain<32, float>(m, k, a, b, c, d);
  else if (n == 16) chain<16, float>(m, k, a, b, c, d);
  else chain<4, float>(m, k, a, b, c, d);
}

void product_double(int m, int n, int k, const double* a, const double* b, const double* c, double* d) {
  if (n == 16) chain<16, double>(m, k, a, b, c, d);
  else chain<4, double>(m, k, a, b, c, d);
}

}  // namespace emu
