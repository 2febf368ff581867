// A buffer's address of a lane, from its descriptor; atomics use it too.
#pragma once
#include "memory.h"

namespace emu {

struct Buffer {
  uint64_t base;
  uint32_t stride, records;
  bool private_memory;  // the descriptor that the runtime sets up for scratch on gfx90a
  bool by_lane;         // addresses are swizzled, or have the lane's number added: nothing but private memory asks for it
};

struct Place {
  uint64_t address;
  bool in_range;
};

Buffer buffer_of(Wave& wave, const Op& op);
// src: vaddr, descriptor, scalar offset, data.
Place buffer_place(Wave& wave, const Op& op, const Buffer& buffer, unsigned lane, uint32_t bytes);
void check_buffer_address(Wave& wave, const Op& op);

}  // namespace emu
