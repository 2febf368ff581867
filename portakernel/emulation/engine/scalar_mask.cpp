// What scalar instructions do to masks of lanes: bitwise ones, and those that save and write EXEC.
#include "registry.h"

namespace emu {

namespace {

// Of 32 lanes, or of one lane in 64 worlds.
struct And { template <class T> static T of(T a, T b) { return a & b; } };
struct Or { template <class T> static T of(T a, T b) { return a | b; } };
struct Xor { template <class T> static T of(T a, T b) { return a ^ b; } };
struct Nand { template <class T> static T of(T a, T b) { return ~(a & b); } };
struct Nor { template <class T> static T of(T a, T b) { return ~(a | b); } };
struct Xnor { template <class T> static T of(T a, T b) { return ~(a ^ b); } };
struct AndNot { template <class T> static T of(T a, T b) { return a & ~b; } };
struct OrNot { template <class T> static T of(T a, T b) { return a | ~b; } };
struct NotAnd { template <class T> static T of(T a, T b) { return ~a & b; } };
struct NotOr { template <class T> static T of(T a, T b) { return ~a | b; } };

// A word of a source of WORDS registers.
template <int WORDS>
MaskWord word_of(Wave& w, const Op& op, unsigned code, int at) {
  uint32_t value = WORDS == 1 ? w.scalar(op, code) : static_cast<uint32_t>(w.scalar64(op, code) >> 32 * at);
  unsigned part = code < 127 && code != NULL_REGISTER ? code + at : code;
  return mask_word(w, part, value, w.scalar_known(part));
}

// Bit by bit, so that each word has its own history; and where one source says all of the result whatever the other is,
// the other may be undefined: compilers mask with it.
template <class F>
bool decided(const MaskWord& a, const MaskWord& b) {
  return (a.known && b.known) || (b.known && F::of(0u, b.value) == F::of(~0u, b.value)) ||
         (a.known && F::of(a.value, 0u) == F::of(a.value, ~0u));
}

template <class F>
MaskWord combined(const MaskWord& a, const MaskWord& b) {
  MaskWord word;
  word.value = F::of(a.value, b.value);
  word.known = decided<F>(a, b);
  word.in_doubt = !word.known && a.usable() && b.usable();
  if (word.in_doubt)
    for (unsigned i = 0; i < 32; ++i) word.bits[i] = F::of(a.at(i), b.at(i));
  return word;
}

// SCC says whether any bit is set.
template <int WORDS>
void set_scc(Wave& w, const MaskWord* words) {
  bool any = false, all_known = true, one_known = false, usable = true;
  Worlds set = 0;
  for (int at = 0; at < WORDS; ++at) {
    any |= words[at].value != 0;
    all_known &= words[at].known, one_known |= words[at].known && words[at].value;
    usable &= words[at].usable();
    for (unsigned i = 0; words[at].usable() && i < 32; ++i) set |= words[at].at(i);
  }
  w.scc = any;
  w.scc_known = all_known || one_known || (usable ? !differs(set) : !~set);
  if (!w.scc_known) w.origin(SCC_ORIGIN) = w.inherited_origin();
}

template <class F, int WORDS>
void bitwise(Wave& w, const Op& op) {
  MaskWord result[WORDS];
  for (int at = 0; at < WORDS; ++at) {
    MaskWord a = word_of<WORDS>(w, op, op.src[0], at), b = word_of<WORDS>(w, op, op.src[1], at);
    // where a loop merges a lane mask that only some paths set, what lanes outside of EXEC had is kept, and used by none
    if (std::is_same_v<F, AndNot> && op.src[1] == EXEC && b.usable() && !a.in_doubt) a.known = true;
    result[at] = combined<F>(a, b);
  }
  for (int at = 0; at < WORDS; ++at)
    if (!at || op.dst != NULL_REGISTER) set_word(w, op.dst + at, result[at]);
  set_scc<WORDS>(w, result);
}

// EXEC is what F makes of the source and EXEC; `dst` gets what EXEC was, or the result too.
template <class F, int WORDS, bool SAVES>
void execute_where(Wave& w, const Op& op) {
  MaskWord before[WORDS], result[WORDS];
  for (int at = 0; at < WORDS; ++at) {
    before[at] = word_of<WORDS>(w, op, EXEC, at);
    result[at] = combined<F>(word_of<WORDS>(w, op, op.src[0], at), before[at]);
  }
  for (int at = 0; at < WORDS; ++at) {
    if (!SAVES) set_word(w, EXEC + at, result[at]);
    if (!at || op.dst != NULL_REGISTER) set_word(w, op.dst + at, SAVES ? before[at] : result[at]);
    if (SAVES) set_word(w, EXEC + at, result[at]);
  }
  set_scc<WORDS>(w, result);
}

template <class F>
void add_bitwise(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    add(std::string("s_") + name + "_b32", Family::scalar, bitwise<F, 1>);
    add(std::string("s_") + name + "_b64", Family::scalar, bitwise<F, 2>);
  }
}

template <class F, bool SAVES>
void add_exec(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    std::string begin = std::string("s_") + name + (SAVES ? "_saveexec_" : "_wrexec_");
    add(begin + "b32", Family::scalar, execute_where<F, 1, SAVES>);
    add(begin + "b64", Family::scalar, execute_where<F, 2, SAVES>);
  }
}

}  // namespace

void register_scalar_mask() {
  add_bitwise<And>({"and"}), add_bitwise<Or>({"or"}), add_bitwise<Xor>({"xor"});
  add_bitwise<Nand>({"nand"}), add_bitwise<Nor>({"nor"}), add_bitwise<Xnor>({"xnor"});
  add_bitwise<AndNot>({"andn2", "and_not1"}), add_bitwise<OrNot>({"orn2", "or_not1"});
  add_exec<And, true>({"and"}), add_exec<Or, true>({"or"}), add_exec<Xor, true>({"xor"});
  add_exec<Nand, true>({"nand"}), add_exec<Nor, true>({"nor"}), add_exec<Xnor, true>({"xnor"});
  add_exec<AndNot, true>({"andn2", "and_not1"}), add_exec<OrNot, true>({"orn2", "or_not1"});
  add_exec<NotAnd, true>({"andn1", "and_not0"}), add_exec<NotOr, true>({"orn1", "or_not0"});
  add_exec<NotAnd, false>({"andn1", "and_not0"}), add_exec<AndNot, false>({"andn2", "and_not1"});
}

}  // namespace emu
