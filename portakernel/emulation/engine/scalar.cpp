// Scalar integer ALU: SOP1, SOP2, SOPC, SOPK.
#include "registry.h"

namespace emu {

namespace {

struct S {
  Wave& w;
  const Op& op;
  uint32_t u(int i) const { return w.scalar(op, op.src[i]); }
  int32_t i(int n) const { return static_cast<int32_t>(u(n)); }
  uint64_t uu(int i) const { return w.scalar64(op, op.src[i]); }
  int64_t ii(int n) const { return static_cast<int64_t>(uu(n)); }
  bool known(bool two = false) const {
    bool all = true;
    for (int n = 0; n < 2; ++n)
      if (op.src[n] != NO_OPERAND) all &= w.scalar_known(op.src[n], two);
    return all;
  }
  // Word 0 or 1 of a source of 64 bits.
  uint32_t word(int n, int at) const { return static_cast<uint32_t>(uu(n) >> 32 * at); }
  bool word_known(int n, int at) const {
    unsigned code = op.src[n];
    return w.scalar_known(code < 127 && code != NULL_REGISTER ? code + at : code);
  }
  // The result of a move or a sum: compilers leave high words unwritten that nobody reads.
  void set_words(uint64_t value, bool low, bool high) const {
    w.set(op.dst, static_cast<uint32_t>(value), low);
    if (op.dst != NULL_REGISTER) w.set(op.dst + 1, static_cast<uint32_t>(value >> 32), high);
  }
  // A source as it is, with what is known of its bits.
  MaskWord whole(int n, uint32_t value, int at = 0) const {
    unsigned code = op.src[n];
    return mask_word(w, code < 127 && code != NULL_REGISTER ? code + at : code, value, word_known(n, at));
  }
  void move_word(int n, bool is_known = true) const {
    if (is_known) set_word(w, op.dst, whole(n, u(n)));
    else w.set(op.dst, u(n), false);
  }
  void move_words(int n, bool is_known = true) const {
    if (!is_known) return set_words(uu(n), false, false);
    MaskWord low = whole(n, word(n, 0), 0), high = whole(n, word(n, 1), 1);
    set_word(w, op.dst, low);
    if (op.dst != NULL_REGISTER) set_word(w, op.dst + 1, high);
  }
  void scc(bool value, bool is_known) const { w.scc = value; w.scc_known = is_known;
    if (!is_known) w.origin(SCC_ORIGIN) = w.inherited_origin();
  }
};

uint32_t reverse(uint32_t v) {
  uint32_t r = 0;
  for (int i = 0; i < 32; ++i) r |= (v >> i & 1) << (31 - i);
  return r;
}
uint64_t reverse64(uint64_t v) { return uint64_t{reverse(static_cast<uint32_t>(v))} << 32 | reverse(v >> 32); }

// The number of the first bit that differs from the sign; -1 where none does.
int sign_bits(int64_t v, int bits) {
  for (int i = 1; i < bits; ++i)
    if ((v >> (bits - 1 - i) & 1) != (v >> (bits - 1) & 1)) return i;
  return -1;
}

#define OP32(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { S s{w, op}; bool k = s.known(); uint32_t r; (void)s; expr; w.set(op.dst, r, k); })
#define OP32_SCC(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { S s{w, op}; bool k = s.known(), c; uint32_t r; expr; w.set(op.dst, r, k); s.scc(c, k); })
#define OP32_NZ(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { S s{w, op}; bool k = s.known(); uint32_t r; expr; w.set(op.dst, r, k); s.scc(r != 0, k); })
#define OP64(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { S s{w, op}; bool k = s.known(true); uint64_t r; (void)s; expr; w.set_pair(op.dst, r, k); })
#define OP64_NZ(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { S s{w, op}; bool k = s.known(true); uint64_t r; expr; w.set_pair(op.dst, r, k); s.scc(r != 0, k); })
#define OP32_64(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { S s{w, op}; bool k = s.known(); uint64_t r; expr; w.set_pair(op.dst, r, k); })
// Of sums, products and shifts to the left the low word depends on low words alone.
#define LOW64(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { S s{w, op}; s.set_words((expr), s.word_known(0, 0) && s.word_known(1, 0), s.known(true)); })
// A 64-bit value and a shift, or a field, of 32 bits.
#define SHIFT64(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { S s{w, op}; bool k = w.scalar_known(op.src[0], true) && w.scalar_known(op.src[1]); uint64_t r; expr; w.set_pair(op.dst, r, k); s.scc(r != 0, k); })
#define BIT64(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { S s{w, op}; s.scc((expr), w.scalar_known(op.src[0], true) && w.scalar_known(op.src[1])); })
#define COMPARE(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { S s{w, op}; s.scc((expr), s.known()); })
#define COMPARE64(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { S s{w, op}; s.scc((expr), s.known(true)); })

void moves() {
  add("s_mov_b32", Family::scalar, [](Wave& w, const Op& op) { S{w, op}.move_word(0); });
  add("s_mov_b64", Family::scalar, [](Wave& w, const Op& op) { S{w, op}.move_words(0); });
  add("s_cmov_b32", Family::scalar, [](Wave& w, const Op& op) { S s{w, op}; if (w.scc) w.set(op.dst, s.u(0), s.known() && w.scc_known); });
  add("s_cmov_b64", Family::scalar, [](Wave& w, const Op& op) { if (w.scc) S{w, op}.move_words(0, w.scc_known); });
  OP32_NZ("s_not_b32", r = ~s.u(0));
  OP64_NZ("s_not_b64", r = ~s.uu(0));
  OP32("s_brev_b32", r = reverse(s.u(0)));
  OP64("s_brev_b64", r = reverse64(s.uu(0)));
  OP32_NZ("s_bcnt0_i32_b32", r = 32 - __builtin_popcount(s.u(0)));
  OP32_NZ("s_bcnt1_i32_b32", r = __builtin_popcount(s.u(0)));
  OP32_NZ("s_bcnt0_i32_b64", k = s.known(true); r = 64 - __builtin_popcountll(s.uu(0)));
  OP32_NZ("s_bcnt1_i32_b64", k = s.known(true); r = __builtin_popcountll(s.uu(0)));
  for (const char* name : {"s_ff1_i32_b32", "s_ctz_i32_b32"}) OP32(name, r = s.u(0) ? __builtin_ctz(s.u(0)) : ~0u);
  for (const char* name : {"s_ff1_i32_b64", "s_ctz_i32_b64"}) OP32(name, k = s.known(true); r = s.uu(0) ? __builtin_ctzll(s.uu(0)) : ~0u);
  OP32("s_ff0_i32_b32", r = ~s.u(0) ? __builtin_ctz(~s.u(0)) : ~0u);
  OP32("s_ff0_i32_b64", k = s.known(true); r = ~s.uu(0) ? __builtin_ctzll(~s.uu(0)) : ~0u);
  for (const char* name : {"s_flbit_i32_b32", "s_clz_i32_u32"}) OP32(name, r = s.u(0) ? __builtin_clz(s.u(0)) : ~0u);
  for (const char* name : {"s_flbit_i32_b64", "s_clz_i32_u64"}) OP32(name, k = s.known(true); r = s.uu(0) ? __builtin_clzll(s.uu(0)) : ~0u);
  for (const char* name : {"s_flbit_i32", "s_cls_i32"}) OP32(name, r = sign_bits(s.i(0), 32));
  for (const char* name : {"s_flbit_i32_i64", "s_cls_i32_i64"}) OP32(name, k = s.known(true); r = sign_bits(s.ii(0), 64));
  OP32("s_sext_i32_i8", r = static_cast<int8_t>(s.u(0)));
  OP32("s_sext_i32_i16", r = static_cast<int16_t>(s.u(0)));
  OP32_NZ("s_abs_i32", r = s.i(0) < 0 ? -s.u(0) : s.u(0));
  // what they leave of the destination is read
  OP32("s_bitset0_b32", k &= w.scalar_known(op.dst); r = w.scalar(op, op.dst) & ~(1u << (s.u(0) & 31)));
  OP32("s_bitset1_b32", k &= w.scalar_known(op.dst); r = w.scalar(op, op.dst) | 1u << (s.u(0) & 31));
  OP32_64("s_bitset0_b64", k &= w.scalar_known(op.dst, true); r = w.scalar64(op, op.dst) & ~(1ull << (s.u(0) & 63)));
  OP32_64("s_bitset1_b64", k &= w.scalar_known(op.dst, true); r = w.scalar64(op, op.dst) | 1ull << (s.u(0) & 63));
  add("s_bitreplicate_b64_b32", Family::scalar, [](Wave& w, const Op& op) {
    S s{w, op};
    uint64_t r = 0;
    for (int i = 0; i < 32; ++i) r |= (s.u(0) >> i & 1) * (3ull << 2 * i);
    w.set_pair(op.dst, r, s.known());
  });
  OP32_NZ("s_wqm_b32", r = 0; for (int i = 0; i < 32; i += 4) if (s.u(0) >> i & 15) r |= 15u << i);
  OP64_NZ("s_wqm_b64", r = 0; for (int i = 0; i < 64; i += 4) if (s.uu(0) >> i & 15) r |= 15ull << i);
}

void arithmetic() {
  for (const char* name : {"s_add_u32", "s_add_co_u32"}) OP32_SCC(name, r = s.u(0) + s.u(1); c = r < s.u(0));
  for (const char* name : {"s_sub_u32", "s_sub_co_u32"}) OP32_SCC(name, r = s.u(0) - s.u(1); c = s.u(0) < s.u(1));
  for (const char* name : {"s_add_i32", "s_add_co_i32"})
    OP32_SCC(name, int32_t t; c = __builtin_add_overflow(s.i(0), s.i(1), &t); r = t);
  for (const char* name : {"s_sub_i32", "s_sub_co_i32"})
    OP32_SCC(name, int32_t t; c = __builtin_sub_overflow(s.i(0), s.i(1), &t); r = t);
  for (const char* name : {"s_addc_u32", "s_add_co_ci_u32"})
    OP32_SCC(name, uint64_t t = uint64_t{s.u(0)} + s.u(1) + w.scc; r = t; c = t >> 32; k &= w.scc_known);
  for (const char* name : {"s_subb_u32", "s_sub_co_ci_u32"})
    OP32_SCC(name, uint64_t t = uint64_t{s.u(1)} + w.scc; r = s.u(0) - t; c = t > s.u(0); k &= w.scc_known);
  LOW64("s_add_nc_u64", s.uu(0) + s.uu(1));
  LOW64("s_add_u64", s.uu(0) + s.uu(1));
  LOW64("s_sub_nc_u64", s.uu(0) - s.uu(1));
  LOW64("s_sub_u64", s.uu(0) - s.uu(1));
  LOW64("s_mul_u64", s.uu(0) * s.uu(1));
  OP32("s_mul_i32", r = s.u(0) * s.u(1));
  OP32("s_mul_hi_u32", r = uint64_t{s.u(0)} * s.u(1) >> 32);
  OP32("s_mul_hi_i32", r = static_cast<uint64_t>(int64_t{s.i(0)} * s.i(1)) >> 32);
  OP32_SCC("s_min_i32", c = s.i(0) < s.i(1); r = c ? s.u(0) : s.u(1));
  OP32_SCC("s_min_u32", c = s.u(0) < s.u(1); r = c ? s.u(0) : s.u(1));
  OP32_SCC("s_max_i32", c = s.i(0) >= s.i(1); r = c ? s.u(0) : s.u(1));
  OP32_SCC("s_max_u32", c = s.u(0) >= s.u(1); r = c ? s.u(0) : s.u(1));
  OP32_NZ("s_absdiff_i32", int32_t d = s.u(0) - s.u(1); r = d < 0 ? -static_cast<uint32_t>(d) : d);
  OP32_NZ("s_lshl_b32", r = s.u(0) << (s.u(1) & 31));
  OP32_NZ("s_lshr_b32", r = s.u(0) >> (s.u(1) & 31));
  OP32_NZ("s_ashr_i32", r = s.i(0) >> (s.u(1) & 31));
  add("s_lshl_b64", Family::scalar, [](Wave& w, const Op& op) {
    S s{w, op};
    uint64_t r = s.uu(0) << (s.u(1) & 63);
    bool low = s.word_known(0, 0) && s.word_known(1, 0), all = low && s.word_known(0, 1);
    s.set_words(r, low, all), s.scc(r != 0, all || (low && static_cast<uint32_t>(r)));
  });
  SHIFT64("s_lshr_b64", r = s.uu(0) >> (s.u(1) & 63));
  SHIFT64("s_ashr_i64", r = s.ii(0) >> (s.u(1) & 63));
  OP32("s_bfm_b32", r = ((1u << (s.u(0) & 31)) - 1) << (s.u(1) & 31));
  OP32_64("s_bfm_b64", r = ((1ull << (s.u(0) & 63)) - 1) << (s.u(1) & 63));
  OP32_NZ("s_bfe_u32", unsigned o = s.u(1) & 31; unsigned n = std::min(s.u(1) >> 16 & 127, 32 - o); r = n ? s.u(0) << (32 - o - n) >> (32 - n) : 0);
  OP32_NZ("s_bfe_i32", unsigned o = s.u(1) & 31; unsigned n = std::min(s.u(1) >> 16 & 127, 32 - o); r = n ? static_cast<int32_t>(s.u(0) << (32 - o - n)) >> (32 - n) : 0);
  SHIFT64("s_bfe_u64", unsigned o = s.u(1) & 63; unsigned n = std::min(s.u(1) >> 16 & 127, 64 - o); r = n ? s.uu(0) << (64 - o - n) >> (64 - n) : 0);
  SHIFT64("s_bfe_i64", unsigned o = s.u(1) & 63; unsigned n = std::min(s.u(1) >> 16 & 127, 64 - o); r = n ? static_cast<int64_t>(s.uu(0) << (64 - o - n)) >> (64 - n) : 0);
  OP32_SCC("s_lshl1_add_u32", uint64_t t = (uint64_t{s.u(0)} << 1) + s.u(1); r = t; c = t >> 32);
  OP32_SCC("s_lshl2_add_u32", uint64_t t = (uint64_t{s.u(0)} << 2) + s.u(1); r = t; c = t >> 32);
  OP32_SCC("s_lshl3_add_u32", uint64_t t = (uint64_t{s.u(0)} << 3) + s.u(1); r = t; c = t >> 32);
  OP32_SCC("s_lshl4_add_u32", uint64_t t = (uint64_t{s.u(0)} << 4) + s.u(1); r = t; c = t >> 32);
  OP32("s_pack_ll_b32_b16", r = (s.u(0) & 0xffff) | s.u(1) << 16);
  OP32("s_pack_lh_b32_b16", r = (s.u(0) & 0xffff) | (s.u(1) & 0xffff0000));
  OP32("s_pack_hh_b32_b16", r = s.u(0) >> 16 | (s.u(1) & 0xffff0000));
  OP32("s_pack_hl_b32_b16", r = s.u(0) >> 16 | s.u(1) << 16);
  // what is not selected may be unwritten
  add("s_cselect_b32", Family::scalar, [](Wave& w, const Op& op) { S s{w, op}; s.move_word(!w.scc, w.scc_known); });
  add("s_cselect_b64", Family::scalar, [](Wave& w, const Op& op) { S s{w, op}; s.move_words(!w.scc, w.scc_known); });
}

void compares() {
  COMPARE("s_cmp_eq_i32", s.u(0) == s.u(1)); COMPARE("s_cmp_eq_u32", s.u(0) == s.u(1));
  COMPARE("s_cmp_lg_i32", s.u(0) != s.u(1)); COMPARE("s_cmp_lg_u32", s.u(0) != s.u(1));
  COMPARE("s_cmp_gt_i32", s.i(0) > s.i(1)); COMPARE("s_cmp_gt_u32", s.u(0) > s.u(1));
  COMPARE("s_cmp_ge_i32", s.i(0) >= s.i(1)); COMPARE("s_cmp_ge_u32", s.u(0) >= s.u(1));
  COMPARE("s_cmp_lt_i32", s.i(0) < s.i(1)); COMPARE("s_cmp_lt_u32", s.u(0) < s.u(1));
  COMPARE("s_cmp_le_i32", s.i(0) <= s.i(1)); COMPARE("s_cmp_le_u32", s.u(0) <= s.u(1));
  COMPARE64("s_cmp_eq_u64", s.uu(0) == s.uu(1)); COMPARE64("s_cmp_lg_u64", s.uu(0) != s.uu(1));
  COMPARE("s_bitcmp0_b32", !(s.u(0) >> (s.u(1) & 31) & 1)); COMPARE("s_bitcmp1_b32", s.u(0) >> (s.u(1) & 31) & 1);
  BIT64("s_bitcmp0_b64", !(s.uu(0) >> (s.u(1) & 63) & 1)); BIT64("s_bitcmp1_b64", s.uu(0) >> (s.u(1) & 63) & 1);
}

// SOPK: sdst is both, and the constant is sign-extended in `imm`.
void constants() {
#define K(name, expr) add(name, Family::scalar, [](Wave& w, const Op& op) { uint32_t d = w.scalar(op, op.dst); uint32_t k = static_cast<uint32_t>(op.imm); uint32_t z = k & 0xffff; (void)d; (void)z; w.scc = (expr); w.scc_known = w.scalar_known(op.dst); })
  K("s_cmpk_eq_i32", d == k); K("s_cmpk_lg_i32", d != k);
  K("s_cmpk_gt_i32", static_cast<int32_t>(d) > op.imm); K("s_cmpk_ge_i32", static_cast<int32_t>(d) >= op.imm);
  K("s_cmpk_lt_i32", static_cast<int32_t>(d) < op.imm); K("s_cmpk_le_i32", static_cast<int32_t>(d) <= op.imm);
  K("s_cmpk_eq_u32", d == z); K("s_cmpk_lg_u32", d != z); K("s_cmpk_gt_u32", d > z);
  K("s_cmpk_ge_u32", d >= z); K("s_cmpk_lt_u32", d < z); K("s_cmpk_le_u32", d <= z);
#undef K
  add("s_movk_i32", Family::scalar, [](Wave& w, const Op& op) { w.set(op.dst, op.imm); });
  add("s_cmovk_i32", Family::scalar, [](Wave& w, const Op& op) { if (w.scc) w.set(op.dst, op.imm, w.scc_known); });
  for (const char* name : {"s_addk_i32", "s_addk_co_i32"})
    add(name, Family::scalar, [](Wave& w, const Op& op) {
      int32_t r;
      bool k = w.scalar_known(op.dst);
      w.scc = __builtin_add_overflow(static_cast<int32_t>(w.scalar(op, op.dst)), op.imm, &r);
      w.scc_known = k;
      w.set(op.dst, r, k);
    });
  add("s_mulk_i32", Family::scalar, [](Wave& w, const Op& op) { w.set(op.dst, w.scalar(op, op.dst) * op.imm, w.scalar_known(op.dst)); });
}

}  // namespace

void register_scalar() {
  moves();
  arithmetic();
  compares();
  constants();
}

}  // namespace emu
