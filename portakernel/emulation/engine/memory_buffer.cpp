// Buffer loads and stores: MUBUF, VBUFFER without formats.
#include "memory_buffer.h"

namespace emu {

// The range is one of records and of bytes in one of them. Without an index the stride says nothing: on gfx942 compilers
// set it for the cache.
static bool counts_records(const Op& op, const Buffer& b) { return b.stride && op.flags & INDEX_ENABLE; }

Buffer buffer_of(Wave& w, const Op& op) {
  unsigned at = std::min<unsigned>(op.src[1], 124);
  uint64_t low = w.pair(at);
  uint64_t base = low & 0xffffffffffffull;
  bool swizzled = low >> (w.rdna() ? 62 : 63), adds_lane = w.sgpr[at + 3] >> 23 & 1;
  return {base, static_cast<uint32_t>(low >> 48) & 0x3fff, w.sgpr[at + 2], base == PRIVATE_APERTURE, swizzled || adds_lane};
}

Place buffer_place(Wave& w, const Op& op, const Buffer& b, unsigned lane, uint32_t bytes) {
  bool offset_enabled = op.flags & OFFSET_ENABLE, indexed = op.flags & INDEX_ENABLE;
  uint32_t scalar = op.src[2] == NO_OPERAND ? 0 : w.scalar(op, op.src[2]);
  uint64_t offset = static_cast<uint32_t>(op.imm);
  uint64_t index = indexed ? w.vector(op.src[0]).lane[lane] : 0;
  if (offset_enabled) offset += w.vector(op.src[0] + (indexed ? 1 : 0)).lane[lane];
  uint64_t address = b.base + scalar + offset + index * b.stride;
  if (b.private_memory) return {address, true};
  if (counts_records(op, b)) return {address, index < b.records && offset + bytes <= b.stride};
  return {address, scalar <= b.records && offset + bytes <= b.records - scalar};
}

void check_buffer_address(Wave& w, const Op& op) {
  unsigned registers = ((op.flags & OFFSET_ENABLE) != 0) + ((op.flags & INDEX_ENABLE) != 0);
  if (registers) need_known(w, lanes_known(w, op.src[0], registers), w.exec());
  bool known = w.scalar_known(op.src[1], true) && w.scalar_known(op.src[1] + 2, true);
  if (op.src[2] != NO_OPERAND) known &= w.scalar_known(op.src[2]);
  if (!known) need_known(w, 0, w.exec());
}

namespace {

uint8_t* place(Wave& w, const Buffer& b, const Place& p, uint32_t bytes, bool writes, unsigned lane,
               const void* value = nullptr) {
  if (b.private_memory) return scratch_at(w, static_cast<int64_t>(p.address - PRIVATE_APERTURE), bytes, lane);
  return global_at(w, p.address, bytes, writes, lane, value);
}

// Out of the descriptor's range a load gives 0 for each dword that is outside, and a store is dropped: no fault.
void load(Wave& w, const Op& op) {
  const Width& width = LOADS[w.param];
  check_buffer_address(w, op);
  Buffer b = buffer_of(w, op);
  if (b.by_lane && !b.private_memory) return refuse(w);
  Place places[MOST_LANES];
  uint64_t exec = w.exec();
  if (op.flags & TO_LDS) {
    need_sure(w, w.may_execute());
    uint64_t begin = (w.sgpr[M0] & 0x3ffff) + static_cast<uint32_t>(op.imm);
    unsigned step = width.bytes < 4 ? 4 : width.bytes;
    each_lane(exec, [&](unsigned l) {
      Place p = buffer_place(w, op, b, l, width.bytes);
      const uint8_t* from = p.in_range ? place(w, b, p, width.bytes, false, l) : nullptr;
      uint8_t value[16] = {};
      if (from) memcpy(value, from, width.bytes);
      if (width.sign && value[width.bytes - 1] & 0x80) memset(value + width.bytes, 0xff, 4 - width.bytes);
      if (uint8_t* to = lds_at(w, begin + uint64_t{l} * step, step, true, l)) memcpy(to, value, step);
    });
    report_races(w);
    return;
  }
  bool by_index = counts_records(op, b);
  Unwritten unwritten;
  each_lane(exec, [&](unsigned l) { places[l] = buffer_place(w, op, b, l, width.bytes); });
  each_lane(exec, [&](unsigned l) {
    if (places[l].in_range || width.bytes <= 4 || by_index) {
      const uint8_t* from = places[l].in_range ? place(w, b, places[l], width.bytes, false, l) : nullptr;
      note_unwritten(w, width, l, from, unwritten);
      load_into(w, op.dst, width, l, from);
      return;
    }
    uint8_t value[16] = {};
    for (unsigned at = 0; at < width.bytes; at += 4) {
      uint64_t into = places[l].address + at - b.base;
      if (into + 4 > b.records) continue;
      Place part{places[l].address + at, true};
      if (const uint8_t* from = place(w, b, part, 4, false, l)) memcpy(value + at, from, 4);
    }
    load_into(w, op.dst, width, l, value);
  });
  mark_loaded(w, op.dst, width, exec, unwritten);
}

void store(Wave& w, const Op& op) {
  const Width& width = STORES[w.param];
  check_buffer_address(w, op);
  Buffer b = buffer_of(w, op);
  if (b.by_lane && !b.private_memory) return refuse(w);
  uint64_t written = 0;
  each_lane(w.exec(), [&](unsigned l) {
    Place p = buffer_place(w, op, b, l, width.bytes);
    if (p.in_range) {
      written |= 1ull << l;
      Stored value = stored(w, op.src[3], width, l);
      if (uint8_t* to = place(w, b, p, width.bytes, true, l, value.bytes)) {
        memcpy(to, value.bytes, width.bytes);
        remember_stored(w, op.src[3], width, l, to);
      }
    } else if (width.bytes > 4 && !counts_records(op, b)) {
      for (unsigned at = 0; at < width.bytes; at += 4) {
        if (p.address + at - b.base + 4 > b.records) continue;
        if (uint8_t* to = place(w, b, {p.address + at, true}, 4, true, l))
          memcpy(to, &w.vector(op.src[3] + at / 4).lane[l], 4);
      }
    }
  });
  each_lane(w.unsure & ~w.exec(), [&](unsigned l) {
    written |= uint64_t{buffer_place(w, op, b, l, width.bytes).in_range} << l;
  });
  uint64_t known = data_known(w, op.src[3], width);
  if (b.private_memory) return;
  need_known(w, known, written & w.exec());
  need_sure(w, written);
}

}  // namespace

void register_buffer() {
  for (int i = 0; i < LOAD_COUNT; ++i)
    for (const char* suffix : {LOADS[i].suffix, LOADS[i].cdna})
      add(std::string("buffer_load_") + suffix, Family::buffer, load, i);
  for (int i = 0; i < STORE_COUNT; ++i)
    for (const char* suffix : {STORES[i].suffix, STORES[i].cdna})
      add(std::string("buffer_store_") + suffix, Family::buffer, store, i);
}

}  // namespace emu
