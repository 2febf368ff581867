// CUTLASS' mainloops for float8 on Hopper, with the sums of each 128 terms promoted a part of the tile at a time.
//
// CUTLASS holds all sums of a tile twice, in the accumulators of its wgmma and promoted, so that a tile of 128x256, which
// moves the fewest bytes for a product, does not fit the registers of two warpgroups. Here the accumulators are those of
// one wgmma of 64 rows and WGMMA_N columns, and the parts of a tile take turns; while one warpgroup adds its part up, the
// other multiplies.
#pragma once

#include "tma.cuh"

namespace portakernel {

// What a partial sum is multiplied with before it is added: nothing.
struct NoFactors {
  template <class Mainloop, class Slice, class Shared>
  static CUTLASS_DEVICE NoFactors of(Slice const&, Shared&) {
    return {};
  }
  CUTLASS_DEVICE void read(int) {}
  CUTLASS_DEVICE float operator()(int, int, int) const { return 1.0f; }
};

template <class Mainloop, class Factors>
struct PromotedInParts : Mainloop {
  using Pipeline = typename Mainloop::MainloopPipeline;
  using State = typename Mainloop::PipelineState;
  using Wgmma = typename Mainloop::TiledMma;

  template <class Sums>
  CUTLASS_DEVICE void mma(Pipeline pipeline, State state, Sums& sums, int tiles, int thread,
                          typename Mainloop::TensorStorage& shared, typename Mainloop::Params const&) {
    Tensor a = make_tensor(make_smem_ptr(shared.smem_A.data()), typename Mainloop::SmemLayoutA{});
    Tensor b = make_tensor(make_smem_ptr(shared.smem_B.data()), typename Mainloop::SmemLayoutB{});
    Wgmma wgmma;
    int warpgroup = __shfl_sync(0xffffffff, thread / cutlass::NumThreadsPerWarpGroup, 0);
    auto slice = wgmma.get_slice(warpgroup * cutlass::NumThreadsPerWarpGroup);
    Tensor rows = slice.make_fragment_A(slice.partition_A(a));     // (wgmma, parts of M, of K, stages)
    Tensor columns = slice.make_fragment_B(slice.partition_B(b));  // (wgmma, parts of N, of K, stages)
    auto factors = Factors::template of<Mainloop>(wgmma.get_slice(thread), shared);
    Tensor partial = make_fragment_like(sums(_, 0, 0));
    clear(sums);

    CUTLASS_PRAGMA_NO_UNROLL
    for (int tile = 0; tile < tiles; ++tile, ++state) {
      pipeline.consumer_wait(state, pipeline.consumer_try_wait(state));
      factors.read(state.index());
      CUTLASS_PRAGMA_UNROLL
      for (int n = 0; n < size<2>(sums); ++n) {
        CUTLASS_PRAGMA_UNROLL
        for (int m = 0; m < size<1>(sums); ++m) {
          warpgroup_fence_operand(partial);
          warpgroup_arrive();
          wgmma.accumulate_ = GMMA::ScaleOut::Zero;
          CUTLASS_PRAGMA_UNROLL
          for (int k = 0; k < size<2>(rows); ++k) {
            cute::gemm(wgmma, rows(_, m, k, state.index()), columns(_, n, k, state.index()), partial);
            wgmma.accumulate_ = GMMA::ScaleOut::One;
          }
          warpgroup_commit_batch();
          warpgroup_wait<0>();
          warpgroup_fence_operand(partial);
          if (n + 1 == size<2>(sums) && m + 1 == size<1>(sums)) {
            pipeline.consumer_release(state);
          }
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < size(partial); ++i) {
            sums(i, m, n) += partial(i) * factors(i, m, n);
          }
        }
      }
    }
  }

  // Every stage was released by mma.
  CUTLASS_DEVICE void mma_tail(Pipeline, State, int) {}
};

// A mainloop as CUTLASS' builder made it, with a wgmma of `Columns` columns in place of the tile's.
template <class Built, int Columns, class Factors>
struct Parted;

template <class Policy, class TileShape, class A, class StrideA, class B, class StrideB, class OfTile, class... Copies,
          int Columns, class Factors>
struct Parted<cutlass::gemm::collective::CollectiveMma<Policy, TileShape, A, StrideA, B, StrideB, OfTile, Copies...>, Columns,
              Factors> {
  using Part = Shape<decltype(get<0>(TileShape{})), Int<Columns>, decltype(get<2>(TileShape{}))>;
  using Warpgroups = Layout<Shape<Int<size(OfTile{}) / cutlass::NumThreadsPerWarpGroup>, _1, _1>>;
  using Wgmma =
      decltype(make_tiled_mma(GMMA::ss_op_selector<A, B, float, Part, GMMA::Major::K, GMMA::Major::K>(), Warpgroups{}));
  using Mainloop = PromotedInParts<
      cutlass::gemm::collective::CollectiveMma<Policy, TileShape, A, StrideA, B, StrideB, Wgmma, Copies...>, Factors>;
};

template <class Built>
struct Whole {
  using Mainloop = Built;
};

// Of 0 columns: as it was built.
template <class Built, int Columns, class Factors>
using MainloopInParts = typename std::conditional_t<Columns == 0, Whole<Built>, Parted<Built, Columns, Factors>>::Mainloop;

}  // namespace portakernel
