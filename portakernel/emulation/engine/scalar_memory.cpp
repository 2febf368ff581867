// Scalar memory: SMEM.
#include "memory.h"

namespace emu {

namespace {

// What the buffer's descriptor in four scalar registers says.
void load(Wave& w, const Op& op) {
  bool buffer = w.param & 0x100;
  unsigned count = w.param & 0xff;
  uint64_t offset = static_cast<int64_t>(op.imm);
  bool known = w.scalar_known(op.src[0], true);
  if (op.src[1] != NO_OPERAND) offset += w.scalar(op, op.src[1]), known &= w.scalar_known(op.src[1]);
  if (!known) w.worker->report(w, Kind::uninitialised_register, 0);
  uint64_t base = w.pair(op.src[0]), limit = ~0ull;
  if (buffer) {
    uint32_t stride = static_cast<uint32_t>(base >> 48) & 0x3fff, records = w.sgpr[(op.src[0] + 2) & 127];
    base &= 0xffffffffffffull;
    limit = stride ? uint64_t{stride} * records : records;
  }
  uint64_t address = (base + offset) & ~3ull;
  for (unsigned i = 0; i < count; ++i) {
    uint32_t value = 0;
    if (offset + 4 * i + 4 <= limit || !buffer)
      if (const uint8_t* at = global_at(w, address + 4 * i, 4, false, 0)) memcpy(&value, at, 4);
    w.set(op.dst + i, value, !w.raced);
    w.raced = 0;
  }
}

void load_small(Wave& w, const Op& op) {
  unsigned bytes = w.param & 15;
  uint64_t address = w.pair(op.src[0]) + static_cast<int64_t>(op.imm);
  if (op.src[1] != NO_OPERAND) address += w.scalar(op, op.src[1]);
  uint32_t value = 0;
  if (const uint8_t* at = global_at(w, address, bytes, false, 0)) memcpy(&value, at, bytes);
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
  add("s_load_u8", Family::scalar_memory, load_small, 1);
  add("s_load_i8", Family::scalar_memory, load_small, 1 | 16);
  add("s_load_u16", Family::scalar_memory, load_small, 2);
  add("s_load_i16", Family::scalar_memory, load_small, 2 | 16);
}

}  // namespace emu
