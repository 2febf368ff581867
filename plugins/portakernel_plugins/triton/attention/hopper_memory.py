"""Shared memory of the Hopper kernels: what the copy engine is asked for, and rings of blocks with their barriers."""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Gluon iterates over its ranges.

from __future__ import annotations

from typing import Any

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import async_copy, mbarrier, tma


@builtin
def _add(described: Any, corner: Any, block: Any, _semantic: Any = None) -> None:
    """Has a block of shared memory added to what lies there."""
    corner = _semantic._convert_to_ir_values(corner, require_i64=False)
    kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
    _semantic.builder.create_async_tma_reduce(kind, described.handle, corner, block.handle)


# Triton 3.7 renamed them.
_RENAMED = hasattr(tma, "async_load")
load = tma.async_load if _RENAMED else tma.async_copy_global_to_shared
store = tma.async_store if _RENAMED else tma.async_copy_shared_to_global
# Triton 3.9 renamed it: what threads copy.
copy = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared
# Before Triton 3.8 Gluon's compiler had it, and its language did not.
add = tma.async_atomic_add if hasattr(tma, "async_atomic_add") else _add


@gluon.jit
def ring_of(described, PLACES: gl.constexpr, READERS: gl.constexpr):
    """Blocks of shared memory, each with a barrier for when it is full, and one for when all have read it."""
    blocks = gl.allocate_shared_memory(
        described.dtype,
        [PLACES] + described.block_type.shape,  # noqa: RUF005 - Gluon unpacks no lists
        described.layout,
    )
    full = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(PLACES):
        mbarrier.init(full.index(place), count=1)
        mbarrier.init(empty.index(place), count=READERS)
    return blocks, full, empty
