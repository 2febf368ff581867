// WMMA: the matrix instructions of RDNA, 16x16x16 in a wave of 32.
//
// RDNA 3: A and B are doubled, lane l and l + 16 hold the same row (column) l % 16, 16 values in 8 registers; C and D:
// column l % 16, register r has row 2 r + l / 16. RDNA 4: lanes 0-15 hold k 0-7, lanes 16-31 k 8-15 (of 16-bit values, 4
// registers); C and D: register r has row r + 8 (l / 16). 16-bit results of RDNA 3 lie in the half that op_sel names.
// Operands: op.dst, op.src[0..2]; neg and neg_hi of 16-bit operands, neg and neg_hi bit 2 (absolute) of C.
#include "registry.h"

namespace emu {

void register_matrix_wmma() {}

}  // namespace emu
