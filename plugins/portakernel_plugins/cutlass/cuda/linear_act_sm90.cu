// activation(x @ weight.T + bias) on Hopper: TMA, warp-specialised wgmma, bias and activation in the epilogue.
//
// Macros: those of hopper.cuh, and ELEMENT, the dtype of all tensors.
#include "hopper.cuh"

#include "activation.cuh"

namespace portakernel {

using Element = ELEMENT;

// One rounding: the sum, the bias and the activation are float32.
using Fusion = fusion::Sm90EVT<
    Compute<SelectedActivation, Element>,
    fusion::Sm90EVT<Compute<cutlass::plus, float>, fusion::Sm90AccFetch, OverColumns<Element>>>;

using EpilogueOp = Epilogue<Element, Fusion>;

using Schedule = std::conditional_t<PINGPONG, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                                    cutlass::gemm::KernelTmaWarpSpecializedCooperative>;

using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cutlass::layout::RowMajor, kAlignment<Element>, Element,
    cutlass::layout::ColumnMajor, kAlignment<Element>, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename EpilogueOp::SharedStorage))>,
    Schedule>::CollectiveOp;

using Product = Gemm<Mainloop, EpilogueOp>;

typename Product::Arguments arguments(Call const& call) {
  using Kernel = Product::GemmKernel;
  void const* first = kSwapped ? call.b : call.a;
  void const* second = kSwapped ? call.a : call.b;
  // children before their parent: the accumulator, the bias, the addition; then the activation
  typename Fusion::Arguments fused{
      {{}, {static_cast<Element const*>(call.bias)}, {}},
      {static_cast<Activation>(call.activation)},
  };
  return {
      cutlass::gemm::GemmUniversalMode::kGemm,
      problem(call),
      {static_cast<Element const*>(first), stride_of<typename Kernel::StrideA>(kSwapped ? call.stride_b : call.stride_a),
       static_cast<Element const*>(second), stride_of<typename Kernel::StrideB>(kSwapped ? call.stride_a : call.stride_b)},
      {fused, nullptr, {}, static_cast<Element*>(call.y), stride_of<typename Kernel::StrideD>(call.stride_y)},
      hardware(call),
      schedule<Product>(call),
  };
}

}  // namespace portakernel

PORTAKERNEL_PRODUCT(portakernel::Product, portakernel::arguments)
