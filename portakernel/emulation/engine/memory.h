// The checked way to memory: nothing is read or written but the regions, LDS and private memory, byte by byte known.
#pragma once
#include "registry.h"

namespace emu {

// A place of `bytes` bytes for one lane; null where there is none (a finding then says why).
// Where a store writes `value`, it does not conflict with another wave's store of the same.
uint8_t* global_at(Wave& wave, uint64_t address, uint32_t bytes, bool writes, unsigned lane, const void* value = nullptr,
                   bool atomic = false);
// In LDS; `writes` marks the bytes as written. Atomic accesses do not conflict with each other, but with others they do.
uint8_t* lds_at(Wave& wave, uint64_t offset, uint32_t bytes, bool writes, unsigned lane, const void* value = nullptr,
                bool atomic = false);
uint8_t* scratch_at(Wave& wave, int64_t offset, uint32_t bytes, unsigned lane);
// By aperture: LDS, private memory, or the regions.
uint8_t* flat_at(Wave& wave, uint64_t address, uint32_t bytes, bool writes, unsigned lane, const void* value = nullptr,
                 bool atomic = false);

void need_alignment(Wave& wave, uint64_t address, uint32_t bytes, unsigned lane);
// Of an atomic operation, which hardware takes at multiples of its size alone, beside what every access is asked for.
void need_atomic_alignment(Wave& wave, uint64_t address, uint32_t bytes, unsigned lane);
// Says so where an address or a value that is stored was never written.
void need_known(Wave& wave, uint64_t known, uint64_t lanes);
// Of what is more than the writing of registers: says so where it depends on a conflicting load which of these lanes do it.
void need_sure(Wave& wave, uint64_t lanes);

// How a load fills a register from bytes, and a store takes them.
struct Width {
  const char* suffix;   // of the RDNA name: "b32", "u8", "d16_hi_u8"
  const char* cdna;     // of the CDNA name: "dword"; null where none
  uint8_t bytes;
  bool sign, low_half, high_half;
};
extern const Width LOADS[], STORES[];
extern const int LOAD_COUNT, STORE_COUNT;

void load_into(Wave& wave, unsigned code, const Width& width, unsigned lane, const uint8_t* from);
// What a store takes of one lane: up to 16 bytes.
struct Stored {
  uint8_t bytes[16];
};
Stored stored(Wave& wave, unsigned code, const Width& width, unsigned lane);
inline unsigned words(const Width& width) { return (width.bytes + 3u) / 4; }
uint64_t data_known(Wave& wave, unsigned code, const Width& width);
// Private memory keeps of each word whether somebody wrote it: registers spilled to it may hold nothing, and only their
// use is a fault. After a store of registers to `to`, where that is private memory:
void remember_stored(Wave& wave, unsigned code, const Width& width, unsigned lane, const uint8_t* to);
// By word of a load: the lanes for which nobody wrote it, and the instruction that what it holds comes from.
struct Unwritten {
  uint64_t lanes[4] = {};
  uint32_t origins[4] = {};
};
// Notes the words that a lane loads from there and nobody wrote.
void note_unwritten(Wave& wave, const Width& width, unsigned lane, const uint8_t* from, Unwritten& to);
// What a conflicting load gave may be old or new: it counts as written by nobody, and only its use is a fault.
// `unwritten`: what it found in private memory that nobody wrote.
void mark_loaded(Wave& wave, unsigned code, const Width& width, uint64_t lanes, const Unwritten& unwritten = {});
// Registers that these lanes get, or may get, of LDS and atomics.
void mark_given(Wave& wave, unsigned code, uint64_t lanes);
// Of a load whose value goes where nothing tells of each lane whether it is known: its conflicts are faults at once.
void report_races(Wave& wave);

template <class F>
void each_lane(uint64_t lanes, F f) {
  for (; lanes; lanes &= lanes - 1) f(static_cast<unsigned>(__builtin_ctzll(lanes)));
}

}  // namespace emu
