#include "doubts.h"

#include <vector>

#include "registry.h"

namespace emu {

void Doubts::put(unsigned code, const Worlds* bits) {
  if (code >= REGISTERS) return;
  if (!registers_[code]) registers_[code] = std::make_unique<Worlds[]>(32), ++count_;
  std::copy_n(bits, 32, registers_[code].get());
}

Worlds Doubts::drawn(bool bit) {
  uint64_t mixed = state_ += 0x9e3779b97f4a7c15ull;  // splitmix64
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
  mixed ^= mixed >> 31;
  return (mixed & ~3ull) | (bit ? 1 : 2);
}

MaskWord mask_word(const Wave& w, unsigned code, uint32_t value, bool known) {
  MaskWord word;
  word.value = value, word.known = known;
  const Worlds* bits = known ? nullptr : w.doubts.of(code);
  if (!bits) return word;
  word.in_doubt = true;
  std::copy_n(bits, 32, word.bits);
  return word;
}

void set_word(Wave& w, unsigned code, const MaskWord& word) {
  uint32_t doubtful = 0;
  if (word.in_doubt)
    for (unsigned i = 0; i < 32; ++i) doubtful |= static_cast<uint32_t>(differs(word.bits[i])) << i;
  w.set(code, word.value, word.known || (word.in_doubt && !doubtful));
  if (code == NULL_REGISTER || code >= 128) return;
  if (doubtful) w.doubts.put(code, word.bits);
  if (code == EXEC) w.unsure |= doubtful;
  if (code == EXEC + 1 && w.lanes == 64) w.unsure |= uint64_t{doubtful} << 32;
  if (code >= EXEC && !w.unsure) w.entered.clear();
}

void set_compared(Wave& w, unsigned code, uint64_t holds, uint64_t active, uint64_t known) {
  MaskWord words[2];
  for (unsigned l = 0; l < w.lanes; ++l) {
    const Worlds* exec = w.unsure >> l & 1 ? w.doubts.of(EXEC + l / 32) : nullptr;
    Worlds takes_part = exec ? exec[l & 31] : in_all(active >> l & 1);
    bool bit = holds >> l & 1;
    words[l / 32].bits[l & 31] = takes_part & (known >> l & 1 ? in_all(bit) : w.doubts.drawn(bit));
    words[l / 32].value |= static_cast<uint32_t>(bit && active >> l & 1) << (l & 31);
  }
  for (unsigned at = 0; at < w.lanes / 32; ++at) {
    words[at].in_doubt = true;
    if (code != NULL_REGISTER) set_word(w, code + at, words[at]);
  }
}

bool comes_from_a_race(Wave& w) {
  uint32_t record = w.blamed_origin();
  return std::find(w.raced_loads.begin(), w.raced_loads.end(), record) != w.raced_loads.end();
}

uint64_t sure_lanes(const Wave& w, unsigned code) {
  uint64_t sure = 0;
  for (unsigned at = 0; at < w.lanes / 32; ++at) {
    if (w.known(code + at)) {
      sure |= 0xffffffffull << 32 * at;
    } else if (const Worlds* bits = w.doubts.of(code + at)) {
      for (unsigned i = 0; i < 32; ++i) sure |= uint64_t{!differs(bits[i])} << (32 * at + i);
    }
  }
  return sure;
}

namespace {

void forget_scalar(Wave& w, unsigned code, unsigned words) {
  for (unsigned at = 0; at < words && code + at < EXEC; ++at) {
    MaskWord word = mask_word(w, code + at, w.sgpr[code + at], w.known(code + at));
    if (!word.usable()) continue;
    // a mask's lanes are those of its half; a single register of a wave of 64 is no mask
    uint32_t lanes = w.lanes == 64 && words == 1 ? ~0u : static_cast<uint32_t>(w.unsure >> 32 * at);
    for (unsigned i = 0; i < 32; ++i)
      word.bits[i] = lanes >> i & 1 ? w.doubts.drawn(word.value >> i & 1) : word.at(i);
    word.known = false, word.in_doubt = true;
    w.blamed = EXEC;
    set_word(w, code + at, word);
  }
}

void forget_vector(Wave& w, unsigned code, unsigned words) {
  for (unsigned at = 0; at < words; ++at) {
    w.vector_known(code + at) &= ~w.unsure;
    w.origin(code + at) = w.origin(EXEC);
  }
}

void forget(Wave& w, unsigned code, unsigned words) {
  if (code == NO_OPERAND || code == NULL_REGISTER) return;
  if (code >= VGPR) forget_vector(w, code, words);
  else forget_scalar(w, code, words);
}

bool ends_with(const std::string& name, const char* suffix) {
  size_t length = strlen(suffix);
  return name.size() >= length && !name.compare(name.size() - length, length, suffix);
}

unsigned words_of_scalar(const std::string& name) {
  return ends_with(name, "64") || ends_with(name, "b64_b32") ? 2 : 1;
}

void forget_result(Wave& w, const Op& op, const VectorOp& vector) {
  unsigned mask_words = w.lanes / 32;
  if (vector.flags & WRITES_MASK) forget(w, vector.dst == Type::mask ? op.dst : op.sdst, mask_words);
  if (vector.flags & WRITES_EXEC && !w.rdna()) forget(w, op.dst, mask_words);
  if (vector.dst != Type::mask && vector.dst != Type::none)
    forget(w, op.dst, is_wide(vector.dst) ? 2 : vector.dst == Type::raw128 ? 4 : 1);
}

bool harmless(const std::string& name) {
  for (const char* one : {"s_nop", "s_delay_alu", "s_clause", "s_setprio", "s_sleep", "s_denorm_mode", "s_round_mode"})
    if (name == one) return true;
  return false;
}

// Where it goes on from here; `effect` where it does what is no writing of registers.
void pass(Wave& w, uint32_t at, std::vector<uint32_t>& then, bool& effect) {
  const Launch& launch = *w.launch;
  const Op& op = launch.ops[at];
  const Handler& handler = handlers()[op.handler];
  const std::string& name = handler.name;
  switch (handler.family) {
    case Family::control:
      if (name == "s_endpgm") return;
      if (name.compare(0, 8, "s_branch") == 0 || name.compare(0, 9, "s_cbranch") == 0) {
        uint64_t to = op.offset + op.size + static_cast<int64_t>(op.imm) * 4;
        int32_t index = to < launch.text_size && !(to & 3) ? launch.index_at[to / 4] : -1;
        if (index < 0) effect = true;
        else then.push_back(static_cast<uint32_t>(index));
        if (name == "s_branch") return;
      } else if (!harmless(name)) {
        effect = true;
      }
      break;
    case Family::wait: effect |= name.compare(0, 9, "s_barrier") == 0; break;
    case Family::scalar:
      if (name.compare(0, 5, "s_cmp")) forget(w, op.dst, words_of_scalar(name));
      break;
    case Family::vector: case Family::lanes:
      if (handler.vector) forget_result(w, op, *handler.vector);
      else forget(w, op.dst, 1);
      if (name.find("swap") != std::string::npos) forget(w, op.src[0], 1);
      if (op.pair >= 0)
        if (const VectorOp* second = handlers()[launch.ops[op.pair].handler].vector)
          forget_result(w, launch.ops[op.pair], *second);
      break;
    case Family::scalar_memory: case Family::memory: case Family::buffer: case Family::lds:
      if (!op.result_words || op.flags & TO_LDS) effect = true;
      else forget(w, op.dst, op.result_words);
      break;
    default: effect = true;  // atomics, and matrix instructions, which no compiler puts behind a branch of lanes
  }
  then.push_back(at + 1);
}

}  // namespace

bool pass_by(Wave& w, uint32_t from, uint32_t until) {
  std::vector<bool> seen(w.launch->flow_count);
  std::vector<uint32_t> then{from};
  bool effect = false;
  while (!then.empty() && !effect) {
    uint32_t at = then.back();
    then.pop_back();
    if (at == until || at >= seen.size() || seen[at]) continue;
    seen[at] = true;
    pass(w, at, then, effect);
  }
  return !effect;
}

}  // namespace emu
