// What Python and a built library tell each other: one structure of plain C types, and four functions.
//
// Nothing of torch or Python is in here: pointers, sizes, strides in elements, and a stream. The fields are those of
// `Call` in calls.py, in the same order.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cutlass/cutlass.h"

struct Call {
  void const* a;        // (M, K), row-major
  void const* b;        // (N, K), row-major
  void const* scale_a;  // of a quantised product
  void const* scale_b;
  void const* factor;  // of the whole product, one float32, or null
  void const* bias;    // (N,), or null
  void* y;             // (M, N), row-major
  int64_t stride_a;  // from row to row
  int64_t stride_b;
  int64_t stride_y;
  int32_t m;
  int32_t n;
  int32_t k;
  int32_t activation;      // an `Activation` of activation.cuh
  int32_t rows_of_scales;  // bit 0: scale_a has one a row, not one; bit 1: scale_b
  int32_t swizzle;         // tiles that neighbours in time take together, so that they meet in L2
  int32_t raster;          // 0: as the scheduler thinks; 1: along M; 2: along N
  int32_t device;
  int32_t multiprocessors;
};

#define PORTAKERNEL_EXPORT extern "C" __attribute__((visibility("default")))

// The size of `Call` as this library was compiled: Python compares it with its own.
PORTAKERNEL_EXPORT int64_t portakernel_call_bytes() { return sizeof(Call); }

namespace portakernel {

// Launches `Gemm` with its own form of the call's arguments. Returns 0; a negative status where it cannot serve them and
// nothing was launched; a positive one where the launch failed.
template <class Gemm>
int launch(typename Gemm::Arguments const& arguments, void* workspace, void* stream) {
  cutlass::Status status = Gemm::can_implement(arguments);
  if (status != cutlass::Status::kSuccess) {
    return -static_cast<int>(status);
  }
  Gemm gemm;
  return static_cast<int>(gemm(arguments, workspace, static_cast<cudaStream_t>(stream)));
}

}  // namespace portakernel

// What a status that `portakernel_launch` returned means.
PORTAKERNEL_EXPORT char const* portakernel_status_text(int status) {
  return cutlass::cutlassGetStatusString(static_cast<cutlass::Status>(status < 0 ? -status : status));
}

// The two functions that a call goes through, for a `Gemm` and `arguments(Call const&)`.
#define PORTAKERNEL_PRODUCT(GEMM, ARGUMENTS)                                                    \
  PORTAKERNEL_EXPORT int64_t portakernel_workspace_bytes(Call const* call) {                    \
    return static_cast<int64_t>(GEMM::get_workspace_size(ARGUMENTS(*call)));                    \
  }                                                                                             \
  PORTAKERNEL_EXPORT int portakernel_launch(Call const* call, void* workspace, void* stream) {  \
    return portakernel::launch<GEMM>(ARGUMENTS(*call), workspace, stream);                      \
  }
