#include <thread>

#include "memory.h"

namespace emu {

const Width LOADS[] = {
    {"u8", "ubyte", 1, false, false, false},      {"i8", "sbyte", 1, true, false, false},
    {"u16", "ushort", 2, false, false, false},    {"i16", "sshort", 2, true, false, false},
    {"b32", "dword", 4, false, false, false},     {"b64", "dwordx2", 8, false, false, false},
    {"b96", "dwordx3", 12, false, false, false},  {"b128", "dwordx4", 16, false, false, false},
    {"d16_u8", "ubyte_d16", 1, false, true, false},     {"d16_hi_u8", "ubyte_d16_hi", 1, false, false, true},
    {"d16_i8", "sbyte_d16", 1, true, true, false},      {"d16_hi_i8", "sbyte_d16_hi", 1, true, false, true},
    {"d16_b16", "short_d16", 2, false, true, false},    {"d16_hi_b16", "short_d16_hi", 2, false, false, true},
};
const int LOAD_COUNT = sizeof(LOADS) / sizeof(*LOADS);

const Width STORES[] = {
    {"b8", "byte", 1, false, false, false},       {"b16", "short", 2, false, false, false},
    {"b32", "dword", 4, false, false, false},     {"b64", "dwordx2", 8, false, false, false},
    {"b96", "dwordx3", 12, false, false, false},  {"b128", "dwordx4", 16, false, false, false},
    {"d16_hi_b8", "byte_d16_hi", 1, false, false, true}, {"d16_hi_b16", "short_d16_hi", 2, false, false, true},
};
const int STORE_COUNT = sizeof(STORES) / sizeof(*STORES);

void need_alignment(Wave& wave, uint64_t address, uint32_t bytes, unsigned lane) {
  // of what is wider than a dword a dword's alignment is asked
  uint32_t needed = bytes >= 4 ? 4 : bytes;
  if (needed > 1 && address & (needed - 1)) wave.worker->report(wave, Kind::misaligned, lane, address, bytes);
}

void need_atomic_alignment(Wave& wave, uint64_t address, uint32_t bytes, unsigned lane) {
  if (bytes == 8 && (address & 7) == 4) wave.worker->report(wave, Kind::misaligned, lane, address, bytes);
}

void need_known(Wave& wave, uint64_t known, uint64_t lanes) {
  // which lanes take part may come from a conflicting load, in a way that says nothing of each
  if (!wave.raced_loads.empty() && !wave.unsure && !wave.scalar_known(EXEC, wave.lanes == 64)) known = 0;
  if (uint64_t missing = lanes & ~known)
    wave.worker->report_unwritten(wave, __builtin_ctzll(missing));
}

namespace {

constexpr unsigned MOST_TURNS = 1000;

void check_memory_conflict(Wave& wave, uint64_t address, uint32_t bytes, bool writes, unsigned lane, const uint8_t* held,
                           const void* value, uint32_t region) {
  Workgroup& group = *wave.group;
  uint8_t me = static_cast<uint8_t>(wave.number);
  bool told = false;
  bool same = value && !memcmp(held, value, bytes);
  auto tell = [&](uint32_t other_wave, uint32_t other_record) {
    if (writes) return wave.worker->report(wave, Kind::conflict, lane, address, bytes, 1, region, other_wave, other_record);
    wave.raced |= 1ull << lane;
    if (std::find(wave.raced_loads.begin(), wave.raced_loads.end(), wave.pc) == wave.raced_loads.end())
      wave.raced_loads.push_back(wave.pc);
    note(wave.races, finding_of(wave, Kind::conflict, lane, address, bytes, 0, region, other_wave, other_record));
  };
  for (uint64_t dword = address / 4; dword <= (address + bytes - 1) / 4; ++dword) {
    uint64_t first = std::max(address, dword * 4), last = std::min(address + bytes, dword * 4 + 4);
    TouchedMemory::Entry& t = group.memory_touched.at(dword, group.epoch);
    for (uint64_t byte = first; byte < last; ++byte) {
      uint8_t &writer = t.write_wave[byte & 3], &reader = t.read_wave[byte & 3];
      bool other_wrote = writer != NO_WAVE && writer != me;
      bool other_read = writes && reader != NO_WAVE && (reader != me || t.several_read[byte & 3]);
      if ((other_wrote || other_read) && !same && !told) {
        told = true;
        tell(other_wrote ? writer : reader, other_wrote ? t.write_record : t.read_record);
      }
      if (writes) {
        writer = me;
      } else if (reader == NO_WAVE) {
        reader = me;
      } else {
        t.several_read[byte & 3] |= reader != me;
      }
    }
    (writes ? t.write_record : t.read_record) = wave.pc;
  }
}

// Another workgroup's store of the same value is none: that one may be about to store it on another thread of the host.
void check_group_conflict(Wave& wave, uint64_t address, uint32_t bytes, bool writes, unsigned lane, const uint8_t* held,
                          const void* value, uint32_t region, uint64_t into) {
  uint32_t other = wave.worker->groups->touch(region, into, bytes, writes, static_cast<uint32_t>(wave.group->index));
  if (other == GroupTouches::NONE) return;
  for (unsigned turn = wave.launch->threads > 1 ? MOST_TURNS : 1; value && turn; --turn) {
    if (!memcmp(held, value, bytes)) return;
    if (turn > 1) std::this_thread::yield();
  }
  wave.worker->report(wave, Kind::group_conflict, lane, address, bytes, writes, region, NO_WAVE, NO_RECORD, other);
}

uint64_t away(int64_t distance) { return distance < 0 ? 0 - static_cast<uint64_t>(distance) : distance; }

}  // namespace

uint8_t* global_at(Wave& wave, uint64_t address, uint32_t bytes, bool writes, unsigned lane, const void* value,
                   bool atomic) {
  const Launch& launch = *wave.launch;
  int64_t nearest = INT64_MAX;
  uint32_t near = 0xffffffff;
  for (uint32_t i = 0; i < launch.region_count; ++i) {
    const Region& r = launch.regions[i];
    uint64_t into = address - r.base;
    if (into < r.size && bytes <= r.size - into) {
      if (writes && !r.writable) {
        wave.worker->report(wave, Kind::read_only, lane, address, bytes, 0, i);
        return nullptr;
      }
      need_alignment(wave, address, bytes, lane);
      if (r.written) {
        if (writes) memset(r.written + into, 1, bytes);
        else if (memchr(r.written + into, 0, bytes))
          wave.worker->report(wave, Kind::uninitialised_memory, lane, address, bytes, 0, i);
      }
      if (wave.group->checks_conflicts && r.writable && !atomic)
        check_memory_conflict(wave, address, bytes, writes, lane, r.host + into, value, i);
      if (launch.check_groups && r.writable && !atomic)
        check_group_conflict(wave, address, bytes, writes, lane, r.host + into, value, i, into);
      wave.worker->moved[wave.pc] += bytes;
      return r.host + into;
    }
    int64_t past = static_cast<int64_t>(address + bytes - (r.base + r.size));
    int64_t distance = address < r.base ? static_cast<int64_t>(address - r.base) : past;
    if (away(distance) < away(nearest)) nearest = distance, near = i;
  }
  if (address >> 40 == HOST_SERVICES >> 40) {  // a wave would wait for ever for what nobody does
    wave.worker->report(wave, Kind::host_service, lane, address, bytes);
    wave.worker->stopped = true;
    wave.state = State::ended;
    return nullptr;
  }
  wave.worker->report(wave, Kind::outside, lane, address, bytes, nearest, near);
  return nullptr;
}

uint8_t* lds_at(Wave& wave, uint64_t offset, uint32_t bytes, bool writes, unsigned lane, const void* value,
                bool atomic) {
  Workgroup& group = *wave.group;
  if (offset >= group.lds.size() || bytes > group.lds.size() - offset) {
    wave.worker->report(wave, Kind::outside_lds, lane, offset, bytes,
                        static_cast<int64_t>(offset + bytes - group.lds.size()));
    return nullptr;
  }
  need_alignment(wave, offset, bytes, lane);
  wave.worker->lds_moved[wave.pc] += bytes;
  if (writes) memset(&group.lds_written[offset], 1, bytes);
  else if (memchr(&group.lds_written[offset], 0, bytes))
    wave.worker->report(wave, Kind::uninitialised_lds, lane, offset, bytes);
  // the reading half of an atomic operation is one step with its writing one
  if (!group.touched.empty() && !(atomic && !writes)) {
    uint8_t me = static_cast<uint8_t>(wave.number);
    bool told = value && !memcmp(&group.lds[offset], value, bytes);
    for (uint32_t b = 0; b < bytes; ++b) {
      Touch& t = group.touched[offset + b];
      bool was_written = t.write_epoch == group.epoch, was_read = t.read_epoch == group.epoch;
      bool other_wrote = was_written && (t.write_wave != me || t.several_atomic) && !(atomic && t.all_atomic);
      bool other_read = writes && was_read && (t.read_wave != me || t.several_read);
      if ((other_wrote || other_read) && !told) {
        told = true;
        wave.worker->report(wave, Kind::conflict, lane, offset, bytes, writes, 0xffffffff,
                            other_wrote ? t.write_wave : t.read_wave, other_wrote ? t.write_record : t.read_record);
      }
      if (writes) {
        bool both = atomic && was_written && t.all_atomic;
        t.several_atomic = both && (t.several_atomic || t.write_wave != me);
        t.all_atomic = atomic && (!was_written || t.all_atomic);
        t.write_epoch = group.epoch, t.write_wave = me, t.write_record = wave.pc;
      } else if (!was_read) {
        t.read_epoch = group.epoch, t.read_wave = me, t.read_record = wave.pc, t.several_read = false;
      } else if (t.read_wave != me) {
        t.several_read = true;
      }
    }
  }
  return &group.lds[offset];
}

uint8_t* scratch_at(Wave& wave, int64_t offset, uint32_t bytes, unsigned lane) {
  if (offset < 0 || static_cast<uint64_t>(offset) + bytes > wave.scratch_bytes) {
    wave.worker->report(wave, Kind::outside, lane, static_cast<uint64_t>(offset), bytes,
                        offset < 0 ? offset : static_cast<int64_t>(offset + bytes) - wave.scratch_bytes);
    return nullptr;
  }
  wave.worker->moved[wave.pc] += bytes;
  return wave.scratch + static_cast<uint64_t>(lane) * wave.scratch_bytes + offset;
}

uint8_t* flat_at(Wave& wave, uint64_t address, uint32_t bytes, bool writes, unsigned lane, const void* value,
                 bool atomic) {
  if (address >> 32 == SHARED_APERTURE >> 32) return lds_at(wave, address & 0xffffffff, bytes, writes, lane, value, atomic);
  if (address >> 32 == PRIVATE_APERTURE >> 32) return scratch_at(wave, address & 0xffffffff, bytes, lane);
  return global_at(wave, address, bytes, writes, lane, value, atomic);
}

void load_into(Wave& wave, unsigned code, const Width& width, unsigned lane, const uint8_t* from) {
  if (width.bytes >= 4) {
    for (unsigned w = 0; w < words(width); ++w) {
      uint32_t value = 0;
      if (from) memcpy(&value, from + 4 * w, 4);
      wave.vector(code + w).lane[lane] = value;
    }
    return;
  }
  uint32_t value = 0;
  if (from) memcpy(&value, from, width.bytes);
  if (width.sign) value = width.bytes == 1 ? static_cast<int8_t>(value) : static_cast<int16_t>(value);
  uint32_t& to = wave.vector(code).lane[lane];
  if (width.low_half) to = (to & 0xffff0000) | (value & 0xffff);
  else if (width.high_half) to = (to & 0xffff) | value << 16;
  else to = value;
}

Stored stored(Wave& wave, unsigned code, const Width& width, unsigned lane) {
  Stored value{};
  if (width.bytes >= 4) {
    for (unsigned w = 0; w < words(width); ++w) memcpy(value.bytes + 4 * w, &wave.vector(code + w).lane[lane], 4);
    return value;
  }
  uint32_t half = wave.vector(code).lane[lane] >> (width.high_half ? 16 : 0);
  memcpy(value.bytes, &half, width.bytes);
  return value;
}

uint64_t data_known(Wave& wave, unsigned code, const Width& width) {
  return lanes_known(wave, code, words(width), width.bytes >= 4 ? BOTH_HALVES : width.high_half ? HIGH_HALF : LOW_HALF);
}

void need_sure(Wave& wave, uint64_t lanes) {
  if (!(lanes & wave.unsure)) return;
  wave.blamed = EXEC;
  wave.worker->report_unwritten(wave, __builtin_ctzll(lanes & wave.unsure));
}

void mark_given(Wave& wave, unsigned code, uint64_t lanes) {
  uint64_t& known = wave.vector_known(code);
  known = (known | lanes) & ~wave.unsure;
  if (wave.unsure) wave.origin(code) = wave.origin(EXEC);
}

namespace {

constexpr uint8_t NEVER = 0, KNOWN = 1, UNKNOWN = 2;  // of a byte of private memory: what was stored there

// Where a place lies in the wave's private memory; not inside of it where it is another's.
size_t into_scratch(const Wave& wave, const uint8_t* at) {
  return reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(wave.scratch);
}
bool is_scratch(const Wave& wave, const uint8_t* at) {
  return at && into_scratch(wave, at) < size_t{wave.scratch_bytes} * wave.lanes;
}

}  // namespace

void remember_stored(Wave& wave, unsigned code, const Width& width, unsigned lane, const uint8_t* to) {
  if (!is_scratch(wave, to)) return;
  for (unsigned at = 0; at < width.bytes; at += 4) {
    size_t into = into_scratch(wave, to) + at;
    bool known = wave.vector_known(code + at / 4) >> lane & 1;
    memset(wave.scratch_held + into, known ? KNOWN : UNKNOWN, std::min(4u, width.bytes - at));
    wave.scratch_origins[into / 4] = wave.origin(code + at / 4);
  }
}

void note_unwritten(Wave& wave, const Width& width, unsigned lane, const uint8_t* from, Unwritten& to) {
  if (!is_scratch(wave, from)) return;
  for (unsigned at = 0; at < width.bytes; at += 4) {
    size_t into = into_scratch(wave, from) + at, bytes = std::min(4u, width.bytes - at);
    // a word of which some bytes were written counts as written: compilers load the others beside them
    if (memchr(wave.scratch_held + into, KNOWN, bytes)) continue;
    to.lanes[at / 4] |= 1ull << lane;
    bool stored = memchr(wave.scratch_held + into, UNKNOWN, bytes);
    to.origins[at / 4] = stored ? wave.scratch_origins[into / 4] : wave.pc;
  }
}

void mark_loaded(Wave& wave, unsigned code, const Width& width, uint64_t lanes, const Unwritten& unwritten) {
  for (unsigned w = 0; w < words(width); ++w) {
    uint64_t& known = wave.vector_known(code + w);
    known = (known | lanes) & ~(wave.raced | wave.unsure | unwritten.lanes[w]);
    if (wave.raced) wave.origin(code + w) = wave.pc;
    else if (unwritten.lanes[w]) wave.origin(code + w) = unwritten.origins[w];
    else if (wave.unsure) wave.origin(code + w) = wave.origin(EXEC);
  }
  wave.raced = 0;
}

void report_races(Wave& wave) {
  if (wave.raced) wave.worker->report_races(wave);
  wave.raced = 0;
}

}  // namespace emu
