// (a * scale_a) @ (b * scale_b).T + bias of float8 on Hopper, one scale a tensor or a row, applied in the epilogue.
//
// Macros: those of hopper.cuh; OUTPUT, the dtype of y and bias; FAST_SUMS, 1: sums stay in the tensor cores' registers.
#include "hopper.cuh"
#include "promoted.cuh"

namespace portakernel {

using Element = cutlass::float_e4m3_t;
using Output = OUTPUT;

// Whether there is a scale for each row, or one, is an argument: both are one library.
using ScaledByRow = fusion::Sm90EVT<Compute<cutlass::multiplies, float>, OverRows<float, bool>, fusion::Sm90AccFetch>;
using Scaled = fusion::Sm90EVT<Compute<cutlass::multiplies, float>, OverColumns<float, bool>, ScaledByRow>;
using Fusion = fusion::Sm90EVT<Compute<cutlass::plus, Output>, Scaled, OverColumns<Output>>;

using EpilogueOp = Epilogue<Output, Fusion>;

// Without fast sums the partial ones are added up in float32 each 128 terms: wgmma keeps 14 bits of them.
using Promoted = std::conditional_t<PINGPONG, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                                    cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
using Fast = std::conditional_t<PINGPONG, cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8FastAccum,
                                cutlass::gemm::KernelTmaWarpSpecializedCooperativeFP8FastAccum>;

using Built = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cutlass::layout::RowMajor, kAlignment<Element>, Element,
    cutlass::layout::ColumnMajor, kAlignment<Element>, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename EpilogueOp::SharedStorage))>,
    std::conditional_t<FAST_SUMS, Fast, Promoted>>::CollectiveOp;

static_assert(!(FAST_SUMS && WGMMA_N), "sums that stay in the tensor cores have no parts");
using Mainloop = MainloopInParts<Built, WGMMA_N, NoFactors>;

using Product = Gemm<Mainloop, EpilogueOp>;

// A vector's `Arguments`, with the stride that makes it one number where it is.
template <class Vector>
typename Vector::Arguments scales(void const* pointer, bool many) {
  typename Vector::Arguments arguments{};
  if constexpr (std::is_same_v<Vector, OverRowsOfTile<float, bool>>) {
    arguments.ptr_col = static_cast<float const*>(pointer);
    arguments.dCol = {many, _0{}, 0};
  } else {
    arguments.ptr_row = static_cast<float const*>(pointer);
    arguments.dRow = {_0{}, many, 0};
  }
  return arguments;
}

typename Product::Arguments arguments(Call const& call) {
  using Kernel = Product::GemmKernel;
  void const* first = kSwapped ? call.b : call.a;
  void const* second = kSwapped ? call.a : call.b;
  // children before their parent
  typename ScaledByRow::Arguments by_row{scales<OverRows<float, bool>>(call.scale_a, call.rows_of_scales & 1), {}, {}};
  typename Scaled::Arguments scaled{scales<OverColumns<float, bool>>(call.scale_b, call.rows_of_scales & 2), by_row, {}};
  typename Fusion::Arguments fused{scaled, {static_cast<Output const*>(call.bias)}, {}};
  return {
      cutlass::gemm::GemmUniversalMode::kGemm,
      problem(call),
      {static_cast<Element const*>(first), stride_of<typename Kernel::StrideA>(kSwapped ? call.stride_b : call.stride_a),
       static_cast<Element const*>(second), stride_of<typename Kernel::StrideB>(kSwapped ? call.stride_a : call.stride_b)},
      {fused, nullptr, {}, static_cast<Output*>(call.y), stride_of<typename Kernel::StrideD>(call.stride_y)},
      hardware(call),
      schedule<Product>(call),
  };
}

}  // namespace portakernel

PORTAKERNEL_PRODUCT(portakernel::Product, portakernel::arguments)
