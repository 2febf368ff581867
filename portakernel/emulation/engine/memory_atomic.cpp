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

// `lanes` operate; what the others would add may be written by nobody.
void finish(Wave& w, const Op& op, const AtomicOp& what, unsigned data_code, uint64_t lanes) {
  unsigned registers = what.bytes / 4;
  need_known(w, lanes_known(w, data_code, registers * (is_compare(what) ? 2 : 1)), lanes & w.exec());
  need_sure(w, lanes);
  if (op.flags & RETURNS)
    for (unsigned i = 0; i < registers; ++i) mark_given(w, op.dst + i, w.exec());
}

void atomic(Wave& w, const Op& op) {
  const AtomicOp& what = ATOMICS[w.param & 0xff];
  Space space = static_cast<Space>(w.param >> 8);
  check_address(w, op, space);
  uint64_t addresses[MOST_LANES];
  each_lane(w.exec(), [&](unsigned l) { addresses[l] = address_of(w, op, l, space); });
  finish(w, op, what, op.src[2], w.may_execute());
  each_lane(w.exec(), [&](unsigned l) {
    need_atomic_alignment(w, addresses[l], what.bytes, l);
    uint8_t* to = space == flat_space ? flat_at(w, addresses[l], what.bytes, true, l, nullptr, true)
                                      : global_at(w, addresses[l], what.bytes, true, l, nullptr, true);
    one_lane(w, op, what, op.src[2], l, to);
  });
}

void buffer_atomic(Wave& w, const Op& op) {
  const AtomicOp& what = ATOMICS[w.param];
  check_buffer_address(w, op);
  Buffer b = buffer_of(w, op);
  if (b.by_lane) return refuse(w);
  Place places[MOST_LANES];
  uint64_t in_range = 0;
  each_lane(w.may_execute(), [&](unsigned l) {
    places[l] = buffer_place(w, op, b, l, what.bytes);
    in_range |= uint64_t{places[l].in_range} << l;
  });
  finish(w, op, what, op.src[3], in_range);
  each_lane(w.exec(), [&](unsigned l) {
    if (in_range >> l & 1) {
      need_atomic_alignment(w, places[l].address, what.bytes, l);
      one_lane(w, op, what, op.src[3], l, global_at(w, places[l].address, what.bytes, true, l, nullptr, true));
    } else if (op.flags & RETURNS) {
      for (unsigned i = 0; i < what.bytes / 4; ++i) w.vector(op.dst + i).lane[l] = 0;
    }
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
