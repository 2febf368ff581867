// (a * scale_a) @ (b * scale_b).T + bias of float8 on Hopper, a scale for each 1x128 of a and each 128x128 of b.
//
// The sums of each block of 128 terms are scaled and added up in float32, outside the tensor cores. Macros: those of
// hopper.cuh, and OUTPUT, the dtype of y and bias. scale_a lies column-major, (M, K/128) with neighbours along M, so that
// a tile's scales are one copy; scale_b row-major.
#include "hopper.cuh"
#include "promoted.cuh"

#include "cutlass/detail/blockwise_scale_layout.hpp"

namespace portakernel {

static_assert(!kSwapped, "a's scales belong to rows of the tile");

using Element = cutlass::float_e4m3_t;
using Output = OUTPUT;

using Scales = cutlass::detail::Sm90BlockwiseScaleConfig<1, 128, 128, cute::GMMA::Major::MN, cute::GMMA::Major::K>;
using LayoutScaleA = decltype(Scales::deduce_layoutSFA());
using LayoutScaleB = decltype(Scales::deduce_layoutSFB());

using Fusion = fusion::Sm90EVT<Compute<cutlass::plus, Output>, fusion::Sm90AccFetch, OverColumns<Output>>;

using EpilogueOp = Epilogue<Output, Fusion>;

using Schedule = std::conditional_t<PINGPONG, cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8Blockwise,
                                    cutlass::gemm::KernelTmaWarpSpecializedCooperativeFP8Blockwise>;

using Built = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cute::tuple<cutlass::layout::RowMajor, LayoutScaleA>,
    kAlignment<Element>, Element, cute::tuple<cutlass::layout::ColumnMajor, LayoutScaleB>, kAlignment<Element>, float, Tile,
    Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename EpilogueOp::SharedStorage))>,
    Schedule>::CollectiveOp;

// The scales of a tile's rows and columns, over the sums that a thread holds; they lie in shared memory beside their stage.
template <class OverRows, class OverColumns>
struct BlockFactors {
  OverRows over_rows;  // (wgmma, parts of M, of N, (of K, stages)), where those that share a scale are 0 apart
  OverColumns over_columns;
  decltype(make_tensor_like<float>(over_rows(_, _, _, _0{}))) rows;
  decltype(make_tensor_like<float>(over_columns(_, _, _, _0{}))) columns;

  CUTLASS_DEVICE BlockFactors(OverRows const& over_rows, OverColumns const& over_columns)
      : over_rows(over_rows), over_columns(over_columns) {}

  CUTLASS_DEVICE void read(int stage) {
    copy(over_rows(_, _, _, make_coord(_0{}, stage)), rows);
    copy(over_columns(_, _, _, make_coord(_0{}, stage)), columns);
  }
  CUTLASS_DEVICE float operator()(int i, int m, int n) const { return rows(i, m, n) * columns(i, m, n); }
};

struct ByBlock {
  template <class Mainloop, class Slice, class Shared>
  static CUTLASS_DEVICE auto of(Slice const& slice, Shared& shared) {
    using A = typename Mainloop::SmemLayoutSFA;  // (rows, K, stages)
    using B = typename Mainloop::SmemLayoutSFB;  // (columns, K, stages)
    auto k_of = [](auto const& shape) { return make_tuple(get<1>(shape), get<2>(shape)); };
    Layout rows = make_layout(make_shape(get<0>(shape(A{})), get<1>(Tile{}), k_of(shape(A{}))),
                              make_stride(get<0>(stride(A{})), _0{}, k_of(stride(A{}))));
    Layout columns = make_layout(make_shape(get<0>(Tile{}), get<0>(shape(B{})), k_of(shape(B{}))),
                                 make_stride(_0{}, get<0>(stride(B{})), k_of(stride(B{}))));
    return BlockFactors(slice.partition_C(make_tensor(make_smem_ptr(shared.smem_SFA.data()), rows)),
                        slice.partition_C(make_tensor(make_smem_ptr(shared.smem_SFB.data()), columns)));
  }
};

using Mainloop = MainloopInParts<Built, WGMMA_N, ByBlock>;

using Product = Gemm<Mainloop, EpilogueOp>;

typename Product::Arguments arguments(Call const& call) {
  using Kernel = Product::GemmKernel;
  auto shape = problem(call);
  typename Fusion::Arguments fused{{}, {static_cast<Output const*>(call.bias)}, {}};
  return {
      cutlass::gemm::GemmUniversalMode::kGemm,
      shape,
      {static_cast<Element const*>(call.a), stride_of<typename Kernel::StrideA>(call.stride_a),
       static_cast<Element const*>(call.b), stride_of<typename Kernel::StrideB>(call.stride_b),
       static_cast<float const*>(call.scale_a), Scales::tile_atom_to_shape_SFA(shape),
       static_cast<float const*>(call.scale_b), Scales::tile_atom_to_shape_SFB(shape)},
      {fused, nullptr, {}, static_cast<Output*>(call.y), stride_of<typename Kernel::StrideD>(call.stride_y)},
      hardware(call),
      schedule<Product>(call),
  };
}

}  // namespace portakernel

PORTAKERNEL_PRODUCT(portakernel::Product, portakernel::arguments)
