// The state of waves and workgroups, and what every family of instructions uses of it.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "abi.h"
#include "doubts.h"
#include "float16.h"
#include "group_touches.h"
#include "waits.h"

namespace emu {

constexpr int MOST_LANES = 64;
constexpr uint64_t SHARED_APERTURE = 0xff01ull << 32, PRIVATE_APERTURE = 0xff02ull << 32;
// Where kernels find what a host does for them: printf's buffer, the heap. Nothing lies there; see ../memory.py.
constexpr uint64_t HOST_SERVICES = 0x7c00ull << 32;
constexpr uint32_t NO_WAVE = 0xff, NO_RECORD = 0xffffffff, SCALARS = 132, SCC_ORIGIN = 128;

struct alignas(64) Register {
  uint32_t lane[MOST_LANES];
};

enum class State : uint8_t { runs, at_barrier, ended };

struct Workgroup;
struct Worker;

struct Wave {
  const Launch* launch;
  Worker* worker;
  Workgroup* group;
  uint32_t number, lanes;  // lanes: 32 or 64, those of the hardware
  uint64_t all;            // a bit for each of them
  uint32_t sgpr[132];      // by code, VCC, M0 and EXEC included; a pair at the last code stays inside
  uint64_t sgpr_known[2];  // a bit for each: holds what somebody wrote
  bool scc = false, scc_known = true;
  uint32_t mode;
  uint32_t pc, next;       // indices of instructions
  State state = State::runs;
  uint64_t executed = 0;
  int32_t param = 0;       // of the handler that runs
  bool indexed = false;    // CDNA: M0 is added to the registers that its bits 12 to 15 name
  uint32_t signalled = 0;  // split barriers: signals of its own that it has not waited for
  uint64_t raced = 0;      // lanes of the load that runs whose bytes another wave stored, with no barrier between
  std::vector<Finding> races;  // such loads, by instruction: told of where what they gave is used
  std::vector<uint32_t> raced_loads;  // their instructions, told of or not
  Doubts doubts;           // scalar registers that depend on what they gave, bit by bit
  uint64_t unsure = 0;     // lanes that EXEC has, or lacks, because of it
  std::vector<uint32_t> entered;  // branches where it went with none but such lanes
  std::vector<Register> vgpr;       // 0 to 255, then the accumulation registers
  std::vector<uint64_t> vgpr_known; // a bit for each lane
  Waits waits;
  // Of registers that hold what nobody wrote, scalar ones first: the instruction that it comes from.
  std::vector<uint32_t> origins;
  mutable uint32_t blamed = NO_OPERAND;  // the register that this instruction read so, by code
  uint8_t *scratch, *scratch_held;   // private memory by lane, and for each of its bytes what was stored there
  uint32_t* scratch_origins;         // for each of its words the instruction that a stored value comes from
  uint32_t scratch_bytes;  // of one lane

  uint64_t exec() const { return sgpr[EXEC] | (lanes == 64 ? uint64_t{sgpr[EXEC + 1]} << 32 : 0); }
  // Lanes that take part in what an instruction does, or may.
  uint64_t may_execute() const { return exec() | unsure; }
  uint64_t pair(unsigned code) const { return sgpr[code] | uint64_t{sgpr[code + 1]} << 32; }
  // A mask of lanes: two registers, or one in waves of 32.
  uint64_t mask(unsigned code) const { return lanes == 64 ? pair(code) : sgpr[code]; }
  bool rdna() const { return launch->major >= 11; }
  bool known(unsigned code) const {
    if (code >= 128 || code == NULL_REGISTER || sgpr_known[code >> 6] >> (code & 63) & 1) return true;
    blamed = code;
    return false;
  }
  uint32_t& origin(unsigned code) {
    return origins[code < SCALARS ? code : std::min<size_t>(code - VGPR + SCALARS, origins.size() - 1)];
  }
  // Where what this instruction read, and nobody wrote, comes from: NO_RECORD where it is a register never written.
  uint32_t blamed_origin() { return blamed == NO_OPERAND ? NO_RECORD : origin(blamed); }
  uint32_t inherited_origin() {
    uint32_t from = blamed_origin();
    return from == NO_RECORD ? pc : from;
  }
  void set_known(unsigned code, bool value) {
    uint64_t bit = uint64_t{1} << (code & 63);
    sgpr_known[code >> 6] = value ? sgpr_known[code >> 6] | bit : sgpr_known[code >> 6] & ~bit;
  }
  void set(unsigned code, uint32_t value, bool is_known = true) {
    if (code == NULL_REGISTER || code >= 128) return;
    sgpr[code] = value;
    set_known(code, is_known);
    if (doubts.any()) {
      doubts.drop(code);
      if (code == EXEC) unsure &= ~0xffffffffull;
      if (code == EXEC + 1) unsure &= 0xffffffffull;
    }
    if (!is_known) origin(code) = inherited_origin();
  }
  void set_pair(unsigned code, uint64_t value, bool is_known = true) {
    set(code, static_cast<uint32_t>(value), is_known);
    if (code != NULL_REGISTER) set(code + 1, static_cast<uint32_t>(value >> 32), is_known);
  }
  void set_mask(unsigned code, uint64_t value, bool is_known = true) {
    if (lanes == 64) set_pair(code, value, is_known);
    else set(code, static_cast<uint32_t>(value), is_known);
  }
  // Registers beyond those that there are read as the last one: hostile code stays inside.
  Register& vector(unsigned code) { return vgpr[std::min<unsigned>(code - VGPR, vgpr.size() - 1)]; }
  uint64_t& vector_known(unsigned code) { return vgpr_known[std::min<unsigned>(code - VGPR, vgpr_known.size() - 1)]; }
  bool stops() const { return state == State::ended; }

