// What atomic instructions do to a place, by the operation's name; LDS and memory share it.
#pragma once
#include <string>

#include "memory.h"

namespace emu {

// Computes the new value from the old one and the data; `compare` is that of compare-and-swap.
using Update = uint64_t (*)(uint64_t old, uint64_t data, uint64_t compare);

struct AtomicOp {
  const char* name;   // "add_u32": as RDNA names it
  const char* cdna;   // as CDNA's memory instructions name it: "add", "add_x2"
  uint8_t bytes;
  Update update;
};
extern const AtomicOp ATOMICS[];
extern const int ATOMIC_COUNT;

// Performs it at `to` in one step, against other threads of the host too, and gives the old value.
uint64_t perform(const AtomicOp& op, uint8_t* to, uint64_t data, uint64_t compare);

inline bool is_compare(const AtomicOp& op) { return std::string(op.name).rfind("cmpswap", 0) == 0; }

}  // namespace emu
