// Scalar memory: SMEM.
#include "memory.h"

namespace emu {

namespace {

// Where a load begins, and how many bytes there are from there: as many as the descriptor in four scalar registers says.
struct Place {
  uint64_t address, left;
};

Place place_of(Wave& w, const Op& op, bool buffer) {
  uint64_t offset = static_cast<int64_t>(op.imm);
  bool known = w.scalar_known(op.src[0], true);
  if (op.src[1] != NO_OPERAND) offset += w.scalar(op, op.src[1]), known &= w.scalar_known(op.src[1]);
  if (!known) w.worker->report_unwritten(w, 0);
  uint64_t base = w.pair(op.src[0]);
  if (!buffer) return {base + offset, ~0ull};
  uint32_t stride = static_cast<uint32_t>(base >> 48) & 0x3fff, records = w.sgpr[(op.src[0] + 2) & 127];
  uint64_t limit = stride ? uint64_t{stride} * records : records;
  return {(base & 0xffffffffffffull) + offset, offset <= limit ? limit - offset : 0};
}

void load(Wave& w, const Op& op) {
  unsigned count = w.param & 0xff;
  Place from = place_of(w, op, w.param & 0x100);
  uint64_t address = from.address & ~3ull;
  for (unsigned i = 0; i < count; ++i) {
    uint32_t value = 0;
    if (4 * i + 4 <= from.left)
      if (const uint8_t* at = global_at(w, address + 4 * i, 4, false, 0)) memcpy(&value, at, 4);
    w.set(op.dst + i, value, !w.raced);
    w.raced = 0;
  }
}

void load_small(Wave& w, const Op& op) {
  unsigned bytes = w.param & 15;
  Place from = place_of(w, op, w.param & 0x100);
  uint32_t value = 0;
  if (bytes <= from.left)
    if (const uint8_t* at = global_at(w, from.address, bytes, false, 0)) memcpy(&value, at, bytes);
  if (w.param & 16) value = bytes == 1 ? static_cast<int8_t>(value) : static_cast<int16_t>(value);
  w.set(op.dst, value, !w.raced);
  w.raced = 0;
}

}  // namespace

void register_scalar_memory() {
  const struct { const char *rdna, *cdna; int words; } sizes[] = {
      {"b32", "dword", 1}, {"b64", "dwordx2", 2}, {"b96", nullptr, 3}, {"b128", "dwordx4", 4},
      {"b256", "dwordx8", 8}, {"b512", "dwordx16", 16},
  };
  for (auto& size : sizes) {
    add(std::string("s_load_") + size.rdna, Family::scalar_memory, load, size.words);
    add(std::string("s_buffer_load_") + size.rdna, Family::scalar_memory, load, size.words | 0x100);
    if (!size.cdna) continue;
    add(std::string("s_load_") + size.cdna, Family::scalar_memory, load, size.words);
    add(std::string("s_buffer_load_") + size.cdna, Family::scalar_memory, load, size.words | 0x100);
  }
  const struct { const char* name; int param; } small[] = {{"u8", 1}, {"i8", 1 | 16}, {"u16", 2}, {"i16", 2 | 16}};
  for (auto& size : small) {
    add(std::string("s_load_") + size.name, Family::scalar_memory, load_small, size.param);
    add(std::string("s_buffer_load_") + size.name, Family::scalar_memory, load_small, size.param | 0x100);
  }
}

}  // namespace emu
