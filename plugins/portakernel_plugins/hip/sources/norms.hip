// rms_norm, add_rms_norm and layer_norm: norm.h for one dtype and one shape of a launch, which the macros say.
//
// ELEMENT, WEIGHT: float32, float16 or bfloat16. THREADS of a block, ROW_THREADS of a row, PACKS a thread holds of it
// (0: the row is read again instead). WHOLE: packs are aligned, and no row ends within one. ADDED, CENTRED: see norm.h.
#include "norm.h"

extern "C" __global__ BLOCK_OF(THREADS) void norms(
    const ELEMENT* x, const ELEMENT* residual, const WEIGHT* weight, const WEIGHT* bias, ELEMENT* y, ELEMENT* summed,
    float* mean, float* rstd, int64 rows, int64 columns, int64 x_stride, int64 residual_stride, int64 y_stride,
    int64 summed_stride, float eps, float weight_offset) {
    const NormRows<ELEMENT, WEIGHT> norm = {
        x, residual, weight, bias, y, summed, mean, rstd, rows, columns, x_stride, residual_stride, y_stride,
        summed_stride, eps, weight_offset};
#if PACKS
    norm.held<THREADS, ROW_THREADS, PACKS, WHOLE, ADDED, CENTRED>();
#else
    norm.streamed<THREADS, WHOLE, ADDED, CENTRED>();
#endif
}
