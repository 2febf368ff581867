// What a wave reports, and how findings of one kind and instruction are counted.
#include "wave.h"

namespace emu {

void Worker::report(Wave& wave, Kind kind, unsigned lane, uint64_t address, uint32_t bytes, int64_t distance,
                    uint32_t region, uint32_t other_wave, uint32_t other_record, uint32_t other_group) {
  if (kind == Kind::uninitialised_register && !wave.races.empty()) {
    other_wave = wave.races.back().other_wave, other_record = wave.races.back().record;
    report_races(wave);
  }
  note(findings, finding_of(wave, kind, lane, address, bytes, distance, region, other_wave, other_record, other_group));
}

void Worker::report_races(Wave& wave) {
  for (const Finding& one : wave.races) note(findings, one);
  wave.races.clear();
}

Finding finding_of(const Wave& wave, Kind kind, unsigned lane, uint64_t address, uint32_t bytes, int64_t distance,
                   uint32_t region, uint32_t other_wave, uint32_t other_record, uint32_t other_group) {
  const Workgroup& group = *wave.group;
  const uint32_t* grid = wave.launch->grid;
  return {static_cast<uint32_t>(kind), wave.pc, wave.number, lane, {group.id[0], group.id[1], group.id[2]},
          bytes, address, distance, region, other_wave, other_record, 1,
          {other_group % grid[0], other_group / grid[0] % grid[1], other_group / grid[0] / grid[1]}, 0};
}

void note(std::vector<Finding>& findings, const Finding& one) {
  for (Finding& known : findings)
    if (known.kind == one.kind && known.record == one.record) {
      known.count += one.count;
      return;
    }
  findings.push_back(one);
}

void Worker::report_unwritten(Wave& wave, unsigned lane) {
  report(wave, Kind::uninitialised_register, lane, 0, 0, 0, 0xffffffff, NO_WAVE, wave.blamed_origin());
}

}  // namespace emu
