// activation(x @ weight.T + bias) on Ampere and Ada: asynchronous copies and mma.sync, bias and activation in the epilogue.
//
// Macros: ELEMENT, the dtype of all tensors; TILE_M, TILE_N, TILE_K of a block and WARP_M, WARP_N of a warp; STAGES.
#include "call.cuh"

#include "cutlass/epilogue/thread/linear_combination_generic.h"
#include "cutlass/gemm/device/gemm.h"

#include "activation.cuh"

namespace portakernel {

using Element = ELEMENT;
constexpr int kAlignment = 128 / cutlass::sizeof_bits<Element>::value;

// The bias is the source matrix: one row, read again for each row of y, as its stride from row to row is zero.
using Epilogue = cutlass::epilogue::thread::LinearCombinationGeneric<SelectedActivation, Element, kAlignment, float, float>;

using Product = cutlass::gemm::device::Gemm<
    Element, cutlass::layout::RowMajor, Element, cutlass::layout::ColumnMajor, Element, cutlass::layout::RowMajor, float,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, cutlass::gemm::GemmShape<TILE_M, TILE_N, TILE_K>,
    cutlass::gemm::GemmShape<WARP_M, WARP_N, TILE_K>, cutlass::gemm::GemmShape<16, 8, 16>, Epilogue,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, STAGES, kAlignment, kAlignment>;

Product::Arguments arguments(Call const& call) {
  auto const* bias = static_cast<Element const*>(call.bias);
  auto* y = static_cast<Element*>(call.y);
  Epilogue::Params epilogue(1.0f, bias ? 1.0f : 0.0f);
  epilogue.activation = static_cast<Activation>(call.activation);
  return {
      {call.m, call.n, call.k},
      {static_cast<Element const*>(call.a), call.stride_a},
      {static_cast<Element const*>(call.b), call.stride_b},
      // without a bias nothing is read, but the pointer's alignment is still tested
      {bias ? bias : y, bias ? 0 : call.stride_y},
      {y, call.stride_y},
      epilogue,
  };
}

}  // namespace portakernel

PORTAKERNEL_PRODUCT(portakernel::Product, portakernel::arguments)
