// MFMA: the matrix instructions of CDNA.
//
// Layouts by the formulas of the ISA documents' chapter on matrix instructions: element (i, k) of A in block b is item
// k % L of lane i + M * (b + B * (k / L)), where L is what a lane holds; element (i, j) of D is found by `place_of`.
// EXEC and MODE are ignored: all lanes take part, rounding is to nearest even, subnormal numbers are kept, but for the
// 16-bit formats on gfx90a, which flushes them.
#include "matrix.h"

namespace emu {

namespace {

struct Mfma {
  const char* name;
  uint8_t m, k, blocks;  // n is m
  Element a, b;
  bool integer = false;
  bool any_small = false;  // formats named by cbsz and blgp
  bool scaled = false;
};

constexpr Element F64 = Element::f64, F32 = Element::f32, XF32 = Element::xf32, F16 = Element::f16, BF16 = Element::bf16,
                  I8 = Element::i8, E8 = Element::fp8, E5 = Element::bf8;

const Mfma MFMA[] = {
    {"v_mfma_f64_16x16x4_f64", 16, 4, 1, F64, F64}, {"v_mfma_f64_4x4x4_4b_f64", 4, 4, 4, F64, F64},
    {"v_mfma_f32_32x32x1_2b_f32", 32, 1, 2, F32, F32}, {"v_mfma_f32_16x16x1_4b_f32", 16, 1, 4, F32, F32},
    {"v_mfma_f32_4x4x1_16b_f32", 4, 1, 16, F32, F32}, {"v_mfma_f32_32x32x2_f32", 32, 2, 1, F32, F32},
    {"v_mfma_f32_16x16x4_f32", 16, 4, 1, F32, F32}, {"v_mfma_f32_16x16x8_xf32", 16, 8, 1, XF32, XF32},
    {"v_mfma_f32_32x32x4_xf32", 32, 4, 1, XF32, XF32},
    {"v_mfma_f32_32x32x4_2b_f16", 32, 4, 2, F16, F16}, {"v_mfma_f32_16x16x4_4b_f16", 16, 4, 4, F16, F16},
    {"v_mfma_f32_4x4x4_16b_f16", 4, 4, 16, F16, F16}, {"v_mfma_f32_32x32x8_f16", 32, 8, 1, F16, F16},
    {"v_mfma_f32_16x16x16_f16", 16, 16, 1, F16, F16}, {"v_mfma_f32_16x16x32_f16", 16, 32, 1, F16, F16},
    {"v_mfma_f32_32x32x16_f16", 32, 16, 1, F16, F16},
    {"v_mfma_f32_32x32x2_2b_bf16", 32, 2, 2, BF16, BF16}, {"v_mfma_f32_16x16x2_4b_bf16", 16, 2, 4, BF16, BF16},
    {"v_mfma_f32_4x4x2_16b_bf16", 4, 2, 16, BF16, BF16}, {"v_mfma_f32_32x32x4_bf16", 32, 4, 1, BF16, BF16},
    {"v_mfma_f32_16x16x8_bf16", 16, 8, 1, BF16, BF16},
    {"v_mfma_f32_32x32x4_2b_bf16", 32, 4, 2, BF16, BF16}, {"v_mfma_f32_16x16x4_4b_bf16", 16, 4, 4, BF16, BF16},
    {"v_mfma_f32_4x4x4_16b_bf16", 4, 4, 16, BF16, BF16}, {"v_mfma_f32_32x32x8_bf16", 32, 8, 1, BF16, BF16},
    {"v_mfma_f32_16x16x16_bf16", 16, 16, 1, BF16, BF16}, {"v_mfma_f32_16x16x32_bf16", 16, 32, 1, BF16, BF16},
    {"v_mfma_f32_32x32x16_bf16", 32, 16, 1, BF16, BF16},
    {"v_mfma_i32_32x32x4_2b_i8", 32, 4, 2, I8, I8, true}, {"v_mfma_i32_16x16x4_4b_i8", 16, 4, 4, I8, I8, true},
    {"v_mfma_i32_4x4x4_16b_i8", 4, 4, 16, I8, I8, true}, {"v_mfma_i32_32x32x8_i8", 32, 8, 1, I8, I8, true},
    {"v_mfma_i32_16x16x16_i8", 16, 16, 1, I8, I8, true}, {"v_mfma_i32_32x32x16_i8", 32, 16, 1, I8, I8, true},
    {"v_mfma_i32_16x16x32_i8", 16, 32, 1, I8, I8, true}, {"v_mfma_i32_16x16x64_i8", 16, 64, 1, I8, I8, true},
    {"v_mfma_i32_32x32x32_i8", 32, 32, 1, I8, I8, true},
    {"v_mfma_f32_16x16x32_bf8_bf8", 16, 32, 1, E5, E5}, {"v_mfma_f32_16x16x32_bf8_fp8", 16, 32, 1, E5, E8},
    {"v_mfma_f32_16x16x32_fp8_bf8", 16, 32, 1, E8, E5}, {"v_mfma_f32_16x16x32_fp8_fp8", 16, 32, 1, E8, E8},
    {"v_mfma_f32_32x32x16_bf8_bf8", 32, 16, 1, E5, E5}, {"v_mfma_f32_32x32x16_bf8_fp8", 32, 16, 1, E5, E8},
    {"v_mfma_f32_32x32x16_fp8_bf8", 32, 16, 1, E8, E5}, {"v_mfma_f32_32x32x16_fp8_fp8", 32, 16, 1, E8, E8},
    {"v_mfma_f32_16x16x128_f8f6f4", 16, 128, 1, E8, E8, false, true},
    {"v_mfma_f32_32x32x64_f8f6f4", 32, 64, 1, E8, E8, false, true},
    {"v_mfma_scale_f32_16x16x128_f8f6f4", 16, 128, 1, E8, E8, false, true, true},
    {"v_mfma_scale_f32_32x32x64_f8f6f4", 32, 64, 1, E8, E8, false, true, true},
};

const Element SMALL[] = {Element::fp8, Element::bf8, Element::fp6, Element::bf6, Element::fp4};

// Where element (i, j) of block b of D lies.
struct Place { unsigned item, lane; };
Place place_of(const Mfma& s, unsigned i, unsigned j, unsigned b) {
  unsigned m = s.m, n = s.m, h = s.a == F64 ? 1 : 4;
  unsigned at_once = std::max(1u, 64 / (n * m / h)), rows = 64 / at_once / n, groups = m / (h * rows);
  return {i % h + h * (i / (h * rows) + groups * (b / at_once)), j + n * (i / h % rows + rows * (b % at_once))};
}

// Lanes of B as blgp arranges them.
unsigned lane_of_b(unsigned lane, unsigned pattern) {
  switch (pattern) {
    case 1: return lane & 31;
    case 2: return 32 + (lane & 31);
    case 3: return (lane + 16) & 63;
    case 4: case 5: case 6: case 7: return (lane & 15) + 16 * (pattern - 4);
    default: return lane;
  }
}

constexpr unsigned MOST_ELEMENTS = 2048;

// A or B: `values` by block, row (or column) and k; `known` a bit for each row of each block.
struct Operand {
  double values[MOST_ELEMENTS];
  bool known[64];
};

// k of an item: what a lane holds is consecutive, but for 8-bit elements of the K = 64 and 128 forms, which lie in two
// runs of 16, each side by side with the other lanes'.
unsigned k_of(const Mfma& s, Element type, unsigned group, unsigned item, unsigned items) {
  if (s.any_small && element_bits(type) == 8) return 16 * group + item % 16 + (64 / s.m) * 16 * (item / 16);
  return items * group + item;
}

bool read(Wave& w, const Mfma& s, unsigned code, Element type, bool is_b, const Op& op, Operand& to) {
  unsigned items = s.m * s.k * s.blocks / 64, bits = element_bits(type);
  static thread_local Words words;
  if (!read_words(w, code, (items * bits + 31) / 32, words)) return false;
  for (bool& one : to.known) one = true;
  for (unsigned lane = 0; lane < 64; ++lane) {
    unsigned from = is_b && !s.any_small && type != F64 ? lane_of_b(lane, op.blgp) : lane;
    unsigned i = lane % s.m, block = lane / s.m % s.blocks, group = lane / s.m / s.blocks;
    if (!is_b && op.cbsz && !s.any_small) {  // one block of each 2^cbsz is taken for all of them
      unsigned size = 1u << op.cbsz, chosen = block / size * size + op.abid % size;
      from = i + s.m * (chosen % s.blocks + s.blocks * group);
    }
    to.known[block * s.m + i] &= words.known >> from & 1;
    for (unsigned item = 0; item < items; ++item) {
      double value;
      if (type == F64) {
        value = double_of(words.word[from][2 * item] | uint64_t{words.word[from][2 * item + 1]} << 32);
      } else {
        uint32_t raw = bits == 32 ? words.word[from][item] : bits_at(words.word[from], item * bits, bits);
        value = element_value(*w.launch, type, raw);
      }
      to.values[(block * s.m + i) * s.k + k_of(s, type, group, item, items)] = value;
    }
  }
  return true;
}

// The scale of each run of 32 along k: lane i + M * (k / 32) holds it, in the byte that op_sel names.
void apply_scales(Wave& w, const Mfma& s, const Op& op, unsigned which, Operand& to) {
  Lanes scales;
  fetch_raw(w, op, op.scale[which], Type::raw32, scales);
  uint64_t known = lanes_known(w, op.scale[which], 1);
  unsigned byte = (op.op_sel >> which & 1) | (op.op_sel_hi >> which & 1) << 1;
  for (unsigned lane = 0; lane < 64; ++lane) {
    unsigned i = lane % s.m, first = lane / s.m * 32;
    double scale = scale_of(scales.u32[lane] >> 8 * byte & 255);
    to.known[i] &= known >> lane & 1;
    for (unsigned k = first; k < first + 32; ++k) to.values[i * s.k + k] *= scale;
  }
}

double value_of_c(const Mfma& s, const Wave&, uint32_t low, uint32_t high) {
  if (s.a == F64) return double_of(low | uint64_t{high} << 32);
  return s.integer ? static_cast<int32_t>(low) : float_of(low);
}

void run(Wave& w, const Op& op) {
  const Mfma& s = MFMA[w.param];
  Element a = s.a, b = s.b;
  if (s.any_small) {
    if (op.cbsz > 4 || op.blgp > 4) return refuse(w);
    a = SMALL[op.cbsz], b = SMALL[op.blgp];
  }
  bool negates = s.a == F64 && w.launch->minor >= 4;  // gfx940 and later have neg where blgp is
  if (s.a == F64 && !negates && op.blgp) return refuse(w);
  static thread_local Operand left, right;
  if (w.lanes != 64 || !read(w, s, op.src[0], a, false, op, left) || !read(w, s, op.src[1], b, true, op, right))
    return refuse(w);
  if (s.scaled) apply_scales(w, s, op, 0, left), apply_scales(w, s, op, 1, right);
  const unsigned m = s.m, n = s.m, words = s.a == F64 ? 2 : 1, items = m * n * s.blocks / 64;
  double sign_a = negates && op.blgp & 1 ? -1 : 1, sign_b = negates && op.blgp & 2 ? -1 : 1, sign_c = negates && op.blgp & 4 ? -1 : 1;

  // C, by item and lane; a constant stands for all of them
  static thread_local uint32_t bits[64][MOST_LANES];
  uint64_t known[64];
  bool is_vector = op.src[2] >= VGPR;
  Lanes constant;
  if (!is_vector) {
    if (op.src[2] < 128) return refuse(w);
    fetch_raw(w, op, op.src[2], s.a == F64 ? Type::f64 : s.integer ? Type::b32 : Type::f32, constant);
  }
  for (unsigned r = 0; r < items * words; ++r) {
    known[r] = is_vector ? lanes_known(w, op.src[2] + r, 1) : w.all;
    for (unsigned l = 0; l < 64; ++l)
      bits[r][l] = is_vector ? w.vector(op.src[2] + r).lane[l]
                   : words == 2 ? static_cast<uint32_t>(constant.u64[l] >> 32 * (r & 1)) : constant.u32[l];
  }

  static thread_local double c[2048], d[2048], columns[MOST_ELEMENTS];
  bool flushes = w.launch->minor == 0 && (s.a == F16 || s.a == BF16);
  for (unsigned block = 0; block < s.blocks; ++block) {
    const double* rows = left.values + block * m * s.k;
    for (unsigned j = 0; j < n; ++j)
      for (unsigned k = 0; k < s.k; ++k) columns[k * n + j] = sign_b * right.values[(block * n + j) * s.k + k];
    if (sign_a < 0)
      for (unsigned at = 0; at < m * s.k; ++at) left.values[block * m * s.k + at] *= -1;
    for (unsigned i = 0; i < m; ++i)
      for (unsigned j = 0; j < n; ++j) {
        Place p = place_of(s, i, j, block);
        c[i * n + j] = sign_c * value_of_c(s, w, bits[words * p.item][p.lane], words == 2 ? bits[2 * p.item + 1][p.lane] : 0);
      }
    auto product = s.a == F64 ? product_double : s.a == F32 ? product_float : product_wide;
    product(m, n, s.k, rows, columns, c, d);
    for (unsigned i = 0; i < m; ++i)
      for (unsigned j = 0; j < n; ++j) {
        Place p = place_of(s, i, j, block);
        double value = d[i * n + j];
        bool both = left.known[block * m + i] && right.known[block * n + j];
        if (words == 2) {
          bits[2 * p.item][p.lane] = static_cast<uint32_t>(bits_of(value));
          bits[2 * p.item + 1][p.lane] = static_cast<uint32_t>(bits_of(value) >> 32);
        } else if (s.integer) {
          bits[p.item][p.lane] = static_cast<uint32_t>(static_cast<int64_t>(value));
        } else {
          float rounded = static_cast<float>(value);
          bits[p.item][p.lane] = bits_of(flushes ? flush(rounded) : rounded);
        }
        if (!both)
          for (unsigned half = 0; half < words; ++half) known[words * p.item + half] &= ~(1ull << p.lane);
      }
  }
  for (unsigned r = 0; r < items * words; ++r) write_lanes(w, op.dst + r, bits[r], w.all, known[r]);
}

}  // namespace

void register_matrix() {
  for (size_t i = 0; i < sizeof(MFMA) / sizeof(*MFMA); ++i) add(MFMA[i].name, Family::matrix, run, static_cast<int32_t>(i));
}

}  // namespace emu
