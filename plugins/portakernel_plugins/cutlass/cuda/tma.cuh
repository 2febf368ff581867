// What the products with the tensor memory accelerator share, on Hopper and after it: alignment, strides, the device.
#pragma once

#include "call.cuh"

#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"

namespace portakernel {

using namespace cute;

// The tensor memory accelerator moves 16 bytes at a time, and wants them aligned.
template <class Element>
constexpr int kAlignment = 128 / cutlass::sizeof_bits_v<Element>;

// From row to row of a matrix that is contiguous along the other dimension.
template <class Stride>
Stride stride_of(int64_t rows) {
  Stride stride{};
  if constexpr (std::is_same_v<std::decay_t<decltype(get<0>(stride))>, int64_t>) {
    get<0>(stride) = rows;
  } else {
    get<1>(stride) = rows;
  }
  return stride;
}

inline cutlass::KernelHardwareInfo hardware(Call const& call) {
  cutlass::KernelHardwareInfo info{};
  info.device_id = call.device;
  info.sm_count = call.multiprocessors;
  return info;
}

}  // namespace portakernel
