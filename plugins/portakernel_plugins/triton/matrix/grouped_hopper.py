"""Grouped products for Hopper: what the kernel in ``grouped_hopper_kernel.py`` is launched with."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from portakernel.authoring.triton import cdiv, launch
from portakernel_plugins.triton.attention.hopper_tiles import FAR
from portakernel_plugins.triton.attention.row_blocks import described
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.matrix import grouped_mm
from portakernel_plugins.triton.matrix.grouped_hopper_kernel import COLUMNS, CONSUMERS, ROWS, STORED, grouped
from portakernel_plugins.triton.matrix.grouped_mm import power_above

# What TMA wants an address and all strides but the innermost to be divisible by, in bytes.
_ALIGNED = 16
# Fewer lanes than a warp has are not spread over one.
_FEWEST_LANES = 32


@cache
def _layout(block: tuple[int, ...], dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """How the copy engine lays a block: one object, for it takes 7 µs to make."""
    return gl.NVMMASharedLayout.get_default_for([*block], gl.bfloat16 if dtype is torch.bfloat16 else gl.float16)


def _described(x: Tensor, shape: list[int], strides: list[int], block: tuple[int, ...]) -> TensorDescriptor:
    made: TensorDescriptor = described(TensorDescriptor, x, shape, strides, [*block])
    made.layout = _layout(block, x.dtype)
    return made


def _is_copied(x: Tensor) -> bool:
    """Whether the copy engine can follow the strides of ``x``, along its last dimension."""
    step = _ALIGNED // x.element_size()
    outer = [stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    along = x.stride(-1) == 1 or x.shape[-1] == 1
    return along and not x.data_ptr() % _ALIGNED and all(stride > 0 and stride % step == 0 for stride in outer)


def _of_matrices(b: Tensor, block_k: int, gate: str | None, halves: str) -> TensorDescriptor:
    """``b: (E, N, K)`` in two halves of its columns, one of which is gate and one up; in one without a ``gate``."""
    experts, columns, inners = b.shape
    step = _ALIGNED // b.element_size()
    expert, column = (stride if size > 1 else step for stride, size in zip(b.stride(), b.shape[:2], strict=False))
    if gate is None:
        shape, strides, block = [experts, 1, columns, inners], [expert, step, column], (1, 1, COLUMNS.value, block_k)
    else:
        shape, block = [experts, 2, columns // 2, inners], (1, 2, STORED.value, block_k)
        half = (columns // 2 * column, column) if halves == "concat" else (column, 2 * column)
        strides = [expert, *half]
    return _described(b, shape, [*strides, 1], block)


def multiply(
    step: str,
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    y: Tensor,
    *,
    gather: Tensor | None = None,
    shared: int = 1,
    gate: str | None = None,
    halves: str = "concat",
    **others: Any,
) -> None:
    """As ``grouped_mm.multiply``, of which ``others`` are, and by which goes what this kernel cannot read or write."""
    (rows, columns), (experts, _, inners) = y.shape, b.shape
    plain = not any(others.get(name) is not None for name in ("bias", "scale_a", "scale_b")) and not others.get("rest")
    readable = _is_copied(b) and _is_copied(y) and _is_copied(a) and inners % (_ALIGNED // a.element_size()) == 0
    if not rows or not columns or not experts or not inners or a.element_size() != 2 or not (plain and readable):
        grouped_mm.multiply(
            step, a, b, offsets, y, gather=gather, shared=shared, gate=gate, halves=halves, **others
        )  # fmt: skip
        return
    kind = "grouped_mm.hopper" if gather is None else "grouped_mm.hopper_gathered"
    how = configuration(kind, a.device, max(1, rows // experts))
    options = dict(how.options)
    block_k = options["BLOCK_K"]
    width = COLUMNS.value if gate is None else STORED.value
    far = FAR.value
    # the engine's numbers of two bytes wrap round at 2**63
    target = _described(
        y, [far + 1, rows + 1, far, columns], [(1 << 64) // far - columns, columns, columns, 1], (1, 1, ROWS.value, STORED.value)
    )  # fmt: skip
    across = cdiv(columns, width)
    tiles = (cdiv(rows, ROWS.value * CONSUMERS.value) + experts) * across
    step_a = _ALIGNED // a.element_size()
    row_stride = a.stride(0) if a.shape[0] > 1 else step_a
    launch(
        grouped,
        (min(tiles, how.programs), 1),
        _described(a, [*a.shape], [row_stride, 1], (ROWS.value, block_k)) if gather is None else a,
        _of_matrices(b, block_k, gate, halves),
        target,
        offsets,
        gather,
        experts,
        across,
        cdiv(inners, block_k),
        inners,
        columns,
        row_stride,
        offsets.stride(0),
        0 if gather is None else gather.stride(0),
        shared,
        LANES=max(power_above(experts), _FEWEST_LANES),
        GATE=gate,
        EVEN=inners % block_k == 0,
        **options,
    )
