// Vector 32- and 64-bit integer arithmetic, bits, shifts, selects, moves.
#include "registry.h"

namespace emu {

namespace {

uint32_t reverse(uint32_t v) {
  uint32_t r = 0;
  for (int i = 0; i < 32; ++i) r |= (v >> i & 1) << (31 - i);
  return r;
}
uint32_t sign_bits(uint32_t v) {
  uint32_t x = static_cast<int32_t>(v) < 0 ? ~v : v;
  return x ? __builtin_clz(x) : ~0u;
}
int32_t low24(uint32_t v) { return static_cast<int32_t>(v << 8) >> 8; }
uint32_t u24(uint32_t v) { return v & 0xffffff; }
uint32_t bfe(uint32_t a, uint32_t b, uint32_t c) { c &= 31; return c ? (a >> (b & 31)) & ((1u << c) - 1) : 0; }
uint32_t bfe_signed(uint32_t a, uint32_t b, uint32_t c) {
  c &= 31;
  if (!c) return 0;
  uint32_t v = (static_cast<int32_t>(a) >> (b & 31)) & ((1u << c) - 1);
  return v >> (c - 1) & 1 ? v | ~((1u << c) - 1) : v;
}
int32_t median(int32_t a, int32_t b, int32_t c) { return std::max(std::min(a, b), std::min(std::max(a, b), c)); }
uint32_t median(uint32_t a, uint32_t b, uint32_t c) { return std::max(std::min(a, b), std::min(std::max(a, b), c)); }
// Bytes 0 to 3 are the second source's, 4 to 7 the first's; then signs and constants.
uint32_t permute(uint32_t a, uint32_t b, uint32_t select) {
  uint64_t both = uint64_t{a} << 32 | b;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t s = select >> 8 * i & 0xff, byte;
    if (s >= 13) byte = 0xff;
    else if (s == 12) byte = 0;
    else if (s >= 8) byte = both >> ((s - 8) * 16 + 15) & 1 ? 0xff : 0;
    else byte = both >> 8 * s & 0xff;
    r |= byte << 8 * i;
  }
  return r;
}
uint32_t bits_of_three(uint32_t a, uint32_t b, uint32_t c, unsigned table) {
  uint32_t r = 0;
  for (int i = 0; i < 8; ++i)
    if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return r;
}
uint32_t saturated(uint64_t v, bool clamp) { return clamp && v >> 32 ? ~0u : static_cast<uint32_t>(v); }
uint32_t saturated(int64_t v, bool clamp) {
  return static_cast<uint32_t>(clamp ? std::max<int64_t>(INT32_MIN, std::min<int64_t>(INT32_MAX, v)) : v);
}
uint32_t difference(uint32_t a, uint32_t b, bool clamp) { return clamp && b > a ? 0 : a - b; }

// Sum and carry; the carry comes in by lane in mask[2].
template <int MODE, bool CARRY_IN>  // 0 adds, 1 subtracts, 2 subtracts the other way round
void carry(Alu& s) {
  EMU_LANES {
    uint64_t a = s.in[0].u32[l], b = s.in[1].u32[l], c = CARRY_IN ? s.mask[2] >> l & 1 : 0, r;
    if (MODE == 2) std::swap(a, b);
    bool over;
    if (MODE == 0) r = a + b + c, over = r >> 32;
    else r = a - b - c, over = b + c > a;
    if (s.op->clamp && over) r = MODE == 0 ? ~0u : 0;
    s.out.u32[l] = static_cast<uint32_t>(r);
    s.out_mask |= uint64_t{over} << l;
  }
}

void select(Alu& s) {
  EMU_LANES s.out.u32[l] = s.mask[2] >> l & 1 ? s.in[1].u32[l] : s.in[0].u32[l];
  s.known = s.source_known[2] & ((s.mask[2] & s.source_known[1]) | (~s.mask[2] & s.source_known[0]));
}

// The low word of a sum depends on low words alone: compilers leave high ones unwritten that nobody reads.
void low_words(Alu& s, bool second, int addend) {
  s.low_differs = true, s.known_low = s.source_known[0] & (second ? s.source_known[1] : ~0ull) & lanes_known(*s.wave, s.op->src[addend], 1);
}

void multiply_add(Alu& s) {
  EMU_LANES {
    uint64_t product = uint64_t{s.in[0].u32[l]} * s.in[1].u32[l], r = product + s.in[2].u64[l];
    s.out.u64[l] = r;
    s.out_mask |= uint64_t{r < product} << l;
  }
  low_words(s, true, 2);
}

void multiply_add_signed(Alu& s) {
  EMU_LANES {
    // the mask takes bit 64 of the sum, its sign
    __int128 r = static_cast<__int128>(int64_t{s.in[0].i32[l]} * s.in[1].i32[l]) + s.in[2].i64[l];
    s.out_mask |= uint64_t{r < 0} << l;
    s.out.i64[l] = static_cast<int64_t>(r);
  }
  low_words(s, true, 2);
}

void shift_add(Alu& s) {
  EMU_LANES s.out.u64[l] = (s.in[0].u64[l] << (s.in[1].u32[l] & 7)) + s.in[2].u64[l];
  s.low_differs = true, s.known_low = lanes_known(*s.wave, s.op->src[0], 1) & s.source_known[1] & lanes_known(*s.wave, s.op->src[2], 1);
}

void shift_left(Alu& s) {
  EMU_LANES s.out.u64[l] = s.in[1].u64[l] << (s.in[0].u32[l] & 63);
  low_words(s, false, 1);
}

#define BOTH Type::b32, Type::b32
// A part of two registers; how far in, 16 bits say, whose half op_sel picks.
template <unsigned STEP, unsigned MASK>
void align(Alu& s) {
  EMU_LANES {
    uint64_t both = uint64_t{s.in[0].u32[l]} << 32 | s.in[1].u32[l];
    s.out.u32[l] = static_cast<uint32_t>(both >> STEP * (s.in[2].u32[l] & MASK));
  }
}

const VectorOp OPS[] = {
    U32_1("v_mov_b32", a), U32_1("v_not_b32", ~a), U32_1("v_bfrev_b32", reverse(a)),
    U32_1("v_accvgpr_read", a), U32_1("v_accvgpr_write", a), U32_1("v_accvgpr_mov_b32", a),
    U32_1("v_accvgpr_read_b32", a), U32_1("v_accvgpr_write_b32", a),
    {"v_mov_b64", Type::b64, {Type::b64}, [](Alu& s) { s.out = s.in[0]; s.low_differs = true, s.known_low = lanes_known(*s.wave, s.op->src[0], 1); }},
    U32_1("v_ffbh_u32", a ? __builtin_clz(a) : ~0u), U32_1("v_clz_i32_u32", a ? __builtin_clz(a) : ~0u),
    U32_1("v_ffbl_b32", a ? __builtin_ctz(a) : ~0u), U32_1("v_ctz_i32_b32", a ? __builtin_ctz(a) : ~0u),
    U32_1("v_ffbh_i32", sign_bits(a)), U32_1("v_cls_i32", sign_bits(a)),
    {"v_and_b32", Type::b32, {BOTH}, [](Alu& s) {
       EMU_LANES {
         const uint32_t a = s.in[0].u32[l], b = s.in[1].u32[l];
         s.out.u32[l] = a & b;
         // a zero says all of the result: compilers mask what is undefined with it
         s.known |= ((s.source_known[0] >> l & !a) | (s.source_known[1] >> l & !b)) << l;
       }
     }},
    U32_2("v_or_b32", a | b), U32_2("v_xor_b32", a ^ b), U32_2("v_xnor_b32", ~(a ^ b)),
    U32_2("v_lshlrev_b32", b << (a & 31)), U32_2("v_lshrrev_b32", b >> (a & 31)),
    I32_2("v_ashrrev_i32", b >> (a & 31)),
    U32_2("v_add_u32", saturated(uint64_t{a} + b, s.op->clamp)), U32_2("v_add_nc_u32", saturated(uint64_t{a} + b, s.op->clamp)),
    U32_2("v_sub_u32", difference(a, b, s.op->clamp)), U32_2("v_sub_nc_u32", difference(a, b, s.op->clamp)),
    U32_2("v_subrev_u32", difference(b, a, s.op->clamp)), U32_2("v_subrev_nc_u32", difference(b, a, s.op->clamp)),
    I32_2("v_add_i32", saturated(int64_t{a} + b, s.op->clamp)), I32_2("v_add_nc_i32", saturated(int64_t{a} + b, s.op->clamp)),
    I32_2("v_sub_i32", saturated(int64_t{a} - b, s.op->clamp)), I32_2("v_sub_nc_i32", saturated(int64_t{a} - b, s.op->clamp)),
    U32_2("v_mul_lo_u32", a * b), U32_2("v_mul_hi_u32", static_cast<uint32_t>(uint64_t{a} * b >> 32)),
    I32_2("v_mul_hi_i32", int64_t{a} * b >> 32),
    U32_2("v_mul_u32_u24", u24(a) * u24(b)), U32_2("v_mul_hi_u32_u24", static_cast<uint32_t>(uint64_t{u24(a)} * u24(b) >> 32)),
    U32_2("v_mul_i32_i24", static_cast<uint32_t>(int64_t{low24(a)} * low24(b))),
    U32_2("v_mul_hi_i32_i24", static_cast<uint32_t>(int64_t{low24(a)} * low24(b) >> 32)),
    I32_2("v_min_i32", std::min(a, b)), I32_2("v_max_i32", std::max(a, b)),
    U32_2("v_min_u32", std::min(a, b)), U32_2("v_max_u32", std::max(a, b)),
    I32_3("v_min3_i32", std::min({a, b, c})), I32_3("v_max3_i32", std::max({a, b, c})),
    U32_3("v_min3_u32", std::min({a, b, c})), U32_3("v_max3_u32", std::max({a, b, c})),
    I32_3("v_med3_i32", median(a, b, c)), U32_3("v_med3_u32", median(a, b, c)),
    I32_3("v_maxmin_i32", std::min(std::max(a, b), c)), I32_3("v_minmax_i32", std::max(std::min(a, b), c)),
    U32_3("v_maxmin_u32", std::min(std::max(a, b), c)), U32_3("v_minmax_u32", std::max(std::min(a, b), c)),
    U32_3("v_mad_u32_u24", saturated(uint64_t{u24(a)} * u24(b) + c, s.op->clamp)),
    U32_3("v_mad_i32_i24", saturated(int64_t{low24(a)} * low24(b) + static_cast<int32_t>(c), s.op->clamp)),
    U32_3("v_bfe_u32", bfe(a, b, c)), U32_3("v_bfe_i32", bfe_signed(a, b, c)), U32_3("v_bfi_b32", (a & b) | (~a & c)),
    U32_2("v_bfm_b32", ((1u << (a & 31)) - 1) << (b & 31)),
    {"v_alignbit_b32", Type::b32, {Type::b32, Type::b32, Type::b16}, align<1, 31>},
    {"v_alignbyte_b32", Type::b32, {Type::b32, Type::b32, Type::b16}, align<8, 3>},
    U32_3("v_perm_b32", permute(a, b, c)),
    U32_3("v_lshl_add_u32", (a << (b & 31)) + c), U32_3("v_add_lshl_u32", (a + b) << (c & 31)),
    U32_3("v_add3_u32", a + b + c), U32_3("v_lshl_or_b32", a << (b & 31) | c), U32_3("v_and_or_b32", (a & b) | c),
    U32_3("v_or3_b32", a | b | c), U32_3("v_xor3_b32", a ^ b ^ c), U32_3("v_xad_u32", (a ^ b) + c),
    // the table's eight bits lie where other instructions have abs and neg
    {"v_bitop3_b32", Type::b32, {Type::raw32, Type::raw32, Type::raw32}, [](Alu& s) {
       EMU_LANES s.out.u32[l] = bits_of_three(s.in[0].u32[l], s.in[1].u32[l], s.in[2].u32[l], s.op->imm & 0xff);
     }},
    U32_2("v_bcnt_u32_b32", __builtin_popcount(a) + b),
    U32_3("v_sad_u32", (a > b ? a - b : b - a) + c),
    {"v_lshl_add_u64", Type::b64, {Type::b64, Type::b32, Type::b64}, shift_add},
    {"v_lshlrev_b64", Type::b64, {Type::b32, Type::b64}, shift_left},
    {"v_lshrrev_b64", Type::b64, {Type::b32, Type::b64}, [](Alu& s) { EMU_LANES s.out.u64[l] = s.in[1].u64[l] >> (s.in[0].u32[l] & 63); }},
    {"v_ashrrev_i64", Type::b64, {Type::b32, Type::b64}, [](Alu& s) { EMU_LANES s.out.i64[l] = s.in[1].i64[l] >> (s.in[0].u32[l] & 63); }},
    {"v_mad_u64_u32", Type::b64, {BOTH, Type::b64}, multiply_add, WRITES_MASK},
    {"v_mad_i64_i32", Type::b64, {BOTH, Type::b64}, multiply_add_signed, WRITES_MASK},
    {"v_mad_co_u64_u32", Type::b64, {BOTH, Type::b64}, multiply_add, WRITES_MASK},
    {"v_mad_co_i64_i32", Type::b64, {BOTH, Type::b64}, multiply_add_signed, WRITES_MASK},
    {"v_add_co_u32", Type::b32, {BOTH}, carry<0, false>, WRITES_MASK},
    {"v_sub_co_u32", Type::b32, {BOTH}, carry<1, false>, WRITES_MASK},
    {"v_subrev_co_u32", Type::b32, {BOTH}, carry<2, false>, WRITES_MASK},
    {"v_addc_co_u32", Type::b32, {BOTH, Type::mask}, carry<0, true>, WRITES_MASK},
    {"v_subb_co_u32", Type::b32, {BOTH, Type::mask}, carry<1, true>, WRITES_MASK},
    {"v_subbrev_co_u32", Type::b32, {BOTH, Type::mask}, carry<2, true>, WRITES_MASK},
    {"v_add_co_ci_u32", Type::b32, {BOTH, Type::mask}, carry<0, true>, WRITES_MASK},
    {"v_sub_co_ci_u32", Type::b32, {BOTH, Type::mask}, carry<1, true>, WRITES_MASK},
    {"v_subrev_co_ci_u32", Type::b32, {BOTH, Type::mask}, carry<2, true>, WRITES_MASK},
    {"v_cndmask_b32", Type::b32, {BOTH, Type::mask}, select, SELECTS},
    {"v_cndmask_b16", Type::b16, {Type::b16, Type::b16, Type::mask}, select, SELECTS},
    {"v_nop", Type::none, {}, [](Alu&) {}},
};

}  // namespace

void register_vector_integer() { add_vectors(OPS); }

}  // namespace emu
