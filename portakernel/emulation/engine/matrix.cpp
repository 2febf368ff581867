// MFMA: the matrix instructions of CDNA.
#include "registry.h"

namespace emu {

void register_matrix() {}

}  // namespace emu
