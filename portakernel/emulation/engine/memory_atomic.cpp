// Atomic operations in memory: global, flat and buffer.
#include "atomic.h"
#include "memory_buffer.h"
#include "memory_vector.h"

namespace emu {

namespace {

uint64_t data_of(Wave& w, unsigned code, unsigned lane, unsigned bytes) {
  uint64_t value = w.vector(code).lane[lane];
  return bytes == 8 ? value | uint64_t{w.vector(code + 1).lane[lane]} << 32 : value;
}

// The data's registers: the new value, and behind it what a compare-and-swap compares with.
void one_lane(Wave& w, const Op& op, const AtomicOp& what, unsigned data_code, unsigned lane, uint8_t* to) {
  if (!to) return;
  uint64_t compare = is_compare(what) ? data_of(w, data_code + what.bytes / 4, lane, what.bytes) : 0;
  uint64_t old = perform(what, to, data_of(w, data_code, lane, what.bytes), compare);
  if (!(op.flags & RETURNS)) return;
  w.vector(op.dst).lane[lane] = static_cast<uint32_t>(old);
  if (what.bytes == 8) w.vector(op.dst + 1).lane[lane] = static_cast<uint32_t>(old >> 32);
}

void finish(Wave& w, const Op& op, const AtomicOp& what, unsigned data_code) {
  unsigned registers = what.bytes / 4;
  need_known(w, lanes_known(w, data_code, registers * (is_compare(what) ? 2 : 1)), w.exec());
  need_sure(w, w.may_execute());
  if (op.flags & RETURNS)
    for (unsigned i = 0; i < registers; ++i) mark_given(w, op.dst + i, w.exec());
}

void atomic(Wave& w, const Op& op) {
  const AtomicOp& what = ATOMICS[w.param & 0xff];
  Space space = static_cast<Space>(w.param >> 8);
  check_address(w, op, space);
  uint64_t addresses[MOST_LANES];
  each_lane(w.exec(), [&](unsigned l) { addresses[l] = address_of(w, op, l, space); });
  finish(w, op, what, op.src[2]);
  each_lane(w.exec(), [&](unsigned l) {
    uint8_t* to = space == flat_space ? flat_at(w, addresses[l], what.bytes, true, l, nullptr, true)
                                      : global_at(w, addresses[l], what.bytes, true, l, nullptr, true);
    one_lane(w, op, what, op.src[2], l, to);
  });
}

void buffer_atomic(Wave& w, const Op& op) {
  const AtomicOp& what = ATOMICS[w.param];
  check_buffer_address(w, op);
  Buffer b = buffer_of(w, op);
  finish(w, op, what, op.src[3]);
  each_lane(w.exec(), [&](unsigned l) {
    Place p = buffer_place(w, op, b, l, what.bytes);
    if (p.in_range) one_lane(w, op, what, op.src[3], l, global_at(w, p.address, what.bytes, true, l, nullptr, true));
  });
}

}  // namespace

void register_memory_atomic() {
  for (int i = 0; i < ATOMIC_COUNT; ++i)
    for (const char* name : {ATOMICS[i].name, ATOMICS[i].cdna}) {
      if (!name) continue;
      add(std::string("global_atomic_") + name, Family::atomic, atomic, i | global_space << 8);
      add(std::string("flat_atomic_") + name, Family::atomic, atomic, i | flat_space << 8);
      add(std::string("buffer_atomic_") + name, Family::atomic, buffer_atomic, i);
    }
}

}  // namespace emu
