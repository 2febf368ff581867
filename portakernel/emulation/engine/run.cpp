// A launch: workgroups side by side on the host's threads, the waves of each in turns between barriers.
#include <atomic>
#include <mutex>
#include <thread>

#include "registry.h"

namespace emu {

namespace {

void begin_wave(Wave& w, const Launch& launch, uint32_t number) {
  w.number = number;
  w.lanes = launch.wave_size;
  w.all = w.lanes == 64 ? ~0ull : 0xffffffffull;
  w.mode = launch.mode;
  w.pc = w.next = launch.entry;
  w.state = State::runs;
  w.executed = 0;
  w.signalled = 0;
  w.raced = 0;
  w.races.clear();
  w.raced_loads.clear();
  w.doubts.clear();
  w.unsure = 0;
  w.entered.clear();
  w.indexed = false;
  w.scc = false;
  memset(w.sgpr, 0, sizeof w.sgpr);
  w.sgpr_known[0] = w.sgpr_known[1] = 0;
  w.vgpr_known.assign(w.vgpr_known.size(), 0);
  std::fill(w.origins.begin(), w.origins.end(), NO_RECORD);
  w.waits.begin();
  const Workgroup& group = *w.group;
  uint32_t at = 0;
  for (; at < launch.user_sgpr_count && at < 32; ++at) w.set(at, launch.user_sgprs[at]);
  bool in_ttmp = launch.major >= 12;  // workgroup ids arrive in ttmp9 and ttmp7
  for (int d = 0; d < 3; ++d)
    if (launch.workgroup_id[d] && !in_ttmp) w.set(at++, group.id[d]);
  if (launch.workgroup_info) w.set(at++, 0);
  if (launch.private_bytes && launch.major < 11 && !in_ttmp) w.set(at++, 0);  // offset of this wave's private memory
  w.sgpr_known[1] |= 0xffffull << (TTMP - 64);  // ttmp registers
  if (in_ttmp) {
    w.set(TTMP + 9, group.id[0]);
    w.set(TTMP + 7, (group.id[1] & 0xffff) | group.id[2] << 16);
    w.set(TTMP + 8, number << 25);
  }
  w.set(M0, 0, false);
  uint32_t items = launch.block[0] * launch.block[1] * launch.block[2], first = number * w.lanes;
  uint64_t active = 0;
  bool packed = launch.major >= 11 || (launch.major == 9 && launch.minor >= 4) || (launch.major == 9 && launch.stepping == 0xa);
  for (uint32_t l = 0; l < w.lanes && first + l < items; ++l) {
    uint32_t item = first + l, x = item % launch.block[0], y = item / launch.block[0] % launch.block[1],
             z = item / launch.block[0] / launch.block[1];
    active |= 1ull << l;
    if (packed) {
      w.vgpr[0].lane[l] = x | (launch.workitem_dimensions >= 1 ? y << 10 : 0) | (launch.workitem_dimensions >= 2 ? z << 20 : 0);
    } else {
      w.vgpr[0].lane[l] = x;
      w.vgpr[1].lane[l] = y;
      w.vgpr[2].lane[l] = z;
    }
  }
  w.vgpr_known[0] = w.all;
  if (!packed)
    for (uint32_t d = 1; d <= launch.workitem_dimensions; ++d) w.vgpr_known[d] = w.all;
  w.set_pair(EXEC, active);
}

// CDNA's indexed registers: M0's index is added to the vector registers of the operands that M0 names.
void execute_indexed(Wave& w, const Op& op, const VectorOp& vector) {
  Op moved = op;
  uint32_t index = w.sgpr[M0] & 0xff, operands = w.sgpr[M0] >> 12;
  auto move = [&](uint16_t& code) {
    if (code >= VGPR && code < AGPR) code = static_cast<uint16_t>(std::min<uint32_t>(code + index, AGPR - 1));
  };
  for (int i = 0; i < 3; ++i)
    if (operands >> i & 1) move(moved.src[i]);
  if (operands & 8) move(moved.dst);
  execute_vector(w, moved, vector);
}

// A wave that waits for what another one writes lets that one run in between.
constexpr uint64_t TURN = 1 << 20;

// Until it ends, stands at a barrier, or has had its turn.
void run_wave(Wave& w, const Handler* handlers) {
  const Launch& launch = *w.launch;
  Worker& worker = *w.worker;
  for (uint64_t turn = TURN; w.state == State::runs && turn; --turn) {
    if (w.next >= launch.flow_count || ++w.executed > launch.budget) {
      worker.report(w, w.next >= launch.flow_count ? Kind::bad_jump : Kind::budget, 0);
      worker.stopped = true;
      w.state = State::ended;
      return;
    }
    w.pc = w.next++;
    const Op& op = launch.ops[w.pc];
    const Handler& handler = handlers[op.handler];
    w.blamed = NO_OPERAND;
    if (w.waits.scalars_outstanding()) need_waited_scalars(w, op, handler.vector);
    ++worker.executed[w.pc];
    worker.lanes[w.pc] += __builtin_popcountll(w.exec());
    if (handler.vector) {
      if (w.indexed) {
        execute_indexed(w, op, *handler.vector);
      } else if (op.pair < 0) {
        execute_vector(w, op, *handler.vector);
      } else {
        const Op& second = launch.ops[op.pair];
        const VectorOp* other = handlers[second.handler].vector;
        if (!other) {
          refuse(w, Kind::unknown);
          return;
        }
        execute_dual(w, op, *handler.vector, second, *other);
      }
    } else {
      w.param = handler.param;
      handler.run(w, op);
      if (op.counters) issue(w, op);
    }
  }
}

void run_group(Workgroup& group, Worker& worker, const Handler* handlers) {
  const Launch& launch = *worker.launch;
  std::fill(group.lds.begin(), group.lds.end(), 0xcd);
  std::fill(group.lds_written.begin(), group.lds_written.end(), 0);
  std::fill(group.scratch_held.begin(), group.scratch_held.end(), 0);
  group.epoch += 1;
  for (uint32_t i = 0; i < group.waves.size(); ++i) begin_wave(group.waves[i], launch, i);
  if (launch.registers && group.index == 0) {
    Wave& w = group.waves[0];
    for (size_t i = 0; i < w.vgpr.size(); ++i) memcpy(w.vgpr[i].lane, launch.registers + 64 * i, 256);
    memcpy(w.sgpr, launch.registers + 64 * w.vgpr.size(), 128 * sizeof(uint32_t));
    w.vgpr_known.assign(w.vgpr_known.size(), w.all);
    w.sgpr_known[0] = w.sgpr_known[1] = ~0ull;
  }
  for (bool going = true; going && !worker.stopped;) {
    for (Wave& w : group.waves) {
      if (w.state == State::runs) run_wave(w, handlers);
      if (worker.stopped) break;
    }
    auto in = [&](State state) {
      return std::any_of(group.waves.begin(), group.waves.end(), [=](const Wave& w) { return w.state == state; });
    };
    if (in(State::runs)) continue;
    going = in(State::at_barrier);
    for (Wave& w : group.waves)
      if (w.state == State::at_barrier) w.state = State::runs;
    ++group.epoch;
  }
  if (launch.registers && group.index == 0) {
    Wave& w = group.waves[0];
    for (size_t i = 0; i < w.vgpr.size(); ++i) memcpy(launch.registers + 64 * i, w.vgpr[i].lane, 256);
    memcpy(launch.registers + 64 * w.vgpr.size(), w.sgpr, 128 * sizeof(uint32_t));
    launch.registers[64 * w.vgpr.size() + 128] = w.scc;
  }
}

// Makes the state of one host thread and runs the workgroups that it draws.
void work(Worker& worker, std::atomic<uint64_t>& next, uint64_t count, std::atomic<bool>& stopped) {
  const Launch& launch = *worker.launch;
  const Handler* table = handlers().data();
  uint32_t items = launch.block[0] * launch.block[1] * launch.block[2];
  uint32_t wave_count = (items + launch.wave_size - 1) / launch.wave_size;
  worker.executed.assign(launch.op_count, 0);
  worker.lanes.assign(launch.op_count, 0);
  worker.conflicts.assign(launch.op_count, 0);
  worker.moved.assign(launch.op_count, 0);
  worker.lds_moved.assign(launch.op_count, 0);
  Workgroup group;
  group.lds.resize(launch.lds_bytes);
  group.lds_written.resize(launch.lds_bytes);
  group.checks_conflicts = launch.check_conflicts && wave_count > 1;
  if (group.checks_conflicts) group.touched.resize(launch.lds_bytes);
  group.scratch.resize(static_cast<size_t>(launch.private_bytes) * launch.wave_size * wave_count);
  group.scratch_held.resize(group.scratch.size());
  group.scratch_origins.resize(group.scratch.size() / 4 + wave_count);
  group.waves.resize(wave_count);
  for (uint32_t i = 0; i < wave_count; ++i) {
    Wave& w = group.waves[i];
    w.launch = &launch;
    w.worker = &worker;
    w.group = &group;
    w.vgpr.resize(launch.major == 9 ? 512 : 256);
    w.vgpr_known.resize(w.vgpr.size());
    w.waits.coming.resize(2 * w.vgpr.size());
    w.origins.resize(SCALARS + w.vgpr.size());
    w.scratch_bytes = launch.private_bytes;
    size_t begin = static_cast<size_t>(i) * launch.private_bytes * launch.wave_size;
    w.scratch = group.scratch.data() + begin, w.scratch_held = group.scratch_held.data() + begin;
    w.scratch_origins = group.scratch_origins.data() + begin / 4;
  }
  for (uint64_t at; !stopped && (at = next++) < count;) {
    group.index = at;
    group.id[0] = static_cast<uint32_t>(at % launch.grid[0]);
    group.id[1] = static_cast<uint32_t>(at / launch.grid[0] % launch.grid[1]);
    group.id[2] = static_cast<uint32_t>(at / launch.grid[0] / launch.grid[1]);
    run_group(group, worker, table);
    if (worker.stopped) stopped = true;
  }
}

bool before(const Finding& a, const Finding& b) {
  for (int d = 2; d >= 0; --d)
    if (a.workgroup[d] != b.workgroup[d]) return a.workgroup[d] < b.workgroup[d];
  return a.record < b.record;
}

void gather(Launch& launch, const std::vector<Worker>& workers) {
  std::vector<Finding> all;
  for (const Worker& worker : workers) {
    for (uint32_t i = 0; i < launch.op_count; ++i) {
      launch.executed[i] += worker.executed[i];
      launch.lanes[i] += worker.lanes[i];
      launch.conflicts[i] += worker.conflicts[i];
      launch.moved[i] += worker.moved[i];
      launch.lds_moved[i] += worker.lds_moved[i];
    }
    launch.stopped |= worker.stopped;
    for (const Finding& one : worker.findings) {
      auto same = [&](const Finding& f) { return f.kind == one.kind && f.record == one.record; };
      auto at = std::find_if(all.begin(), all.end(), same);
      if (at == all.end()) {
        all.push_back(one);
        continue;
      }
      uint32_t count = at->count + one.count;
      if (before(one, *at)) *at = one;
      at->count = count;
    }
  }
  std::stable_sort(all.begin(), all.end(), before);
  launch.finding_count = static_cast<uint32_t>(std::min<size_t>(all.size(), launch.finding_capacity));
  std::copy_n(all.begin(), launch.finding_count, launch.findings);
}

}  // namespace
}  // namespace emu