  // Scalar operands, see sources.cpp.
  uint32_t scalar(const Op& op, unsigned code) const;
  uint64_t scalar64(const Op& op, unsigned code) const;
  bool scalar_known(unsigned code, bool two = false) const {
    return known(code) && (!two || code >= 127 || known(code + 1));
  }

  // MODE.
  uint32_t round32() const { return mode & 3; }
  uint32_t round16_64() const { return mode >> 2 & 3; }
  bool keeps_input32() const { return mode >> 4 & 1; }   // subnormal inputs
  bool keeps_output32() const { return mode >> 5 & 1; }
  bool keeps_input16_64() const { return mode >> 6 & 1; }
  bool keeps_output16_64() const { return mode >> 7 & 1; }
};

// Who touched a byte last, between which barriers.
struct Touch {
  uint32_t write_epoch = 0, read_epoch = 0;
  uint32_t write_record = 0, read_record = 0;
  uint8_t write_wave = NO_WAVE, read_wave = NO_WAVE;
  // Of what wrote: nothing but atomic operations, and those of several waves.
  bool several_read = false, all_atomic = false, several_atomic = false;
};

// The dwords of memory that waves of a workgroup touched since the last barrier: what is older counts as free.
class TouchedMemory {
 public:
  struct Entry {
    uint64_t dword = 0, epoch = 0;
    uint32_t write_record = 0, read_record = 0;
    // Of each byte: who wrote it last, who read it first, and whether others read it too.
    uint8_t write_wave[4] = {NO_WAVE, NO_WAVE, NO_WAVE, NO_WAVE}, read_wave[4] = {NO_WAVE, NO_WAVE, NO_WAVE, NO_WAVE};
    bool several_read[4] = {};
  };
  Entry& at(uint64_t dword, uint64_t epoch) {
    if (epoch != epoch_) epoch_ = epoch, live_ = 0;
    if (live_ * 2 >= entries_.size()) grow();
    Entry& entry = place(dword);
    if (entry.epoch != epoch) {
      entry = Entry{};
      entry.dword = dword, entry.epoch = epoch;
      ++live_;
    }
    return entry;
  }

 private:
  Entry& place(uint64_t dword) {
    size_t i = (dword * 0x9e3779b97f4a7c15ull) >> 20 & (entries_.size() - 1);
    while (entries_[i].epoch == epoch_ && entries_[i].dword != dword) i = (i + 1) & (entries_.size() - 1);
    return entries_[i];
  }
  void grow() {
    std::vector<Entry> old(entries_.empty() ? 4096 : entries_.size() * 2);
    old.swap(entries_);
    for (Entry& one : old)
      if (one.epoch == epoch_) place(one.dword) = one;
  }
  std::vector<Entry> entries_;
  uint64_t epoch_ = ~0ull, live_ = 0;
};

struct Workgroup {
  uint32_t id[3];
  uint64_t index;
  std::vector<uint8_t> lds, lds_written;
  std::vector<Touch> touched;  // by byte of LDS, where conflicts are looked for
  TouchedMemory memory_touched;
  bool checks_conflicts = false;
  std::vector<Wave> waves;
  std::vector<uint8_t> scratch, scratch_held;
  std::vector<uint32_t> scratch_origins;
  uint32_t epoch = 1;          // counts barriers
};

// What one thread of the host has: its findings and counters.
struct Worker {
  const Launch* launch;
  std::vector<Finding> findings;
  GroupTouches* groups;
  std::vector<uint64_t> executed, lanes, conflicts, moved, lds_moved;
  bool stopped = false;
  void report(Wave& wave, Kind kind, unsigned lane, uint64_t address = 0, uint32_t bytes = 0, int64_t distance = 0,
              uint32_t region = 0xffffffff, uint32_t other_wave = NO_WAVE, uint32_t other_record = NO_RECORD,
              uint32_t other_group = 0);
  void report_races(Wave& wave);  // all that the wave has noted
  // A value that nobody wrote: with the instruction that it comes from.
  void report_unwritten(Wave& wave, unsigned lane);
};

Finding finding_of(const Wave& wave, Kind kind, unsigned lane, uint64_t address, uint32_t bytes, int64_t distance,
                   uint32_t region, uint32_t other_wave, uint32_t other_record, uint32_t other_group = 0);
// Adds one, or counts it where there is one of its kind and instruction.
void note(std::vector<Finding>& findings, const Finding& one);

// An instruction that the engine has no semantics for, or not with these modifiers: the wave ends there.
inline void refuse(Wave& wave, Kind kind = Kind::unsupported) {
  wave.worker->report(wave, kind, 0);
  wave.worker->stopped = true;
  wave.state = State::ended;
}

}  // namespace emu
