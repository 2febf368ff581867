// Waits: what a load brings is in its registers only after a wait for the counter that counts it. Hardware gives what was
// there before to an instruction that reads them earlier.
#pragma once
#include <cstdint>
#include <vector>

namespace emu {

struct Wave;
struct Op;
struct VectorOp;

// Bits for the halves of a register. On RDNA a load of 16 bits writes one of them, and compilers wait for that one alone.
enum Half : unsigned { LOW_HALF = 1, HIGH_HALF = 2, BOTH_HALVES = 3 };

// A load on its way to a vector register. Accesses of one counter end in the order in which they were issued.
struct Coming {
  uint64_t number = 0, lanes = 0;
  uint32_t record = 0, counter = 0;
};

struct Waits {
  uint64_t issued[2] = {0, 0}, ended[2] = {0, 0};  // vector memory, LDS: accesses, and those that waits proved ended
  bool outstanding = false;                        // whether some access has not
  std::vector<Coming> coming;                      // by half of a vector register, the low one first
  uint64_t scalars[2] = {0, 0};                    // scalar registers that a load is to fill; they end in any order
  uint32_t scalar_records[128] = {};

  bool scalars_outstanding() const { return scalars[0] | scalars[1]; }
  void begin() {  // a new wave: nothing is on its way
    for (int i = 0; i < 2; ++i) ended[i] = issued[i];
    outstanding = false;
    scalars[0] = scalars[1] = 0;
  }
};

// After an access: counts it, and remembers the registers that it is to fill.
void issue(Wave& wave, const Op& op);
// Before an instruction, where loads to scalar registers are on their way: says so where it uses one of them.
void need_waited_scalars(Wave& wave, const Op& op, const VectorOp* vector);
// Says so where one of these vector registers is on its way, or the halves of it that `halves` has a bit for, in some of
// these lanes.
void need_waited(Wave& wave, unsigned code, unsigned words, unsigned halves = BOTH_HALVES, uint64_t among = ~0ull);

}  // namespace emu
