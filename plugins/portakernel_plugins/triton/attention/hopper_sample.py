"""A small kernel with all that the Hopper kernel has of Gluon, which ``hopper_probe.py`` has compiled."""
# pyright: reportAssignmentType=false
# What is compiled into a kernel is a ``constexpr`` to Gluon alone.

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from portakernel_plugins.triton.attention.hopper_memory import load, ring_of, store


@gluon.jit
def _fetch(x, ring):
    blocks, full, _ = ring
    mbarrier.expect(full.index(0), x.block_type.nbytes)
    load(x, [0, 0, 0, 0], full.index(0), blocks.index(0))


@gluon.jit
def _multiply(y, ring):
    blocks, full, empty = ring
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    mbarrier.wait(full.index(0), 0)
    block = blocks.index(0).reshape([64, 64])
    product = warpgroup_mma(block, block, gl.zeros([64, 64], gl.float32, layout=layout), use_acc=False, is_async=True)
    product = warpgroup_mma_wait(0, deps=(product,))
    mbarrier.arrive(empty.index(0), count=1)
    block.store(product.to(blocks.dtype))
    fence_async_shared()
    store(y, [0, 0, 0, 0], blocks.index(0))
    tma.store_wait(0)


@gluon.jit
def square(x, y):
    """The product of a block with itself."""
    ring = ring_of(x, 1, 1)
    fence_async_shared()
    gl.warp_specialize([(_multiply, (y, ring)), (_fetch, (x, ring))], [1], [24])
