// Atomic operations in memory: global, flat and buffer.
#include "registry.h"

namespace emu {

void register_memory_atomic() {}

}  // namespace emu
