// Between lanes: readlane, permlane, swizzle, ds_permute, mbcnt. DPP and SDWA are part of every operand's fetch.
#include "memory.h"

namespace emu {

namespace {

// A source of any kind in one lane.
uint32_t in_lane(Wave& w, const Op& op, unsigned code, unsigned lane) {
  return code >= VGPR ? w.vector(code).lane[lane] : w.scalar(op, code);
}
bool known_in(Wave& w, unsigned code, unsigned lane) { return lanes_known(w, code, 1) >> lane & 1; }
// Where it is open which lanes take part, so is what others get of them.
uint64_t known_to_others(Wave& w, unsigned code) {
  uint64_t known = lanes_known(w, code, 1);
  if (!w.unsure) return known;
  w.blamed = EXEC;
  return known & ~w.unsure;
}

void read_first(Wave& w, const Op& op) {
  uint64_t exec = w.exec();
  unsigned lane = exec ? __builtin_ctzll(exec) : 0;
  bool known = op.src[0] < VGPR ? known_in(w, op.src[0], lane) : known_to_others(w, op.src[0]) >> lane & 1;
  if (w.unsure && (!exec || w.unsure & ((2ull << lane) - 1))) known = false;  // the first lane may be another one
  w.set(op.dst, in_lane(w, op, op.src[0], lane), known);
}

void read_lane(Wave& w, const Op& op) {
  unsigned lane = w.scalar(op, op.src[1]) & (w.lanes - 1);
  w.set(op.dst, in_lane(w, op, op.src[0], lane), known_in(w, op.src[0], lane) && w.scalar_known(op.src[1]));
}

void write_lane(Wave& w, const Op& op) {
  unsigned lane = w.scalar(op, op.src[1]) & (w.lanes - 1);
  if (w.waits.outstanding) need_waited(w, op.dst, 1, BOTH_HALVES, 1ull << lane);
  w.vector(op.dst).lane[lane] = w.scalar(op, op.src[0]);
  uint64_t bit = 1ull << lane, &known = w.vector_known(op.dst);
  known = w.scalar_known(op.src[0]) ? known | bit : known & ~bit;
}

// Each lane reads one of the same row, or with `other` of the row beside it; op_sel bit 0 reads inactive lanes too,
// bit 1 gives 0 for what is not there.
void permlane16(Wave& w, const Op& op, bool other, bool by_lane) {
  uint64_t exec = w.exec(), known_from = known_to_others(w, op.src[0]), known = 0, written = exec;
  Register from = w.vector(op.src[0]);
  uint32_t out[MOST_LANES] = {};
  uint64_t select = by_lane ? 0 : w.scalar(op, op.src[1]) | uint64_t{w.scalar(op, op.src[2])} << 32;
  bool fetch_inactive = op.op_sel & 1, bound = op.op_sel & 2;
  for (unsigned l = 0; l < w.lanes; ++l) {
    unsigned in_row = by_lane ? in_lane(w, op, op.src[1], l) & 15 : select >> (l & 15) * 4 & 15;
    unsigned at = ((l & ~15u) ^ (other ? 16 : 0)) | in_row;
    if (exec >> at & 1 || fetch_inactive) {
      out[l] = from.lane[at];
      known |= (known_from >> at & 1) << l;
    } else if (bound) {
      known |= uint64_t{!(w.unsure >> at & 1)} << l;
    } else {
      written &= ~(1ull << l);
    }
  }
  write_lanes(w, op.dst, out, written, known);
}

// The upper half (or odd rows) of one register against the lower half (or even rows) of the other.
void swap_lanes(Wave& w, const Op& op, unsigned distance) {
  for (unsigned code : {op.dst, op.src[0]})
    if (w.waits.outstanding) need_waited(w, code, 1);
  Register &a = w.vector(op.dst), &b = w.vector(op.src[0]);
  uint64_t &ka = w.vector_known(op.dst), &kb = w.vector_known(op.src[0]);
  for (unsigned l = 0; l < w.lanes; ++l) {
    if (l & distance) continue;
    std::swap(b.lane[l], a.lane[l | distance]);
    bool low = kb >> l & 1, high = ka >> (l | distance) & 1;
    kb = (kb & ~(1ull << l)) | uint64_t{high} << l;
    ka = (ka & ~(1ull << (l | distance))) | uint64_t{low} << (l | distance);
  }
}

void permute_backward(Wave& w, const Op& op, bool fetch_inactive) {
  uint64_t exec = w.exec(), known_from = known_to_others(w, op.src[1]), known = 0;
  need_known(w, lanes_known(w, op.src[0], 1), exec);
  Register from = w.vector(op.src[1]), address = w.vector(op.src[0]);
  uint32_t out[MOST_LANES] = {};
  each_lane(exec, [&](unsigned l) {
    unsigned at = ((address.lane[l] + static_cast<uint32_t>(op.imm)) / 4) & (w.lanes - 1);
    bool there = exec >> at & 1 || fetch_inactive;
    out[l] = there ? from.lane[at] : 0;
    if ((!there && !(w.unsure >> at & 1)) || known_from >> at & 1) known |= 1ull << l;
  });
  write_lanes(w, op.dst, out, exec, known);
}

void permute_forward(Wave& w, const Op& op) {
  uint64_t exec = w.exec(), known_from = known_to_others(w, op.src[1]), known = w.unsure ? 0 : w.all;
  Register from = w.vector(op.src[1]), address = w.vector(op.src[0]);
  uint32_t out[MOST_LANES] = {};
  each_lane(exec, [&](unsigned l) {  // of several that send to one lane the last wins
    unsigned to = ((address.lane[l] + static_cast<uint32_t>(op.imm)) / 4) & (w.lanes - 1);
    out[to] = from.lane[l];
    known = (known & ~(1ull << to)) | (known_from >> l & 1) << to;
  });
  write_lanes(w, op.dst, out, exec, known);
}

// A register chosen by M0; the moves of RDNA, for CDNA see s_set_gpr_idx_on.
void move_relative(Wave& w, unsigned to, unsigned from, const Op& op) {
  uint32_t values[MOST_LANES];
  for (unsigned l = 0; l < w.lanes; ++l) values[l] = in_lane(w, op, from, l);
  write_lanes(w, to, values, w.exec(), lanes_known(w, from, 1));
}
unsigned moved(unsigned code, uint32_t by) { return std::min<unsigned>(code + std::min(by, 255u), VGPR + 255); }

unsigned reverse5(unsigned v) { return (v & 1) << 4 | (v & 2) << 2 | (v & 4) | (v & 8) >> 2 | (v & 16) >> 4; }

void swizzle(Wave& w, const Op& op) {
  unsigned pattern = static_cast<unsigned>(op.imm) & 0xffff;
  uint64_t exec = w.exec(), known_from = known_to_others(w, op.src[0]), known = 0;
  Register from = w.vector(op.src[0]);
  uint32_t out[MOST_LANES] = {};
  each_lane(exec, [&](unsigned l) {
    unsigned at, i = l & 31;
    if (pattern >= 0xe000) at = (reverse5(i) >> __builtin_popcount(pattern & 31)) | (i & pattern & 31);
    else if (pattern >= 0xc000) {
      unsigned turn = pattern >> 5 & 31, keep = pattern & 31;
      at = (i & keep) | ((pattern & 0x400 ? i - turn : i + turn) & ~keep & 31);
    } else if (pattern & 0x8000) at = (i & ~3u) | (pattern >> (i & 3) * 2 & 3);
    else at = ((i & pattern) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31);
    at = (at & 31) | (l & 32);
    bool there = exec >> at & 1;
    out[l] = there ? from.lane[at] : 0;
    if ((!there && !(w.unsure >> at & 1)) || known_from >> at & 1) known |= 1ull << l;
  });
  write_lanes(w, op.dst, out, exec, known);
}

const VectorOp OPS[] = {
    {"v_mbcnt_lo_u32_b32", Type::b32, {Type::b32, Type::b32}, [](Alu& s) {
       EMU_LANES s.out.u32[l] = __builtin_popcount(s.in[0].u32[l] & (l >= 32 ? ~0u : (1u << l) - 1)) + s.in[1].u32[l];
     }},
    {"v_mbcnt_hi_u32_b32", Type::b32, {Type::b32, Type::b32}, [](Alu& s) {
       EMU_LANES s.out.u32[l] = (l < 32 ? 0 : __builtin_popcount(s.in[0].u32[l] & ((1u << (l - 32)) - 1))) + s.in[1].u32[l];
     }},
};

}  // namespace

void register_lanes() {
  add_vectors(OPS, Family::lanes);
  add("v_readfirstlane_b32", Family::lanes, read_first);
  add("v_readlane_b32", Family::lanes, read_lane);
  add("v_writelane_b32", Family::lanes, write_lane);
  add("v_permlane16_b32", Family::lanes, [](Wave& w, const Op& op) { permlane16(w, op, false, false); });
  add("v_permlanex16_b32", Family::lanes, [](Wave& w, const Op& op) { permlane16(w, op, true, false); });
  add("v_permlane16_var_b32", Family::lanes, [](Wave& w, const Op& op) { permlane16(w, op, false, true); });
  add("v_permlanex16_var_b32", Family::lanes, [](Wave& w, const Op& op) { permlane16(w, op, true, true); });
  add("v_permlane64_b32", Family::lanes, [](Wave& w, const Op& op) {
    if (w.lanes == 32) return;
    Register from = w.vector(op.src[0]);
    uint32_t out[MOST_LANES];
    for (unsigned l = 0; l < 64; ++l) out[l] = from.lane[l ^ 32];
    uint64_t known = lanes_known(w, op.src[0], 1);
    write_lanes(w, op.dst, out, w.exec(), known >> 32 | known << 32);
  });
  add("v_permlane32_swap_b32", Family::lanes, [](Wave& w, const Op& op) { swap_lanes(w, op, 32); });
  add("v_permlane16_swap_b32", Family::lanes, [](Wave& w, const Op& op) { swap_lanes(w, op, 16); });
  add("v_swap_b32", Family::lanes, [](Wave& w, const Op& op) {
    Register a = w.vector(op.dst), b = w.vector(op.src[0]);
    uint64_t ka = lanes_known(w, op.dst, 1), kb = lanes_known(w, op.src[0], 1);
    write_lanes(w, op.dst, b.lane, w.exec(), kb);
    write_lanes(w, op.src[0], a.lane, w.exec(), ka);
  });
  add("v_movrels_b32", Family::lanes, [](Wave& w, const Op& op) { move_relative(w, op.dst, moved(op.src[0], w.sgpr[M0]), op); });
  add("v_movreld_b32", Family::lanes, [](Wave& w, const Op& op) { move_relative(w, moved(op.dst, w.sgpr[M0]), op.src[0], op); });
  add("v_movrelsd_b32", Family::lanes, [](Wave& w, const Op& op) { move_relative(w, moved(op.dst, w.sgpr[M0]), moved(op.src[0], w.sgpr[M0]), op); });
  add("v_movrelsd_2_b32", Family::lanes, [](Wave& w, const Op& op) {
    move_relative(w, moved(op.dst, w.sgpr[M0] >> 16 & 0x3ff), moved(op.src[0], w.sgpr[M0] & 0x3ff), op);
  });
  add("ds_bpermute_b32", Family::lanes, [](Wave& w, const Op& op) { permute_backward(w, op, false); });
  add("ds_bpermute_fi_b32", Family::lanes, [](Wave& w, const Op& op) { permute_backward(w, op, true); });
  add("ds_permute_b32", Family::lanes, permute_forward);
  add("ds_swizzle_b32", Family::lanes, swizzle);
}

}  // namespace emu
