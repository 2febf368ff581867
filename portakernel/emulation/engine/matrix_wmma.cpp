// WMMA: the matrix instructions of RDNA.
//
// Layouts by the ISA documents' chapters on wave matrix multiplication. RDNA3: lane i % 16 holds all 16 elements of a row
// of A (a column of B), and each further 16 lanes hold the same again; D has its rows side by side, one for every 16
// lanes. RDNA4: the lanes share the elements of k between them, in runs, and so do they the rows of D.
// EXEC and MODE are ignored: rounding is to nearest even, subnormal numbers are kept.
#include "matrix.h"

namespace emu {

namespace {

enum class Result : uint8_t { f32, f16, bf16, i32 };

struct Wmma {
  const char* name;
  uint8_t k;
  Element a, b;
  Result d;
};

constexpr Element F16 = Element::f16, BF16 = Element::bf16, U8 = Element::u8, U4 = Element::u4, E8 = Element::fp8, E5 = Element::bf8;

const Wmma WMMA[] = {
    {"v_wmma_f32_16x16x16_f16", 16, F16, F16, Result::f32}, {"v_wmma_f32_16x16x16_bf16", 16, BF16, BF16, Result::f32},
    {"v_wmma_f16_16x16x16_f16", 16, F16, F16, Result::f16}, {"v_wmma_bf16_16x16x16_bf16", 16, BF16, BF16, Result::bf16},
    {"v_wmma_i32_16x16x16_iu8", 16, U8, U8, Result::i32}, {"v_wmma_i32_16x16x16_iu4", 16, U4, U4, Result::i32},
    {"v_wmma_f32_16x16x16_fp8_fp8", 16, E8, E8, Result::f32}, {"v_wmma_f32_16x16x16_fp8_bf8", 16, E8, E5, Result::f32},
    {"v_wmma_f32_16x16x16_bf8_fp8", 16, E5, E8, Result::f32}, {"v_wmma_f32_16x16x16_bf8_bf8", 16, E5, E5, Result::f32},
    {"v_wmma_i32_16x16x32_iu4", 32, U4, U4, Result::i32},
};

constexpr int N = 16, MOST_K = 32;

struct Operand {
  double values[N * MOST_K];  // by row (or column) and k
  bool known[N];
};

// Halves of a register: neg applies to the low ones, neg_hi to the high ones; of integers neg says that they are signed.
double value_of(const Wave& w, const Wmma& s, Element type, const Op& op, unsigned which, unsigned item, uint32_t bits) {
  if (s.d == Result::i32) {
    if (op.neg >> which & 1) type = type == U8 ? Element::i8 : Element::i4;
    return element_value(*w.launch, type, bits);
  }
  double value = element_value(*w.launch, type, bits);
  bool negates = element_bits(type) == 16 && (item & 1 ? op.neg_hi : op.neg) >> which & 1;
  return negates ? -value : value;
}

bool read(Wave& w, const Wmma& s, const Op& op, unsigned which, Element type, Operand& to) {
  const bool repeated = w.launch->major < 12;
  const unsigned bits = element_bits(type), groups = w.lanes / 16, items = repeated ? s.k : s.k / groups;
  static thread_local Words words;
  const unsigned count = (items * bits + 31) / 32;
  if (!read_words(w, op.src[which], count, words)) return false;
  for (bool& one : to.known) one = true;
  for (unsigned lane = 0; lane < w.lanes; ++lane) {
    unsigned i = lane % 16, group = lane / 16;
    to.known[i] &= words.known >> lane & 1;
    if (repeated && group) {  // what repeats has to be the same: the documents leave open which one is taken
      if (memcmp(words.word[lane], words.word[i], count * sizeof(uint32_t))) return false;
      continue;
    }
    for (unsigned item = 0; item < items; ++item)
      to.values[i * s.k + (repeated ? 0 : group * items) + item] =
          value_of(w, s, type, op, which, item, bits_at(words.word[lane], item * bits, bits));
  }
  return true;
}

struct Place { unsigned word, shift, lane; };

// Where element (i, j) of C and D lies.
Place place_of(const Wave& w, const Wmma& s, const Op& op, unsigned i, unsigned j) {
  const unsigned groups = w.lanes / 16;
  bool half = s.d == Result::f16 || s.d == Result::bf16;
  if (w.launch->major < 12) return {i / groups, half && op.op_sel >> 2 & 1 ? 16u : 0u, j + 16 * (i % groups)};
  unsigned items = 16 / groups, item = i % items, lane = j + 16 * (i / items);
  return half ? Place{item / 2, 16 * (item & 1), lane} : Place{item, 0, lane};
}

double value_of_c(const Wmma& s, const Op& op, uint32_t word, unsigned shift) {
  double value;
  switch (s.d) {
    case Result::i32: return static_cast<int32_t>(word);
    case Result::f16: value = from_half(word >> shift & 0xffff); break;
    case Result::bf16: value = from_bfloat(word >> shift & 0xffff); break;
    default: value = float_of(word);
  }
  if (op.neg_hi >> 2 & 1) value = std::fabs(value);
  return op.neg >> 2 & 1 ? -value : value;
}

uint32_t bits_of_d(const Wmma& s, const Op& op, double value) {
  switch (s.d) {
    case Result::i32:
      if (op.clamp) value = std::max(-2147483648.0, std::min(2147483647.0, value));
      return static_cast<uint32_t>(static_cast<int64_t>(value));
    case Result::f16: return to_half(value);
    case Result::bf16: return to_bfloat(static_cast<float>(value));
    default: return bits_of(static_cast<float>(value));
  }
}

void run(Wave& w, const Op& op) {
  const Wmma& s = WMMA[w.param];
  static thread_local Operand left, right;
  if (!read(w, s, op, 0, s.a, left) || !read(w, s, op, 1, s.b, right)) return refuse(w);
  const bool half = s.d == Result::f16 || s.d == Result::bf16;
  const unsigned words = w.launch->major < 12 ? 256 / w.lanes : (half ? 128 : 256) / w.lanes;
  uint32_t bits[8][MOST_LANES];
  uint64_t known[8];
  bool is_vector = op.src[2] >= VGPR;
  Lanes constant;
  if (!is_vector) {
    if (op.src[2] < 128) return refuse(w);
    fetch_raw(w, op, op.src[2], s.d == Result::i32 ? Type::b32 : s.d == Result::f16 ? Type::f16 : s.d == Result::bf16 ? Type::bf16 : Type::f32, constant);
    if (half) for (int l = 0; l < MOST_LANES; ++l) constant.u32[l] |= constant.u32[l] << 16;
  }
  // half of a register may stay as it is, whatever C is
  bool keeps = w.launch->major < 12 && half;
  for (unsigned r = 0; r < words; ++r) {
    known[r] = is_vector ? lanes_known(w, op.src[2] + r, 1) : w.all;
    for (unsigned l = 0; l < w.lanes; ++l) bits[r][l] = is_vector ? w.vector(op.src[2] + r).lane[l] : constant.u32[l];
  }
  double columns[MOST_K * N], c[N * N], d[N * N];
  for (int j = 0; j < N; ++j)
    for (int k = 0; k < s.k; ++k) columns[k * N + j] = right.values[j * s.k + k];
  for (int i = 0; i < N; ++i)
    for (int j = 0; j < N; ++j) {
      Place p = place_of(w, s, op, i, j);
      c[i * N + j] = value_of_c(s, op, bits[p.word][p.lane], p.shift);
    }
  product_wide(N, N, s.k, left.values, columns, c, d);
  if (keeps)
    for (unsigned r = 0; r < words; ++r) memcpy(bits[r], w.vector(op.dst + r).lane, sizeof(uint32_t) * w.lanes);
  for (int i = 0; i < N; ++i)
    for (int j = 0; j < N; ++j) {
      Place p = place_of(w, s, op, i, j);
      uint32_t& word = bits[p.word][p.lane];
      uint32_t value = bits_of_d(s, op, d[i * N + j]);
      word = half ? (word & ~(0xffffu << p.shift)) | value << p.shift : value;
      if (!left.known[i] || !right.known[j]) known[p.word] &= ~(1ull << p.lane);
    }
  for (unsigned r = 0; r < words; ++r) write_lanes(w, op.dst + r, bits[r], w.all, known[r]);
}

}  // namespace

void register_matrix_wmma() {
  for (size_t i = 0; i < sizeof(WMMA) / sizeof(*WMMA); ++i) add(WMMA[i].name, Family::matrix, run, static_cast<int32_t>(i));
}

}  // namespace emu
