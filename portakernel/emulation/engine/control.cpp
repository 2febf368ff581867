// Control: branches, calls, barriers, messages, MODE, indexed registers, hints. Waits for counters are in waits.cpp.
#include "registry.h"

namespace emu {

namespace {

void jump(Wave& w, uint64_t address) {
  const Launch& launch = *w.launch;
  uint64_t offset = address - launch.text_base;
  int32_t index = offset < launch.text_size && !(offset & 3) ? launch.index_at[offset / 4] : -1;
  if (index < 0) {
    w.worker->report(w, Kind::bad_jump, 0, address);
    w.worker->stopped = true;
    w.state = State::ended;
    return;
  }
  w.next = static_cast<uint32_t>(index);
}

uint64_t after(const Wave& w, const Op& op) { return w.launch->text_base + op.offset + op.size; }

void branch(Wave& w, const Op& op, bool taken, bool known) {
  if (!known) w.worker->report_unwritten(w, 0);
  if (taken) jump(w, after(w, op) + static_cast<int64_t>(op.imm) * 4);
}

// Taken where EXEC has no lane, or where it has one. By such branches a wave passes by what none of its lanes executes.
// Where some might have, it goes there without a lane, which does nothing, but says what they would have written.
void branch_on_exec(Wave& w, const Op& op, bool if_none) {
  bool none = w.exec() == 0, taken = none == if_none;
  if (!w.unsure || !none) return branch(w, op, taken, w.unsure || w.known(EXEC));
  uint32_t next = w.next;
  branch(w, op, true, true);
  uint32_t target = w.next, there = if_none ? next : target, past = if_none ? target : next;
  if (w.stops()) return;
  bool again = std::find(w.entered.begin(), w.entered.end(), w.pc) != w.entered.end();
  w.next = there;
  if (there > w.pc && !again) return w.entered.push_back(w.pc);
  w.next = past;  // once more round a loop
  w.blamed = EXEC;
  if (!pass_by(w, there, past)) w.worker->report_unwritten(w, __builtin_ctzll(w.unsure));
}

bool scc_known(Wave& w) {
  if (!w.scc_known) w.blamed = SCC_ORIGIN;
  return w.scc_known;
}

void nothing(Wave&, const Op&) {}

void end(Wave& w, const Op&) { w.state = State::ended; }

// HWREG: id in bits 0 to 5, offset in 6 to 10, size less one in 11 to 15.
struct Field { unsigned id, offset, size; };
Field field_of(int32_t imm) {
  return {static_cast<unsigned>(imm) & 63, static_cast<unsigned>(imm) >> 6 & 31, (static_cast<unsigned>(imm) >> 11 & 31) + 1};
}
uint32_t field_mask(const Field& f) { return (f.size == 32 ? ~0u : (1u << f.size) - 1) << f.offset; }

void get_register(Wave& w, const Op& op) {
  Field f = field_of(op.imm);
  uint32_t value;
  switch (f.id) {
    case 1: value = w.mode; break;                        // MODE
    case 2: value = w.scc | (w.exec() == 0) << 9 | (w.mask(VCC) == 0) << 10; break;  // STATUS
    case 4: case 20: case 23: case 24: case 29: value = 0; break;  // HW_ID, XCC_ID, shader cycles: no such hardware
    default: refuse(w); return;
  }
  w.set(op.dst, (value & field_mask(f)) >> f.offset);
}

void set_mode(Wave& w, const Op& op, uint32_t value) {
  Field f = field_of(op.imm);
  if (f.id == 1) w.mode = (w.mode & ~field_mask(f)) | (value << f.offset & field_mask(f));
  else if (w.launch->major < 12 || f.id != 26) refuse(w);  // 26: SCHED_MODE decides about waits alone
}

void message(Wave& w, const Op& op) {
  // 3: deallocate VGPRs; 1 would be an interrupt, which host calls and asserts use
  unsigned id = static_cast<unsigned>(op.imm) & 0xff;
  if (id != 3 && id != 9 && id != 10) refuse(w);
}

// What M0 holds of indexed registers: the index in bits 0 to 7, which operands it counts for in 12 to 15.
void index_on(Wave& w, const Op& op) {
  unsigned operands = op.src[1] <= 255 ? op.src[1] & 15 : 0;  // the field is the number, not an operand
  w.set(M0, (w.sgpr[M0] & 0xffff0f00) | (w.scalar(op, op.src[0]) & 0xff) | operands << 12);
  w.indexed = true;
}

// A wave that may have no lane there, because of what a load gave, may not come there.
void need_a_lane(Wave& w) {
  if (!w.unsure || w.exec() & ~w.unsure) return;
  w.blamed = EXEC;
  w.worker->report_unwritten(w, __builtin_ctzll(w.unsure));
}

void barrier(Wave& w, const Op&) {
  need_a_lane(w);
  w.state = State::at_barrier;
}

void signal(Wave& w, const Op& op) {
  if (op.src[0] < 128 || static_cast<int32_t>(w.scalar(op, op.src[0])) != -1) return refuse(w);
  need_a_lane(w);
  w.signalled += 1;
}

// The workgroup's barrier, which this wave has to have signalled.
void wait_for_signal(Wave& w, const Op&) {
  if (!w.signalled) return refuse(w, Kind::deadlock);
  w.signalled -= 1;
  w.state = State::at_barrier;
}

}  // namespace

void register_control() {
  for (const char* name : {
           "s_nop", "s_sleep", "s_setprio", "s_clause", "s_delay_alu", "s_set_inst_prefetch_distance", "s_icache_inv",
           "s_inst_prefetch", "s_ttracedata", "s_ttracedata_imm", "s_incperflevel", "s_decperflevel", "s_wakeup",
           "s_prefetch_inst", "s_prefetch_inst_pc_rel", "s_prefetch_data", "s_prefetch_data_pc_rel",
           "s_buffer_prefetch_data", "s_setkill", "s_sleep_var", "s_version",
       })
    add(name, Family::control, nothing);
  for (const char* name : {
           "buffer_gl0_inv", "buffer_gl1_inv", "buffer_inv", "buffer_wbl2", "buffer_wbinvl1",
           "buffer_wbinvl1_vol", "buffer_invl2", "global_inv", "global_wb", "global_wbinv", "s_dcache_inv",
           "s_dcache_wb", "s_dcache_inv_vol", "s_dcache_wb_vol", "s_gl1_inv",
       })
    add(name, Family::wait, nothing);
  add("s_endpgm", Family::control, end);
  add("s_endpgm_saved", Family::control, end);
  add("s_branch", Family::control, [](Wave& w, const Op& op) { branch(w, op, true, true); });
  add("s_cbranch_scc0", Family::control, [](Wave& w, const Op& op) { branch(w, op, !w.scc, scc_known(w)); });
  add("s_cbranch_scc1", Family::control, [](Wave& w, const Op& op) { branch(w, op, w.scc, scc_known(w)); });
  add("s_cbranch_vccz", Family::control, [](Wave& w, const Op& op) { branch(w, op, w.mask(VCC) == 0, w.scalar_known(VCC, w.lanes == 64)); });
  add("s_cbranch_vccnz", Family::control, [](Wave& w, const Op& op) { branch(w, op, w.mask(VCC) != 0, w.scalar_known(VCC, w.lanes == 64)); });
  add("s_cbranch_execz", Family::control, [](Wave& w, const Op& op) { branch_on_exec(w, op, true); });
  add("s_cbranch_execnz", Family::control, [](Wave& w, const Op& op) { branch_on_exec(w, op, false); });
  add("s_getpc_b64", Family::control, [](Wave& w, const Op& op) { w.set_pair(op.dst, after(w, op)); });
  add("s_setpc_b64", Family::control, [](Wave& w, const Op& op) { jump(w, w.scalar64(op, op.src[0])); });
  add("s_swappc_b64", Family::control, [](Wave& w, const Op& op) {
    uint64_t target = w.scalar64(op, op.src[0]);
    w.set_pair(op.dst, after(w, op));
    jump(w, target);
  });
  add("s_call_b64", Family::control, [](Wave& w, const Op& op) {
    w.set_pair(op.dst, after(w, op));
    branch(w, op, true, true);
  });
  add("s_sendmsg", Family::control, message);
  // asserts and __builtin_trap: the wave ends there
  add("s_trap", Family::control, [](Wave& w, const Op&) { refuse(w); });
  add("s_sendmsg_rtn_b64", Family::control, [](Wave& w, const Op& op) {
    if (op.src[0] != 0x83) return refuse(w);  // the clock; others ask the driver
    w.set_pair(op.dst, w.executed);
  });
  add("s_barrier", Family::wait, barrier);
  add("s_barrier_signal", Family::wait, signal);
  add("s_barrier_wait", Family::wait, wait_for_signal);
  add("s_set_gpr_idx_on", Family::control, index_on);
  add("s_set_gpr_idx_off", Family::control, [](Wave& w, const Op&) { w.indexed = false; });
  add("s_set_gpr_idx_idx", Family::control, [](Wave& w, const Op& op) { w.set(M0, (w.sgpr[M0] & ~0xffu) | (w.scalar(op, op.src[0]) & 0xff)); });
  add("s_set_gpr_idx_mode", Family::control, [](Wave& w, const Op& op) { w.set(M0, (w.sgpr[M0] & ~0xf000u) | (static_cast<uint32_t>(op.imm) & 15) << 12); });
  add("s_getreg_b32", Family::control, get_register);
  add("s_setreg_b32", Family::control, [](Wave& w, const Op& op) { set_mode(w, op, w.scalar(op, op.dst)); });
  add("s_setreg_imm32_b32", Family::control, [](Wave& w, const Op& op) { set_mode(w, op, op.literal); });
  add("s_round_mode", Family::control, [](Wave& w, const Op& op) { w.mode = (w.mode & ~15u) | (op.imm & 15); });
  add("s_denorm_mode", Family::control, [](Wave& w, const Op& op) { w.mode = (w.mode & ~0xf0u) | (op.imm & 15) << 4; });
  for (const char* name : {"s_memtime", "s_memrealtime"})
    add(name, Family::control, [](Wave& w, const Op& op) { w.set_pair(op.dst, w.executed); });
}

}  // namespace emu
