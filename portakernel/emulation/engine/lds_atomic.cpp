// Atomic operations in LDS: ds_add_u32, ds_cmpst_rtn_b64 and their like. src: address, data, second data.
#include "atomic.h"

namespace emu {

namespace {

uint64_t data_of(Wave& w, unsigned code, unsigned lane, unsigned bytes) {
  uint64_t value = w.vector(code).lane[lane];
  return bytes == 8 ? value | uint64_t{w.vector(code + 1).lane[lane]} << 32 : value;
}

// In ds_cmpst the first data is compared with and the second stored; in ds_cmpstore it is the other way round.
void atomic(Wave& w, const Op& op) {
  const AtomicOp& what = ATOMICS[w.param & 0xff];
  bool compare_first = w.param & 0x100, returns = op.flags & RETURNS;
  unsigned registers = what.bytes / 4;
  uint64_t exec = w.exec();
  uint64_t known = lanes_known(w, op.src[0], 1) & lanes_known(w, op.src[1], registers);
  if (is_compare(what)) known &= lanes_known(w, op.src[2], registers);
  need_known(w, known, exec);
  need_sure(w, w.may_execute());
  each_lane(exec, [&](unsigned l) {
    uint64_t data = data_of(w, op.src[1], l, what.bytes), compare = 0;
    if (is_compare(what)) {
      compare = data_of(w, op.src[2], l, what.bytes);
      if (compare_first) std::swap(data, compare);
    }
    uint64_t offset = w.vector(op.src[0]).lane[l] + static_cast<uint32_t>(op.imm);
    need_atomic_alignment(w, static_cast<uint32_t>(offset), what.bytes, l);
    // what nobody wrote is read by it: the place is asked for as a load first
    if (!lds_at(w, static_cast<uint32_t>(offset), what.bytes, false, l, nullptr, true)) return;
    uint8_t* to = lds_at(w, static_cast<uint32_t>(offset), what.bytes, true, l, nullptr, true);
    uint64_t old = perform(what, to, data, compare);
    if (!returns) return;
    w.vector(op.dst).lane[l] = static_cast<uint32_t>(old);
    if (what.bytes == 8) w.vector(op.dst + 1).lane[l] = static_cast<uint32_t>(old >> 32);
  });
  if (returns)
    for (unsigned i = 0; i < registers; ++i) mark_given(w, op.dst + i, exec);
}

void both(const std::string& before, const std::string& after, int param) {
  add("ds_" + before + "_" + after, Family::atomic, atomic, param);
  add("ds_" + before + "_rtn_" + after, Family::atomic, atomic, param);
}

}  // namespace

void register_lds_atomic() {
  for (int i = 0; i < ATOMIC_COUNT; ++i) {
    std::string name = ATOMICS[i].name, width = ATOMICS[i].bytes == 4 ? "b32" : "b64";
    size_t split = name.rfind('_');
    std::string operation = name.substr(0, split), type = name.substr(split + 1);
    if (operation == "cmpswap") {
      both("cmpst", width, i | 0x100);
      both("cmpstore", width, i);
    } else if (operation == "swap") {
      add("ds_wrxchg_rtn_" + width, Family::atomic, atomic, i);
      add("ds_storexchg_rtn_" + width, Family::atomic, atomic, i);
    } else {
      both(operation, type, i);
    }
  }
}

}  // namespace emu
