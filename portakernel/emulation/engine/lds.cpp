// LDS loads and stores. src: address, data, second data; offset0 in the low byte of imm, offset1 in the next.
#include "memory.h"

namespace emu {

namespace {

// Further cycles of an access whose lanes want different dwords of one bank, in as many lanes as go at once.
void count_conflicts(Wave& w, const uint64_t* offsets, uint64_t lanes, unsigned bytes) {
  unsigned banks = w.launch->major == 9 && w.launch->minor == 5 ? 64 : 32;
  unsigned at_once = bytes >= 16 ? 8 : bytes >= 8 ? 16 : 32;
  uint64_t further = 0;
  for (unsigned begin = 0; begin < w.lanes; begin += at_once) {
    uint8_t count[64] = {};
    uint64_t seen[64][32];
    unsigned most = 1;
    for (unsigned l = begin; l < begin + at_once; ++l) {
      if (!(lanes >> l & 1)) continue;
      uint64_t dword = offsets[l] / 4;
      unsigned bank = dword % banks, i = 0;
      while (i < count[bank] && seen[bank][i] != dword) ++i;
      if (i == count[bank]) seen[bank][count[bank]++] = dword;
      most = std::max<unsigned>(most, count[bank]);
    }
    further += most - 1;
  }
  w.worker->conflicts[w.pc] += further;
}

// Sums wrap at 32 bits: compilers fold offsets into negative addresses.
uint32_t begin_of(Wave& w, const Op& op, unsigned lane) { return w.vector(op.src[0]).lane[lane]; }

void load(Wave& w, const Op& op) {
  const Width& width = LOADS[w.param];
  uint64_t exec = w.exec(), offsets[MOST_LANES];
  need_known(w, lanes_known(w, op.src[0], 1), exec);
  each_lane(exec, [&](unsigned l) { offsets[l] = begin_of(w, op, l) + static_cast<uint32_t>(op.imm); });
  each_lane(exec, [&](unsigned l) { load_into(w, op.dst, width, l, lds_at(w, offsets[l], width.bytes, false, l)); });
  mark_loaded(w, op.dst, width, exec);
  count_conflicts(w, offsets, exec, width.bytes);
}

void store(Wave& w, const Op& op) {
  const Width& width = STORES[w.param];
  uint64_t exec = w.exec(), offsets[MOST_LANES];
  need_known(w, lanes_known(w, op.src[0], 1) & data_known(w, op.src[1], width), exec);
  need_sure(w, w.may_execute());
  each_lane(exec, [&](unsigned l) {
    offsets[l] = begin_of(w, op, l) + static_cast<uint32_t>(op.imm);
    Stored value = stored(w, op.src[1], width, l);
    if (uint8_t* to = lds_at(w, offsets[l], width.bytes, true, l, value.bytes)) memcpy(to, value.bytes, width.bytes);
  });
  count_conflicts(w, offsets, exec, width.bytes);
}

// Two at once: the offsets count elements, or 64 of them.
void load2(Wave& w, const Op& op) {
  unsigned bytes = w.param & 0xff, step = bytes * (w.param & 0x100 ? 64 : 1);
  uint32_t begins[MOST_LANES];
  uint64_t exec = w.exec();
  need_known(w, lanes_known(w, op.src[0], 1), exec);
  each_lane(exec, [&](unsigned l) { begins[l] = begin_of(w, op, l); });
  for (unsigned half = 0; half < 2; ++half) {
    uint64_t offsets[MOST_LANES];
    uint32_t offset = (static_cast<uint32_t>(op.imm) >> 8 * half & 0xff) * step;
    each_lane(exec, [&](unsigned l) {
      offsets[l] = begins[l] + offset;
      const uint8_t* from = lds_at(w, offsets[l], bytes, false, l);
      for (unsigned i = 0; i < bytes / 4; ++i) {
        uint32_t value = 0;
        if (from) memcpy(&value, from + 4 * i, 4);
        w.vector(op.dst + half * bytes / 4 + i).lane[l] = value;
      }
    });
    for (unsigned i = 0; i < bytes / 4; ++i) mark_given(w, op.dst + half * bytes / 4 + i, exec);
    count_conflicts(w, offsets, exec, bytes);
  }
}

void store2(Wave& w, const Op& op) {
  unsigned bytes = w.param & 0xff, step = bytes * (w.param & 0x100 ? 64 : 1);
  uint64_t exec = w.exec();
  need_sure(w, w.may_execute());
  need_known(w, lanes_known(w, op.src[0], 1), exec);
  for (unsigned half = 0; half < 2; ++half) {
    uint64_t offsets[MOST_LANES];
    uint32_t offset = (static_cast<uint32_t>(op.imm) >> 8 * half & 0xff) * step;
    need_known(w, lanes_known(w, op.src[1 + half], bytes / 4), exec);
    each_lane(exec, [&](unsigned l) {
      offsets[l] = begin_of(w, op, l) + offset;
      uint32_t value[2] = {};
      for (unsigned i = 0; i < bytes / 4; ++i) value[i] = w.vector(op.src[1 + half] + i).lane[l];
      if (uint8_t* to = lds_at(w, offsets[l], bytes, true, l, value)) memcpy(to, value, bytes);
    });
    count_conflicts(w, offsets, exec, bytes);
  }
}

}  // namespace

void register_lds() {
  const char* const load_names[][3] = {
      {"u8", "u8", "u8"}, {"i8", "i8", "i8"}, {"u16", "u16", "u16"}, {"i16", "i16", "i16"}, {"b32", "b32", "b32"},
      {"b64", "b64", "b64"}, {"b96", "b96", "b96"}, {"b128", "b128", "b128"}, {"d16_u8", "u8_d16", "u8_d16"},
      {"d16_hi_u8", "u8_d16_hi", "u8_d16_hi"}, {"d16_i8", "i8_d16", "i8_d16"}, {"d16_hi_i8", "i8_d16_hi", "i8_d16_hi"},
      {"d16_b16", "u16_d16", "u16_d16"}, {"d16_hi_b16", "u16_d16_hi", "u16_d16_hi"},
  };
  for (int i = 0; i < LOAD_COUNT; ++i)
    for (const char* prefix : {"ds_read_", "ds_load_"}) add(std::string(prefix) + load_names[i][1], Family::lds, load, i);
  const char* const store_names[] = {"b8", "b16", "b32", "b64", "b96", "b128", "b8_d16_hi", "b16_d16_hi"};
  for (int i = 0; i < STORE_COUNT; ++i)
    for (const char* prefix : {"ds_write_", "ds_store_"}) add(std::string(prefix) + store_names[i], Family::lds, store, i);
  for (int bytes : {4, 8}) {
    std::string b = bytes == 4 ? "_b32" : "_b64";
    add("ds_read2" + b, Family::lds, load2, bytes);
    add("ds_load_2addr" + b, Family::lds, load2, bytes);
    add("ds_read2st64" + b, Family::lds, load2, bytes | 0x100);
    add("ds_load_2addr_stride64" + b, Family::lds, load2, bytes | 0x100);
    add("ds_write2" + b, Family::lds, store2, bytes);
    add("ds_store_2addr" + b, Family::lds, store2, bytes);
    add("ds_write2st64" + b, Family::lds, store2, bytes | 0x100);
    add("ds_store_2addr_stride64" + b, Family::lds, store2, bytes | 0x100);
  }
  add("ds_nop", Family::lds, [](Wave&, const Op&) {});
}

}  // namespace emu
