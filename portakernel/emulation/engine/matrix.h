// What MFMA and WMMA share: matrices of a wave as plain arrays, and their products.
#pragma once
#include "registry.h"
#include "small_float.h"

namespace emu {

enum class Element : uint8_t { f64, f32, xf32, f16, bf16, i8, u8, i4, u4, fp8, bf8, fp6, bf6, fp4 };

unsigned element_bits(Element type);

// An element from its bits, where the architecture's kind of float8 matters; 32 bits at most.
double element_value(const Launch& launch, Element type, uint32_t bits);

// Which lanes and registers of a source hold its elements, read into `words` by lane: false where it is no vector.
constexpr unsigned MOST_WORDS = 16;
struct Words {
  uint32_t word[MOST_LANES][MOST_WORDS];
  uint64_t known;  // lanes all of whose words were written
};
bool read_words(Wave& wave, unsigned code, unsigned count, Words& to);

// D = A * B + C of one block: a is m x k, b is k x n, c and d are m x n, all by rows.
// Sums are those of double, rounded once to float32: the documents say that products are exact and that sums are of at
// least float32's precision, and leave their order open.
void product_wide(int m, int n, int k, const double* a, const double* b, const double* c, double* d);
// A chain of fused operations in the order of k, each rounded: what float32 and float64 take.
void product_float(int m, int n, int k, const double* a, const double* b, const double* c, double* d);
void product_double(int m, int n, int k, const double* a, const double* b, const double* c, double* d);

}  // namespace emu