extern "C" {

// 0; 1 where memory for the state is lacking.
__attribute__((visibility("default"))) int emulate(emu::Launch* launch) {
  try {
    uint64_t count = uint64_t{launch->grid[0]} * launch->grid[1] * launch->grid[2];
    uint64_t threads = std::max<uint64_t>(1, std::min<uint64_t>(launch->threads, count));
    emu::GroupTouches groups(*launch);
    std::vector<emu::Worker> workers(threads);
    for (emu::Worker& worker : workers) worker.launch = launch, worker.groups = &groups;
    std::atomic<uint64_t> next{0};
    std::atomic<bool> stopped{false}, failed{false};
    auto one = [&](emu::Worker& worker) {
      try {
        emu::work(worker, next, count, stopped);
      } catch (const std::bad_alloc&) {
        failed = true;
        stopped = true;
        worker.executed.resize(launch->op_count);
        worker.lanes.resize(launch->op_count);
        worker.conflicts.resize(launch->op_count);
        worker.moved.resize(launch->op_count);
        worker.lds_moved.resize(launch->op_count);
      }
    };
    std::vector<std::thread> others;
    for (uint64_t i = 1; i < threads; ++i) others.emplace_back(one, std::ref(workers[i]));
    one(workers[0]);
    for (std::thread& other : others) other.join();
    if (failed) return 1;
    emu::gather(*launch, workers);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

// The index of a handler by its name, 0 where nobody has one.
__attribute__((visibility("default"))) int handler(const char* name) { return emu::find(name); }
__attribute__((visibility("default"))) int handler_count() { return static_cast<int>(emu::handlers().size()); }
__attribute__((visibility("default"))) const char* handler_name(int index) { return emu::handlers()[index].name.c_str(); }
__attribute__((visibility("default"))) int handler_family(int index) {
  return static_cast<int>(emu::handlers()[index].family);
}
// The table itself, of `emu::Handler`: tests put wrong ones into it.
__attribute__((visibility("default"))) const void* handler_table() { return &emu::handlers(); }
}
