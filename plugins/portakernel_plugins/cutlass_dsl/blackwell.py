"""``linear_act`` for Blackwell in CuTe DSL: TMA, tcgen05 with sums in tensor memory, bias on the way out."""

import cutlass
import cutlass.utils.blackwell_helpers as blackwell
from cutlass import Float32, Int32, Int64, cute, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.memory import SmemAllocator, TmemAllocator

from portakernel_plugins.cutlass_dsl.activations import activated
from portakernel_plugins.cutlass_dsl.operands import Operands, Sizes, tensors

TILE = (128, 128, 64)
STAGES = 6
# Columns of tensor memory: one of 32 bits for each of the tile's.
TENSOR_COLUMNS = 128
# How many of a row's columns a thread takes out of tensor memory at once, and how many it stores at once.
TAKEN = 32
STORED = 8
# Warps by their numbers: the first four can each reach a quarter of tensor memory's rows.
WRITERS = 128
MULTIPLIER_WARP = 4
LOADER_WARP = 5
THREADS = 192


class BlackwellLinearAct:
    """The kernel for one activation; ``__call__`` is what is compiled."""

    def __init__(self, activation: str, *, has_bias: bool) -> None:
        self.activation = activation
        self.has_bias = has_bias

    @cute.jit
    def __call__(self, operands: Operands, sizes: Sizes, stream):
        """``y = activation(x @ weight.T + bias)``; x: (M, K), weight: (N, K), bias: (N,), y: (M, N)."""
        x, weight, bias, y = tensors(operands, sizes)
        element = x.element_type
        major = OperandMajorMode.K
        tiled_mma = blackwell.make_trivial_tiled_mma(
            element, element, major, major, Float32, tcgen05.CtaGroup.ONE, TILE[:2]
        )
        x_layout = blackwell.make_smem_layout_a(tiled_mma, TILE, element, STAGES)
        weight_layout = blackwell.make_smem_layout_b(tiled_mma, TILE, element, STAGES)
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        load_x, x_tma = cute.nvgpu.make_tiled_tma_atom_A(
            load, x, cute.select(x_layout, mode=[0, 1, 2]), TILE, tiled_mma
        )
        load_w, w_tma = cute.nvgpu.make_tiled_tma_atom_B(
            load, weight, cute.select(weight_layout, mode=[0, 1, 2]), TILE, tiled_mma
        )

        @cute.struct
        class Shared:
            loaded: cute.struct.MemRange[Int64, 2 * STAGES]
            multiplied: cute.struct.MemRange[Int64, 2]
            tensor_memory: Int32
            x: cute.struct.Align[cute.struct.MemRange[element, cute.cosize(x_layout.outer)], 1024]
            weight: cute.struct.Align[cute.struct.MemRange[element, cute.cosize(weight_layout.outer)], 1024]

        self.element, self.shared = element, Shared
        M, N = y.shape[0], y.shape[1]
        self.kernel(tiled_mma, load_x, x_tma, load_w, w_tma, y, bias, x_layout, weight_layout).launch(
            # tiles of one column of weights follow each other, so that they find them in L2
            grid=(cute.ceil_div(M, TILE[0]), cute.ceil_div(N, TILE[1]), 1),
            block=(THREADS, 1, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(self, tiled_mma, load_x, x, load_w, weight, y, bias, x_layout, weight_layout):
        """One block makes one tile of y."""
        thread = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        tile_m, tile_n, _ = cute.arch.block_idx()
        here = (tile_m, tile_n, None, 0)

        memory = SmemAllocator().allocate(self.shared)
        sx = memory.x.get_tensor(x_layout.outer, swizzle=x_layout.inner)
        sw = memory.weight.get_tensor(weight_layout.outer, swizzle=weight_layout.inner)

        loaded_bytes = cute.size_in_bytes(self.element, cute.select(x_layout, mode=[0, 1, 2]))
        loaded_bytes += cute.size_in_bytes(self.element, cute.select(weight_layout, mode=[0, 1, 2]))
        one_thread = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        loads, loaded = pipeline.PipelineTmaUmma.create(
            num_stages=STAGES,
            producer_group=one_thread,
            consumer_group=one_thread,
            tx_count=loaded_bytes,
            barrier_storage=memory.loaded.data_ptr(),
        ).make_participants()
        products, multiplied = pipeline.PipelineUmmaAsync.create(
            num_stages=1,
            producer_group=one_thread,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, WRITERS),
            barrier_storage=memory.multiplied.data_ptr(),
        ).make_participants()
        # whoever reads or writes tensor memory waits until it is allocated, which the first warp does
        tensor_memory = TmemAllocator(
            memory.tensor_memory.ptr,
            barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=1, num_threads=WRITERS + 32),
        )

        gx = cute.local_tile(x, TILE, here, proj=(1, None, 1))  # (TILE_M, TILE_K, tiles)
        gw = cute.local_tile(weight, TILE, here, proj=(None, 1, 1))
        gy = cute.local_tile(y, TILE, here, proj=(1, 1, None))
        part = tiled_mma.get_slice(0)
        rx, rw = tiled_mma.make_fragment_A(sx), tiled_mma.make_fragment_B(sw)
        sums_layout = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C(TILE[:2])).layout
        tiles = cute.size(gx, mode=[2])

        if warp == LOADER_WARP:
            alone = cute.make_layout(1)
            to_x, from_x = cpasync.tma_partition(
                load_x, 0, alone, cute.group_modes(sx, 0, 3), cute.group_modes(part.partition_A(gx), 0, 3)
            )
            to_w, from_w = cpasync.tma_partition(
                load_w, 0, alone, cute.group_modes(sw, 0, 3), cute.group_modes(part.partition_B(gw), 0, 3)
            )
            for _ in cutlass.range(tiles, unroll=1):
                free = loads.acquire_and_advance()
                cute.copy(load_x, from_x[(None, free.count)], to_x[(None, free.index)], tma_bar_ptr=free.barrier)
                cute.copy(load_w, from_w[(None, free.count)], to_w[(None, free.index)], tma_bar_ptr=free.barrier)
            loads.tail()

        if warp == MULTIPLIER_WARP:
            tensor_memory.wait_for_alloc()
            sums = cute.make_tensor(tensor_memory.retrieve_ptr(Float32), sums_layout)
            made = products.acquire_and_advance()
            tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
            for _ in cutlass.range(tiles, unroll=1):
                full = loaded.wait_and_advance()
                for block in cutlass.range_constexpr(cute.size(rx, mode=[2])):
                    at = (None, None, block, full.index)
                    cute.gemm(tiled_mma, sums, rx[at], rw[at], sums)
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
                full.release()
            made.commit()

        if warp < MULTIPLIER_WARP:
            tensor_memory.allocate(TENSOR_COLUMNS)
            tensor_memory.wait_for_alloc()
            pointer = tensor_memory.retrieve_ptr(Float32)
            done = multiplied.wait_and_advance()
            self.write(part, cute.make_tensor(pointer, sums_layout), gy, y, bias, (tile_m, tile_n), thread)
            done.release()
            tensor_memory.relinquish_alloc_permit()
            pipeline.NamedBarrier(barrier_id=2, num_threads=WRITERS).arrive_and_wait()
            tensor_memory.free(pointer)

    @cute.jit
    def write(self, part, sums, gy, y, bias, tile, thread):
        """Takes each thread's row out of tensor memory, a few columns at a time, finishes it and stores it."""
        columns = ((cute.size(sums, mode=[0, 0]), TAKEN),)
        parts = cute.zipped_divide(sums, columns)
        load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(TAKEN)), Float32)
        tiled = tcgen05.make_tmem_copy(load, parts[None, 0])
        mine = tiled.get_slice(thread)
        from_sums = mine.partition_S(parts)
        to_y = mine.partition_D(cute.zipped_divide(part.partition_C(gy), columns))
        places = cute.make_identity_tensor(TILE[:2])
        places = mine.partition_D(cute.zipped_divide(part.partition_C(places), columns))

        for i in cutlass.range_constexpr(cute.size(from_sums, mode=[2])):
            taken = cute.make_rmem_tensor(to_y[None, None, 0].shape, Float32)
            cute.copy(tiled, from_sums[None, None, i], taken)
            cute.arch.fence_view_async_tmem_load()  # until then the registers may not be read
            rounded = cute.make_rmem_tensor(to_y[None, None, 0].shape, self.element)
            at = places[None, None, i]
            for j in cutlass.range_constexpr(cute.size(taken)):
                z = taken[j]
                if cutlass.const_expr(self.has_bias):
                    column = tile[1] * TILE[1] + at[j][1]
                    if column < cute.size(bias):
                        z = z + bias[column].to(Float32)
                rounded[j] = activated(z, self.activation).to(self.element)
            row = tile[0] * TILE[0] + at[0][0]
            source = cute.logical_divide(cute.coalesce(rounded), cute.make_layout(STORED))
            target = cute.logical_divide(cute.coalesce(to_y[None, None, i]), cute.make_layout(STORED))
            for j in cutlass.range_constexpr(TAKEN // STORED):
                # N is a multiple of STORED: all of these columns are y's, or none is
                if row < y.shape[0] and tile[1] * TILE[1] + at[j * STORED][1] < y.shape[1]:
                    cute.autovec_copy(source[None, j], target[None, j])
