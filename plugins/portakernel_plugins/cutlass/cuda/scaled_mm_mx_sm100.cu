// (a * scale_a) @ (b * scale_b).T * factor + bias on Blackwell, whose tensor cores apply the scales: mxfp8 and nvfp4.
//
// Macros: OPERAND, an element with its scales (cutlass::mx_float8_t<...>, cutlass::nv_float4_t<...>); OUTPUT, the dtype of
// y and bias; TILE_M, TILE_N, TILE_K; CLUSTER_M, CLUSTER_N. Scales lie in tiles of 128 rows and 4 columns (32_4_4), which
// is the layout that the tensor cores read. The call's scale_a and scale_b point to them, its factor to one float32.
#include "tma.cuh"

#include "cutlass/epilogue/fusion/operations.hpp"

namespace portakernel {

using Operand = OPERAND;
using Element = typename Operand::DataType;
using Scale = typename Operand::ScaleFactorType;
using Output = OUTPUT;

using Tile = Shape<Int<TILE_M>, Int<TILE_N>, Int<TILE_K>>;
using Cluster = Shape<Int<CLUSTER_M>, Int<CLUSTER_N>, _1>;

// factor * sums + bias, rounded once; no source is read
using Fusion = cutlass::epilogue::fusion::LinCombPerColBias<Output, float, Output, void, float>;

using EpilogueOp = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm100, cutlass::arch::OpClassBlockScaledTensorOp, Tile, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, cutlass::layout::RowMajor, kAlignment<Output>,
    Output, cutlass::layout::RowMajor, kAlignment<Output>, cutlass::epilogue::collective::EpilogueScheduleAuto,
    Fusion>::CollectiveOp;

using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm100, cutlass::arch::OpClassBlockScaledTensorOp, Operand, cutlass::layout::RowMajor,
    kAlignment<Element>, Operand, cutlass::layout::ColumnMajor, kAlignment<Element>, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename EpilogueOp::SharedStorage))>,
    cutlass::gemm::collective::KernelScheduleAuto>::CollectiveOp;

using Product = cutlass::gemm::device::GemmUniversalAdapter<
    cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, EpilogueOp, void>>;

typename Product::Arguments arguments(Call const& call) {
  using Kernel = Product::GemmKernel;
  using Blocks = typename Mainloop::Sm1xxBlkScaledConfig;
  cute::tuple<int, int, int, int> shape{call.m, call.n, call.k, 1};
  typename Product::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGemm,
      shape,
      {static_cast<Element const*>(call.a), stride_of<typename Kernel::StrideA>(call.stride_a),
       static_cast<Element const*>(call.b), stride_of<typename Kernel::StrideB>(call.stride_b),
       static_cast<Scale const*>(call.scale_a), Blocks::tile_atom_to_shape_SFA(shape),
       static_cast<Scale const*>(call.scale_b), Blocks::tile_atom_to_shape_SFB(shape)},
      {{}, nullptr, {}, static_cast<Output*>(call.y), stride_of<typename Kernel::StrideD>(call.stride_y)},
      hardware(call),
  };
  arguments.epilogue.thread.alpha_ptr = static_cast<float const*>(call.factor);
  arguments.epilogue.thread.bias_ptr = static_cast<Output const*>(call.bias);
  return arguments;
}

}  // namespace portakernel

PORTAKERNEL_PRODUCT(portakernel::Product, portakernel::arguments)
