// Global, flat and scratch loads and stores. src: address, scalar address, data.
#include "memory_vector.h"

namespace emu {

uint64_t address_of(Wave& w, const Op& op, unsigned lane, Space space) {
  uint64_t address = static_cast<int64_t>(op.imm);
  bool scalar = op.src[1] != NO_OPERAND;
  if (scalar) address += space == scratch_space ? w.scalar(op, op.src[1]) : w.pair(op.src[1] & 127);
  if (op.src[0] != NO_OPERAND) {
    address += w.vector(op.src[0]).lane[lane];
    if (!scalar && space != scratch_space) address += uint64_t{w.vector(op.src[0] + 1).lane[lane]} << 32;
  }
  return address;
}

void check_address(Wave& w, const Op& op, Space space) {
  bool scalar = op.src[1] != NO_OPERAND;
  if (op.src[0] != NO_OPERAND)
    need_known(w, lanes_known(w, op.src[0], scalar || space == scratch_space ? 1 : 2), w.exec());
  if (scalar && !w.scalar_known(op.src[1], space != scratch_space)) need_known(w, 0, w.exec());
}

namespace {

uint8_t* place(Wave& w, uint64_t address, uint32_t bytes, bool writes, unsigned lane, Space space,
               const void* value, bool atomic) {
  if (space == scratch_space) return scratch_at(w, static_cast<int32_t>(address), bytes, lane);
  return space == flat_space ? flat_at(w, address, bytes, writes, lane, value, atomic)
                             : global_at(w, address, bytes, writes, lane, value, atomic);
}

void load(Wave& w, const Op& op) {
  const Width& width = LOADS[w.param & 0xff];
  Space space = static_cast<Space>(w.param >> 8);
  check_address(w, op, space);
  uint64_t addresses[MOST_LANES];  // the result may overwrite the address
  each_lane(w.exec(), [&](unsigned l) { addresses[l] = address_of(w, op, l, space); });
  Unwritten unwritten;
  each_lane(w.exec(), [&](unsigned l) {
    const uint8_t* from = place(w, addresses[l], width.bytes, false, l, space, nullptr, op.cache);
    note_unwritten(w, width, l, from, unwritten);
    load_into(w, op.dst, width, l, from);
  });
  mark_loaded(w, op.dst, width, w.exec(), unwritten);
}

void store(Wave& w, const Op& op) {
  const Width& width = STORES[w.param & 0xff];
  Space space = static_cast<Space>(w.param >> 8);
  check_address(w, op, space);
  // a spilled register may hold nothing
  uint64_t known = data_known(w, op.src[2], width);
  if (space != scratch_space) need_known(w, known, w.exec()), need_sure(w, w.may_execute());
  each_lane(w.exec(), [&](unsigned l) {
    Stored value = stored(w, op.src[2], width, l);
    if (uint8_t* to = place(w, address_of(w, op, l, space), width.bytes, true, l, space, value.bytes, op.cache)) {
      memcpy(to, value.bytes, width.bytes);
      remember_stored(w, op.src[2], width, l, to);
    }
  });
}

// From memory to LDS, past the registers: each lane's words lie side by side from M0 on.
void load_lds(Wave& w, const Op& op) {
  unsigned bytes = w.param & 0xff;
  check_address(w, op, global_space);
  need_sure(w, w.may_execute());
  uint64_t begin = (w.sgpr[M0] & 0x3ffff) + static_cast<int64_t>(op.imm);
  unsigned step = bytes < 4 ? 4 : bytes;
  each_lane(w.exec(), [&](unsigned l) {
    const uint8_t* from = global_at(w, address_of(w, op, l, global_space), bytes, false, l);
    uint8_t* to = lds_at(w, begin + uint64_t{l} * step, step, true, l);
    if (!to) return;
    uint8_t value[16] = {};
    if (from) memcpy(value, from, bytes);
    if (w.param & 0x100 && bytes < 4 && value[bytes - 1] & 0x80) memset(value + bytes, 0xff, 4 - bytes);
    memcpy(to, value, step);
  });
  report_races(w);
}

}  // namespace

void register_memory() {
  const struct { const char* name; Space space; } spaces[] = {
      {"global", global_space}, {"flat", flat_space}, {"scratch", scratch_space},
  };
  for (auto& s : spaces) {
    for (int i = 0; i < LOAD_COUNT; ++i)
      for (const char* suffix : {LOADS[i].suffix, LOADS[i].cdna})
        add(std::string(s.name) + "_load_" + suffix, Family::memory, load, i | s.space << 8);
    for (int i = 0; i < STORE_COUNT; ++i)
      for (const char* suffix : {STORES[i].suffix, STORES[i].cdna})
        add(std::string(s.name) + "_store_" + suffix, Family::memory, store, i | s.space << 8);
  }
  add("global_load_lds_dword", Family::memory, load_lds, 4);
  add("global_load_lds_dwordx3", Family::memory, load_lds, 12);
  add("global_load_lds_dwordx4", Family::memory, load_lds, 16);
  add("global_load_lds_ubyte", Family::memory, load_lds, 1);
  add("global_load_lds_ushort", Family::memory, load_lds, 2);
  add("global_load_lds_sbyte", Family::memory, load_lds, 1 | 0x100);
  add("global_load_lds_sshort", Family::memory, load_lds, 2 | 0x100);
}

}  // namespace emu
