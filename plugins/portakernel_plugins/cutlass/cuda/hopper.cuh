// What the products for Hopper share: tile, cluster and schedule from macros, a launch of the finished type.
//
// A configuration of configurations.yaml is compiled with the macros TILE_M, TILE_N, TILE_K, CLUSTER_M, CLUSTER_N,
// PINGPONG (0: cooperative), STREAM_K and SWAPPED (0 or 1); and WGMMA_N, the columns of one wgmma where a source promotes
// its sums in parts (0: all of the tile's).
#pragma once

#include "tma.cuh"

#include "cutlass/epilogue/fusion/operations.hpp"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"

namespace portakernel {

namespace fusion = cutlass::epilogue::fusion;

using Tile = Shape<Int<TILE_M>, Int<TILE_N>, Int<TILE_K>>;
using Cluster = Shape<Int<CLUSTER_M>, Int<CLUSTER_N>, _1>;

using EpilogueSchedule = std::conditional_t<PINGPONG, cutlass::epilogue::TmaWarpSpecialized,
                                            cutlass::epilogue::TmaWarpSpecializedCooperative>;
using TileScheduler =
    std::conditional_t<STREAM_K, cutlass::gemm::StreamKScheduler, cutlass::gemm::PersistentScheduler>;

// Swapped, the product is that of b and a, so that b's many rows fill the tile's M, which has at least 64, and a's few
// its N; what it writes is y.T, and y.T column-major is y row-major.
constexpr bool kSwapped = SWAPPED;
using LayoutY = std::conditional_t<kSwapped, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;

// A vector over y's rows or columns, as the epilogue of the possibly swapped product sees it. `Stride` is its stride
// along that dimension: _1, or a bool that says at run time whether it is a vector or one number for all.
template <class Element, class Step = _1>
using OverRowsOfTile = fusion::Sm90ColBroadcast<0, Tile, Element, float, Stride<Step, _0, int64_t>>;
template <class Element, class Step = _1>
using OverColumnsOfTile = fusion::Sm90RowBroadcast<0, Tile, Element, float, Stride<_0, Step, int64_t>>;

template <class Element, class Step = _1>
using OverRows = std::conditional_t<kSwapped, OverColumnsOfTile<Element, Step>, OverRowsOfTile<Element, Step>>;
template <class Element, class Step = _1>
using OverColumns = std::conditional_t<kSwapped, OverRowsOfTile<Element, Step>, OverColumnsOfTile<Element, Step>>;

template <template <class> class Function, class Output>
using Compute = fusion::Sm90Compute<Function, Output, float, cutlass::FloatRoundStyle::round_to_nearest>;

template <class Output, class Fusion>
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float,
    // no source is read: bias comes as a vector
    void, LayoutY, kAlignment<Output>, Output, LayoutY, kAlignment<Output>, EpilogueSchedule, Fusion>::CollectiveOp;

template <class Mainloop, class EpilogueOp>
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<
    cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, EpilogueOp, TileScheduler>>;

inline cute::tuple<int, int, int, int> problem(Call const& call) {
  return kSwapped ? cute::tuple<int, int, int, int>{call.n, call.m, call.k, 1}
                  : cute::tuple<int, int, int, int>{call.m, call.n, call.k, 1};
}

// The most tiles, up to `asked`, that neighbours in time take together so that they meet in L2: the rows and columns of
// tiles are rounded up to multiples of it, and what is none of the problem is multiplied too.
inline int swizzle_of(Call const& call, int asked) {
  int rows = kSwapped ? call.n : call.m, columns = kSwapped ? call.m : call.n;
  auto tiles = [&](int together) {
    int64_t m = cute::round_up(cute::ceil_div(rows, TILE_M), CLUSTER_M * together);
    return m * cute::round_up(cute::ceil_div(columns, TILE_N), CLUSTER_N * together);
  };
  int together = asked > 0 ? asked : 1;
  while (together > 1 && tiles(together) > tiles(1) + tiles(1) / 16) {
    together /= 2;
  }
  return together;
}

// How tiles are dealt out to the multiprocessors.
template <class Gemm>
typename Gemm::GemmKernel::TileScheduler::Arguments schedule(Call const& call) {
  typename Gemm::GemmKernel::TileScheduler::Arguments arguments{};
  using Order = decltype(arguments.raster_order);
  arguments.max_swizzle_size = swizzle_of(call, call.swizzle);
  bool along_m = (call.raster == 1) != kSwapped;
  arguments.raster_order = call.raster == 0 ? Order::Heuristic : along_m ? Order::AlongM : Order::AlongN;
  return arguments;
}

}  // namespace portakernel
