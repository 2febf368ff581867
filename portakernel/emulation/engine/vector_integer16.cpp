// Vector 16-bit integers: v_add_u16, v_mad_i16, v_lshlrev_b16 and their like.
#include "registry.h"

namespace emu {

void register_vector_integer16() {}

}  // namespace emu
