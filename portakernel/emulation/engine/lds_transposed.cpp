// Transposed loads of gfx950: 16 lanes load side by side, and each of them gets a column.
//
// The bits that 16 lanes load, one lane after the other, are a matrix whose rows have 16 elements; lane i of them gets
// element i of each row.
#include "memory.h"
#include "small_float.h"

namespace emu {

namespace {

// param: bits of an element; 64 bits a lane, or 96 of 6-bit elements.
void load(Wave& w, const Op& op) {
  const unsigned bits = static_cast<unsigned>(w.param), bytes = bits == 6 ? 12 : 8, items = bytes * 8 / bits;
  if (w.exec() != w.all) return refuse(w);  // the documents ask for all lanes
  need_known(w, lanes_known(w, op.src[0], 1), w.all);
  uint32_t loaded[MOST_LANES][4] = {};
  uint64_t offsets[MOST_LANES];
  for (unsigned l = 0; l < w.lanes; ++l) offsets[l] = w.vector(op.src[0]).lane[l] + static_cast<uint32_t>(op.imm);
  for (unsigned l = 0; l < w.lanes; ++l)
    if (const uint8_t* from = lds_at(w, offsets[l], bytes, false, l)) memcpy(loaded[l], from, bytes);
  uint32_t made[3][MOST_LANES] = {};
  for (unsigned l = 0; l < w.lanes; ++l)
    for (unsigned row = 0; row < items; ++row) {
      unsigned at = row * 16 + l % 16;  // of the elements that the 16 lanes loaded
      uint64_t element = bits_at(loaded[l / 16 * 16 + at / items], at % items * bits, bits);
      uint64_t moved = element << (row * bits % 32);
      made[row * bits / 32][l] |= static_cast<uint32_t>(moved);
      if (moved >> 32) made[row * bits / 32 + 1][l] |= static_cast<uint32_t>(moved >> 32);
    }
  for (unsigned i = 0; i < bytes / 4; ++i) write_lanes(w, op.dst + i, made[i], w.exec(), w.all);
}

}  // namespace

void register_lds_transposed() {
  add("ds_read_b64_tr_b16", Family::lds, load, 16);
  add("ds_read_b64_tr_b8", Family::lds, load, 8);
  add("ds_read_b64_tr_b4", Family::lds, load, 4);
  add("ds_read_b96_tr_b6", Family::lds, load, 6);
}

}  // namespace emu
