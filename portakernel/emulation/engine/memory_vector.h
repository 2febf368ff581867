// Addresses of global, flat and scratch instructions; atomics use them too. src: address, scalar address, data.
#pragma once
#include "memory.h"

namespace emu {

enum Space { global_space, flat_space, scratch_space };

uint64_t address_of(Wave& wave, const Op& op, unsigned lane, Space space);
void check_address(Wave& wave, const Op& op, Space space);

}  // namespace emu
