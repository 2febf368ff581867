#include "memory.h"

namespace emu {

namespace {

enum { VECTOR, LDS };

// At most `left` accesses of a counter have not ended.
void wait(Wave& w, int counter, uint32_t left) {
  Waits& waits = w.waits;
  if (waits.issued[counter] > left) waits.ended[counter] = std::max(waits.ended[counter], waits.issued[counter] - left);
  waits.outstanding = waits.issued[VECTOR] > waits.ended[VECTOR] || waits.issued[LDS] > waits.ended[LDS];
}
// They end in any order: that only some have not says nothing of one.
void wait_scalars(Wave& w, uint32_t left) {
  if (!left) w.waits.scalars[0] = w.waits.scalars[1] = 0;
}
// LDS and scalar loads share a counter before gfx12.
void wait_shared(Wave& w, uint32_t left) {
  wait(w, LDS, left);
  wait_scalars(w, left);
}

void waitcnt(Wave& w, const Op& op) {
  uint32_t imm = static_cast<uint32_t>(op.imm);
  bool rdna = w.launch->major >= 11;
  wait(w, VECTOR, rdna ? imm >> 10 & 63 : (imm & 15) | (imm >> 14 & 3) << 4);
  wait_shared(w, rdna ? imm >> 4 & 63 : imm >> 8 & 15);
}

uint32_t low6(const Op& op) { return static_cast<uint32_t>(op.imm) & 63; }
uint32_t second6(const Op& op) { return static_cast<uint32_t>(op.imm) >> 8 & 63; }
void nothing(Wave&, const Op&) {}

Coming& coming(Waits& waits, unsigned code, bool high) {
  return waits.coming[2 * std::min<size_t>(code - VGPR, waits.coming.size() / 2 - 1) + high];
}

unsigned loaded_halves(const Wave& w, const Op& op) {
  Family family = handlers()[op.handler].family;
  bool loads = family == Family::memory || family == Family::buffer || family == Family::lds;
  if (!w.rdna() || !loads || op.result_words != 1) return BOTH_HALVES;
  const Width& width = LOADS[w.param & 0xff];
  return width.low_half ? LOW_HALF : width.high_half ? HIGH_HALF : BOTH_HALVES;
}

bool crosses_lanes(const Op& op, Family family) {
  return family == Family::lanes || family == Family::matrix || op.permute == Permute::dpp16 || op.permute == Permute::dpp8;
}

void need_waited_scalar(Wave& w, unsigned code, unsigned words) {
  Waits& waits = w.waits;
  for (unsigned at = code; at < code + words && at < 128; ++at) {
    uint64_t bit = uint64_t{1} << (at & 63), &set = waits.scalars[at >> 6];
    if (!(set & bit)) continue;
    set &= ~bit;  // told once
    w.worker->report(w, Kind::unwaited, 0, at, 4, 0, 0xffffffff, w.number, waits.scalar_records[at]);
  }
}

unsigned words_of_source(const Wave& w, const Op& op, const VectorOp* vector, Family family, int i) {
  if (vector) {
    Type type = vector->src[i];
    if (type == Type::mask) return w.lanes / 32;
    return type == Type::b64 || type == Type::f64 || type == Type::raw64 ? 2 : 1;
  }
  if (family == Family::scalar_memory) return i ? 1 : 2;
  if (family == Family::buffer) return i == 1 ? 4 : 1;
  return family == Family::memory && i == 1 ? 2 : 1;
}

}  // namespace

void issue(Wave& w, const Op& op) {
  Waits& waits = w.waits;
  if (op.counters & SCALAR_COUNT) {
    for (unsigned at = op.dst; at < op.dst + op.result_words && at < 128; ++at) {
      if (at == NULL_REGISTER) return;
      waits.scalars[at >> 6] |= uint64_t{1} << (at & 63);
      waits.scalar_records[at] = w.pc;
    }
    return;
  }
  uint32_t counter = op.counters & LDS_COUNT ? LDS : VECTOR;
  uint64_t number = ++waits.issued[counter], lanes = w.exec();
  waits.outstanding = true;
  if (op.dst < VGPR || op.dst == NO_OPERAND) return;
  unsigned halves = loaded_halves(w, op);
  uint32_t low = NO_RECORD;  // what was to fill the low half until now
  for (unsigned i = 0; i < 2u * op.result_words; ++i) {
    if (!(halves >> (i & 1) & 1)) continue;
    Coming& to = coming(waits, op.dst + i / 2, i & 1);
    bool before = to.number > waits.ended[to.counter];
    bool told = i & 1 && halves & LOW_HALF && to.record == low;
    low = to.record;
    if (before && to.counter != counter && to.lanes & lanes && !told)  // which of the two is there last is open
      w.worker->report(w, Kind::unwaited, __builtin_ctzll(to.lanes & lanes), op.dst + i / 2, 4, 0, 0xffffffff, w.number,
                       to.record);
    to = {number, before && to.counter == counter ? to.lanes | lanes : lanes, w.pc, counter};
  }
}

void need_waited(Wave& w, unsigned code, unsigned words, unsigned halves, uint64_t among) {
  Waits& waits = w.waits;
  for (unsigned i = 0; i < 2 * words; ++i) {
    if (w.rdna() && !(halves >> (i & 1) & 1)) continue;
    Coming& one = coming(waits, code + i / 2, i & 1);
    if (one.number <= waits.ended[one.counter]) continue;
    const Op& op = w.launch->ops[w.pc];
    uint64_t lanes = one.lanes & among & (crosses_lanes(op, handlers()[op.handler].family) ? w.all : w.exec());
    if (!lanes) continue;
    one.number = 0;  // told once
    if (Coming& other = coming(waits, code + i / 2, ~i & 1); other.record == one.record) other.number = 0;
    w.worker->report(w, Kind::unwaited, __builtin_ctzll(lanes), code + i / 2, 4, 0, 0xffffffff, w.number, one.record);
  }
}

void need_waited_scalars(Wave& w, const Op& op, const VectorOp* vector) {
  Family family = handlers()[op.handler].family;
  bool writes = family != Family::control && family != Family::wait;  // the field says nothing in those
  int sources = writes ? vector ? 3 : 4 : 1;
  for (int i = 0; i < sources; ++i)
    if (op.src[i] < 128 && op.src[i] != NULL_REGISTER && (!vector || vector->src[i] != Type::none))
      need_waited_scalar(w, op.src[i], words_of_source(w, op, vector, family, i));
  if (writes && op.dst < 128 && op.dst != NULL_REGISTER) need_waited_scalar(w, op.dst, 1);
}

void register_waits() {
  add("s_waitcnt", Family::wait, waitcnt);
  add("s_waitcnt_vmcnt", Family::wait, [](Wave& w, const Op& op) { wait(w, VECTOR, low6(op)); });
  add("s_waitcnt_lgkmcnt", Family::wait, [](Wave& w, const Op& op) { wait_shared(w, low6(op)); });
  add("s_wait_loadcnt", Family::wait, [](Wave& w, const Op& op) { wait(w, VECTOR, low6(op)); });
  add("s_wait_dscnt", Family::wait, [](Wave& w, const Op& op) { wait(w, LDS, low6(op)); });
  add("s_wait_kmcnt", Family::wait, [](Wave& w, const Op& op) { wait_scalars(w, low6(op)); });
  add("s_wait_loadcnt_dscnt", Family::wait, [](Wave& w, const Op& op) { wait(w, VECTOR, second6(op)), wait(w, LDS, low6(op)); });
  add("s_wait_storecnt_dscnt", Family::wait, [](Wave& w, const Op& op) { wait(w, LDS, low6(op)); });
  add("s_wait_idle", Family::wait, [](Wave& w, const Op&) { wait(w, VECTOR, 0), wait_shared(w, 0); });
  // what they wait for fills no register of the instructions that the engine has
  for (const char* name : {
           "s_waitcnt_depctr", "s_waitcnt_vscnt", "s_waitcnt_expcnt", "s_wait_event", "s_wait_alu", "s_wait_storecnt",
           "s_wait_samplecnt", "s_wait_bvhcnt", "s_wait_expcnt",
       })
    add(name, Family::wait, nothing);
}

}  // namespace emu
