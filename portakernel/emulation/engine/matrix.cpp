// MFMA: the matrix instructions of CDNA.
//
// How the documents lay out D = A B + C with M rows, N columns, depth K and B blocks, one entry for each instruction:
//   A: lane l holds row l % M; 64 / M groups of lanes share the blocks first, then parts of K; register by register, low
//      half first, follow the values of one part. B: the same with columns. 32x32x8: lane 0-31 has k 0-3, 32-63 has 4-7.
//   C and D: column l % N; registers go down rows in groups of four: 32x32 has row 8 (r / 4) + 4 (l / 32) + r % 4 in
//      register r, 16x16 row 4 (l / 16) + r; blocks follow in further registers (16x16, 32x32) or lanes (4x4).
// Operands: op.dst, op.src[0..2] are codes of first registers, AGPRs included; src[2] may be a constant. cbsz, abid and
// blgp broadcast blocks or, in f8f6f4, say formats; op.scale are the scales' codes of v_mfma_scale_*. EXEC is ignored.
// lanes_known() and vector_known() carry what nobody wrote.
#include "registry.h"

namespace emu {

void register_matrix() {}

}  // namespace emu
