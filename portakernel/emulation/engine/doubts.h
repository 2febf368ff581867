// Lane masks that depend on what a conflicting load gave. Such a bit is followed through 64 worlds at once: in the first
// it is as it was computed, in the others it is drawn. A bit that is the same in all of them does not depend on the value,
// as EXEC does not behind an if with its else, however both masks were made.
#pragma once
#include <cstdint>
#include <memory>

namespace emu {

struct Wave;
struct Op;

using Worlds = uint64_t;
inline Worlds in_all(bool bit) { return bit ? ~0ull : 0; }
inline bool differs(Worlds bit) { return bit && ~bit; }

// A scalar register.
struct MaskWord {
  uint32_t value = 0;
  bool known = false;     // in the sense of Wave::known; else the worlds say which bits are, where they are there
  bool in_doubt = false;
  Worlds bits[32];
  Worlds at(unsigned bit) const { return in_doubt ? bits[bit] : in_all(value >> bit & 1); }
  bool usable() const { return known || in_doubt; }
};

class Doubts {
 public:
  bool any() const { return count_; }
  const Worlds* of(unsigned code) const { return code < REGISTERS ? registers_[code].get() : nullptr; }
  void drop(unsigned code) {
    if (count_ && code < REGISTERS && registers_[code]) registers_[code].reset(), --count_;
  }
  void put(unsigned code, const Worlds* bits);
  void clear() {
    for (unsigned code = 0; count_; ++code) drop(code);
  }
  // A bit that may be this or the other one.
  Worlds drawn(bool bit);

 private:
  static constexpr unsigned REGISTERS = 132;
  std::unique_ptr<Worlds[]> registers_[REGISTERS];
  unsigned count_ = 0;
  uint64_t state_ = 0;
};

// What a scalar source holds; `value` and `known` are what those say who know nothing of doubts.
MaskWord mask_word(const Wave& w, unsigned code, uint32_t value, bool known);
void set_word(Wave& w, unsigned code, const MaskWord& word);
// The result of a comparison: of the lanes of `active`, which EXEC may have in some worlds alone, those that `holds`.
void set_compared(Wave& w, unsigned code, uint64_t holds, uint64_t active, uint64_t known);
// Whether what this instruction read of registers that nobody wrote comes from a conflicting load.
bool comes_from_a_race(Wave& w);
// The lanes in which a mask is the same in all worlds.
uint64_t sure_lanes(const Wave& w, unsigned code);

// A branch passes by what lanes of EXEC might have executed, from one instruction on until another: what that would have
// written is not known in them. False where it would have done more than that: stored, waited for other waves, ended.
bool pass_by(Wave& w, uint32_t from, uint32_t until);

}  // namespace emu
