"""``linear_act`` for Hopper in CuTe DSL: TMA, a producer warp, two warpgroups that multiply, bias in registers."""

import cutlass
import cutlass.utils.hopper_helpers as hopper
from cutlass import Float32, Int64, cute, pipeline
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum

from portakernel_plugins.cutlass_dsl.activations import activated
from portakernel_plugins.cutlass_dsl.operands import Operands, Sizes, tensors

TILE = (128, 128, 64)
STAGES = 6
STORE_STAGES = 2
# Two warpgroups of 64 rows each, and one whose first warp loads.
CONSUMERS = 256
THREADS = 384
# Registers of a thread: the loading warpgroup gives up what the accumulators take.
PRODUCER_REGISTERS = 40
CONSUMER_REGISTERS = 232


class HopperLinearAct:
    """The kernel for one element type and activation; ``__call__`` is what is compiled."""

    def __init__(self, activation: str, *, has_bias: bool) -> None:
        self.activation = activation
        self.has_bias = has_bias

    @cute.jit
    def __call__(self, operands: Operands, sizes: Sizes, stream):
        """``y = activation(x @ weight.T + bias)``; x: (M, K), weight: (N, K), bias: (N,), y: (M, N)."""
        x, weight, bias, y = tensors(operands, sizes)
        element = x.element_type
        row_major = LayoutEnum.ROW_MAJOR
        tiled_mma = hopper.make_trivial_tiled_mma(
            element,
            element,
            row_major.sm90_mma_major_mode(),
            row_major.sm90_mma_major_mode(),
            Float32,
            (2, 1, 1),
            tiler_mn=(64, TILE[1]),
        )
        store_tile = hopper.compute_tile_shape_or_override(TILE, element, is_cooperative=True)
        x_layout = hopper.make_smem_layout_a(row_major, TILE, element, STAGES)
        weight_layout = hopper.make_smem_layout_b(row_major, TILE, element, STAGES)
        y_layout = hopper.make_smem_layout_epi(element, row_major, store_tile, STORE_STAGES)

        one = cute.slice_(x_layout, (None, None, 0))
        load_x, x_tma = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, one, (TILE[0], TILE[2]))
        one = cute.slice_(weight_layout, (None, None, 0))
        load_w, w_tma = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), weight, one, (TILE[1], TILE[2]))
        one = cute.slice_(y_layout, (None, None, 0))
        store_y, y_tma = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), y, one, store_tile)

        @cute.struct
        class Shared:
            barriers: cute.struct.MemRange[Int64, 2 * STAGES]
            x: cute.struct.Align[cute.struct.MemRange[element, cute.cosize(x_layout)], 1024]
            weight: cute.struct.Align[cute.struct.MemRange[element, cute.cosize(weight_layout)], 1024]
            y: cute.struct.Align[cute.struct.MemRange[element, cute.cosize(y_layout)], 1024]

        self.element, self.shared, self.store_tile = element, Shared, store_tile
        M, N = y.shape[0], y.shape[1]
        self.kernel(
            tiled_mma, load_x, x_tma, load_w, w_tma, store_y, y_tma, bias, x_layout, weight_layout, y_layout
        ).launch(
            # tiles of one column of weights follow each other, so that they find them in L2
            grid=(cute.ceil_div(M, TILE[0]), cute.ceil_div(N, TILE[1]), 1),
            block=(THREADS, 1, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(self, tiled_mma, load_x, x, load_w, weight, store_y, y, bias, x_layout, weight_layout, y_layout):
        """One block makes one tile of y."""
        thread = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        tile_m, tile_n, _ = cute.arch.block_idx()
        here = (tile_m, tile_n, None, 0)

        memory = SmemAllocator().allocate(self.shared)
        sx = memory.x.get_tensor(x_layout.outer, swizzle=x_layout.inner)
        sw = memory.weight.get_tensor(weight_layout.outer, swizzle=weight_layout.inner)
        sy = memory.y.get_tensor(y_layout.outer, swizzle=y_layout.inner)

        loaded_bytes = cute.size_in_bytes(self.element, cute.slice_(x_layout, (None, None, 0)))
        loaded_bytes += cute.size_in_bytes(self.element, cute.slice_(weight_layout, (None, None, 0)))
        pipe = pipeline.PipelineTmaAsync.create(
            barrier_storage=memory.barriers.data_ptr(),
            num_stages=STAGES,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            # one arrival for each multiplying warp
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, CONSUMERS // 32),
            tx_count=loaded_bytes,
            cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
        )

        gx = cute.local_tile(x, TILE, here, proj=(1, None, 1))  # (TILE_M, TILE_K, tiles)
        gw = cute.local_tile(weight, TILE, here, proj=(None, 1, 1))
        gy = cute.local_tile(y, TILE, here, proj=(1, 1, None))
        tiles = cute.size(gx, mode=[2])

        if warp >= CONSUMERS // 32:
            cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
            if warp == CONSUMERS // 32:
                alone = cute.make_layout(1)
                to_x, from_x = cpasync.tma_partition(
                    load_x, 0, alone, cute.group_modes(sx, 0, 2), cute.group_modes(gx, 0, 2)
                )
                to_w, from_w = cpasync.tma_partition(
                    load_w, 0, alone, cute.group_modes(sw, 0, 2), cute.group_modes(gw, 0, 2)
                )
                state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
                for _ in cutlass.range(tiles, unroll=1):
                    pipe.producer_acquire(state)
                    barrier = pipe.producer_get_barrier(state)
                    cute.copy(load_x, from_x[(None, state.count)], to_x[(None, state.index)], tma_bar_ptr=barrier)
                    cute.copy(load_w, from_w[(None, state.count)], to_w[(None, state.index)], tma_bar_ptr=barrier)
                    pipe.producer_commit(state)
                    state.advance()
                pipe.producer_tail(state)
        else:
            cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
            part = tiled_mma.get_slice(thread)
            rx = tiled_mma.make_fragment_A(part.partition_A(sx))
            rw = tiled_mma.make_fragment_B(part.partition_B(sw))
            sums = cute.make_rmem_tensor(part.partition_C(gy).shape, Float32)

            reading = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
            releasing = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
            tiled_mma.set(warpgroup.Field.ACCUMULATE, False)
            for tile in cutlass.range(tiles, unroll=1):
                pipe.consumer_wait(reading)
                warpgroup.fence()
                for block in cutlass.range_constexpr(cute.size(rx, mode=[2])):
                    at = (None, None, block, reading.index)
                    cute.gemm(tiled_mma, sums, rx[at], rw[at], sums)
                    tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                reading.advance()
                # one product stays in flight; what the one before it read may be loaded over
                warpgroup.wait_group(1)
                if tile > 0:
                    pipe.consumer_release(releasing)
                    releasing.advance()
            warpgroup.wait_group(0)
            pipe.consumer_release(releasing)

            self.finish(part, sums, bias, tile_n)
            self.store(tiled_mma, sums, sy, gy, store_y, thread, warp)

    @cute.jit
    def finish(self, part, sums, bias, tile_n):
        """Bias and activation, on each thread's part of the tile."""
        columns = part.partition_C(cute.make_identity_tensor(TILE[:2]))
        for i in cutlass.range(cute.size(sums), unroll_full=True):
            z = sums[i]
            if cutlass.const_expr(self.has_bias):
                column = tile_n * TILE[1] + columns[i][1]
                if column < cute.size(bias):
                    z = z + bias[column].to(Float32)
            sums[i] = activated(z, self.activation)

    @cute.jit
    def store(self, tiled_mma, sums, sy, gy, store_y, thread, warp):
        """Rounds the tile and stores it, a part at a time, by way of shared memory; TMA leaves out what is beyond y."""
        row_major = LayoutEnum.ROW_MAJOR
        to_shared = hopper.get_smem_store_op(row_major, elem_ty_d=self.element, elem_ty_acc=Float32)
        atom = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), self.element)
        tiled = cute.make_tiled_copy_S(to_shared, cute.make_tiled_copy_C_atom(atom, tiled_mma))
        mine = tiled.get_slice(thread)
        to_sy, from_sums = mine.partition_D(sy), tiled.retile(sums)
        layout = cute.make_layout(cute.shape(mine.partition_S(sy))[:3])
        count = cute.size(layout)

        parts = cute.zipped_divide(gy, self.store_tile)
        from_sy, to_gy = cpasync.tma_partition(store_y, 0, cute.make_layout(1), cute.group_modes(sy, 0, 2), parts)
        shape = parts.shape[1]
        order = cute.make_layout(shape, stride=(shape[1], 1))
        together = pipeline.NamedBarrier(barrier_id=1, num_threads=CONSUMERS)
        stores = pipeline.PipelineTmaStore.create(
            num_stages=STORE_STAGES,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, CONSUMERS),
        )
        for i in cutlass.range_constexpr(cute.size(parts, mode=[1])):
            rounded = cute.make_rmem_tensor_like(layout, self.element)
            for j in cutlass.range_constexpr(count):
                rounded[j] = from_sums[i * count + j].to(self.element)
            buffer = i % STORE_STAGES
            cute.copy(tiled, rounded, to_sy[(None, None, None, buffer)])
            cute.arch.fence_proxy("async.shared", space="cta")
            together.arrive_and_wait()
            if warp == 0:
                cute.copy(store_y, from_sy[(None, buffer)], to_gy[(None, order.get_hier_coord(i))])
                stores.producer_commit()
                stores.producer_acquire()
            together.arrive_and_wait()
        if warp == 0:
            stores.producer_tail()
