// WMMA: the matrix instructions of RDNA.
#include "registry.h"

namespace emu {

void register_matrix_wmma() {}

}  // namespace emu
