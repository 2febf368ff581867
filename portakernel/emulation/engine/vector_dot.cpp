// Dot products: v_dot2_f32_f16, v_dot4_i32_iu8 and their like.
#include "registry.h"

namespace emu {

void register_vector_dot() {}

}  // namespace emu
