// Atomic operations in LDS: ds_add_u32, ds_cmpst_rtn_b64 and their like.
#include "registry.h"

namespace emu {

void register_lds_atomic() {}

}  // namespace emu
