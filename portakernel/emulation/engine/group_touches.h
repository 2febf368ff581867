// Which workgroups touched memory in a launch: nothing but atomics orders them, so what one writes no other may touch.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "abi.h"

namespace emu {

// A mark is who wrote, above, and who read first, below; 0 is nobody. Dwords that were touched as a whole have one, and
// of those that were not each byte has one of its own.
class GroupTouches {
 public:
  static constexpr uint32_t NONE = 0xffffffff;

  explicit GroupTouches(const Launch& launch) : alone_(launch.threads <= 1) {
    if (!launch.check_groups) return;
    regions_ = std::make_unique<Marks[]>(launch.region_count);
    for (uint32_t i = 0; i < launch.region_count; ++i)
      if (const Region& region = launch.regions[i]; region.writable)
        regions_[i] = {empty(region.size / 4 + 2), empty(region.size + 4), region.base & 3};
  }

  // The index of a workgroup that this access conflicts with, or NONE. Whoever comes second sees the first one's mark.
  uint32_t touch(uint32_t region, uint64_t into, uint32_t bytes, bool writes, uint32_t group) {
    if (!regions_ || !regions_[region].dwords) return NONE;
    Marks& marks = regions_[region];
    uint32_t me = group + 1, other = NONE;
    uint64_t begin = into + marks.skew, end = begin + bytes;
    for (uint64_t dword = begin / 4; dword * 4 < end; ++dword) {
      uint64_t first = std::max(begin, dword * 4), last = std::min(end, dword * 4 + 4);
      uint64_t* whole = &marks.dwords.get()[dword];
      if (last - first == 4) {
        uint64_t old = mark(whole, me, writes);
        see(old, me, writes, other);
        if (!(old & PARTLY)) continue;
        for (uint64_t byte = first; byte < last; ++byte) see(load(&marks.bytes.get()[byte]), me, writes, other);
      } else {
        for (uint64_t byte = first; byte < last; ++byte) see(mark(&marks.bytes.get()[byte], me, writes), me, writes, other);
        see(__atomic_fetch_or(whole, PARTLY, __ATOMIC_SEQ_CST), me, writes, other);
      }
    }
    return other;
  }

 private:
  static constexpr uint32_t SEVERAL = 1u << 31;     // of who read
  static constexpr uint64_t PARTLY = 1ull << 63;    // of who wrote
  struct Free {
    void operator()(uint64_t* at) const { std::free(at); }
  };
  using Array = std::unique_ptr<uint64_t, Free>;
  struct Marks {
    Array dwords, bytes;
    uint64_t skew;  // of the region's first byte from a dword's
  };
  // Pages that nobody touches cost nothing.
  static Array empty(uint64_t count) {
    Array made(static_cast<uint64_t*>(std::calloc(count, sizeof(uint64_t))));
    if (!made) throw std::bad_alloc();
    return made;
  }
  static uint64_t load(const uint64_t* at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
  static uint64_t after(uint64_t old, uint32_t me, bool writes) {
    if (writes) return uint64_t{me} << 32 | (old & (PARTLY | 0xffffffff));
    uint32_t reader = static_cast<uint32_t>(old);
    return old | (!reader ? me : (reader & ~SEVERAL) != me ? SEVERAL : 0);
  }
  uint64_t mark(uint64_t* at, uint32_t me, bool writes) {
    uint64_t old = __atomic_load_n(at, __ATOMIC_RELAXED), made = after(old, me, writes);
    if (alone_) {
      *at = made;
      return old;
    }
    while (!__atomic_compare_exchange_n(at, &old, made, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
      made = after(old, me, writes);
    return old;
  }
  static void see(uint64_t mark, uint32_t me, bool writes, uint32_t& other) {
    uint32_t writer = static_cast<uint32_t>(mark >> 32) & 0x7fffffff, reader = static_cast<uint32_t>(mark);
    if (writer && writer != me) other = writer - 1;
    else if (writes && reader && reader != me) other = (reader & ~SEVERAL) - 1;
  }

  bool alone_;
  std::unique_ptr<Marks[]> regions_;
};

}  // namespace emu
