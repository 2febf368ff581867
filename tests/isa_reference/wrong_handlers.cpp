// Compiled beside the engine, with its headers and flags: makes one handler of its table wrong, as a number says.
#include "registry.h"

namespace {

using namespace emu;

int changed = 0, kind = 0;
Run run = nullptr;
const VectorOp* vector = nullptr;
VectorOp made;

// Vector handlers are functions over lanes: their sources or results are disturbed.
void wrong_vector(Alu& s) {
  if (kind == 0) std::swap(s.in[0], s.in[1]), std::swap(s.mask[0], s.mask[1]);
  vector->run(s);
  switch (kind) {
    case 1: for (auto& word : s.out.u32) word ^= 1; s.out_mask ^= 1; break;                          // the last bit
    case 2: for (auto& word : s.out.u32) word &= 0x7fffffff; s.out_mask &= ~(s.out_mask >> 1); break; // the first one
    case 3: s.active |= 1; s.out.u32[s.n - 1] = s.out.u32[0]; s.out_mask = ~s.out_mask; break;        // lanes
    case 4: s.active &= ~2ull; s.out_mask &= ~2ull; break;                                           // one is left out
  }
}

// Whether an operand may stand in the place of another as far as the decoder goes: both vector registers, or neither.
bool exchangeable(unsigned a, unsigned b) {
  return a != NO_OPERAND && b != NO_OPERAND && (a >= VGPR) == (b >= VGPR);
}

// All other handlers read an instruction and change the wave.
void wrong_run(Wave& w, const Op& op) {
  Op other = op;
  switch (kind) {
    case 0: if (exchangeable(op.src[0], op.src[1])) std::swap(other.src[0], other.src[1]); break;
    case 1: other.imm += 4; break;
    case 2: if (exchangeable(op.dst, op.dst + 1) && op.dst != EXEC + 1) other.dst += 1; break;
    case 3: if (exchangeable(op.src[0], op.src[2])) other.src[2] = other.src[0]; break;
    case 4: break;
  }
  run(w, kind == 4 ? op : other);
  if (kind == 4) {
    w.scc = !w.scc;
    if (op.dst < 128) w.sgpr[op.dst & 127] ^= 1u << 7;
    else if (op.dst != NO_OPERAND) w.vector(op.dst).lane[0] ^= 1u << 7;
  }
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int mutant_kinds() { return 5; }

// Restores the handler that was changed before, and changes this one; index 0 restores alone.
__attribute__((visibility("default"))) void mutate(void* handlers, int index, int how) {
  auto& table = *static_cast<std::vector<Handler>*>(handlers);
  if (changed) table[changed].run = run, table[changed].vector = vector;
  changed = index, kind = how;
  if (!index) return;
  run = table[index].run, vector = table[index].vector;
  if (vector) {
    made = *vector;
    made.run = wrong_vector;
    table[index].vector = &made;
  } else {
    table[index].run = wrong_run;
  }
}
}
