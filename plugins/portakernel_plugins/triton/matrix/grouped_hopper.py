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
from portakernel_plugins.triton.matrix.grouped_hopper_kernel import grouped
from portakernel_plugins.triton.matrix.grouped_hopper_tiles import ROWS
from portakernel_plugins.triton.matrix.grouped_mm import power_above

# What TMA wants an address and all strides but the innermost to be divisible by, in bytes.
_ALIGNED = 16
# Fewer lanes than a warp has are not spread over one.
_FEWEST_LANES = 32
# The configurations of narrow products.
_OF_FORMATS = {"row": "float8", "block": "float8_blocks"}

# What a row of a block has of terms, in bytes: as much as the copy engine swizzles.
_ROW_BYTES = 128
_DTYPES = {
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.float8_e4m3fn: gl.float8e4nv,
    torch.float8_e5m2: gl.float8e5,
}


@cache
def _layout(block: tuple[int, ...], dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """How the copy engine lays a block: one object, for it takes 7 µs to make."""
    return gl.NVMMASharedLayout.get_default_for([*block], _DTYPES[dtype])


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


def _of_matrices(b: Tensor, block: tuple[int, int], gate: str | None, halves: str) -> TensorDescriptor:
    """``b: (E, N, K)`` in two halves of its columns, one of which is gate and one up; in one without a ``gate``."""
    (experts, columns, inners), (wide, deep) = b.shape, block
    step = _ALIGNED // b.element_size()
    expert, column = (stride if size > 1 else step for stride, size in zip(b.stride(), b.shape[:2], strict=False))
    if gate is None:
        return _described(b, [experts, 1, columns, inners], [expert, step, column, 1], (1, 1, wide, deep))
    half, column = (columns // 2 * column, column) if halves == "concat" else (column, 2 * column)
    return _described(b, [experts, 2, columns // 2, inners], [expert, half, column, 1], (1, 2, wide // 2, deep))


def _of_results(y: Tensor, wide: int) -> TensorDescriptor:
    """``y: (R, N)``, contiguous, as ``hopper_tiles.py`` says: the engine's numbers of two bytes wrap round at 2**63."""
    (rows, columns), far = y.shape, FAR.value
    shape, strides = [far + 1, rows + 1, far, columns], [(1 << 64) // far - columns, columns, columns, 1]
    return _described(y, shape, strides, (1, 1, ROWS.value, wide))


def multiply(
    step: str,
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    y: Tensor,
    *,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    gather: Tensor | None = None,
    format: str = "none",
    shared: int = 1,
    gate: str | None = None,
    halves: str = "concat",
) -> None:
    """As ``grouped_mm.multiply``, by which goes what this kernel has no tiles for, and cannot read or write."""
    (rows, columns), (experts, _, inners) = y.shape, b.shape
    kind = _OF_FORMATS.get(format, "gathered" if gate is not None or gather is not None else "rows")
    how = configuration(f"grouped_mm.hopper_{kind}", a.device, max(1, rows // max(experts, 1)))
    options = dict(how.options)
    block_k = _ROW_BYTES // a.element_size()
    wide = options.pop("COLUMNS", 0)
    width = wide if gate is None else wide // 2
    paired = "no" if gate is None else "one by one" if halves == "concat" else "in turn"
    readable = a.dtype in _DTYPES and (a.element_size() == 1) == (format != "none")
    readable = readable and y.element_size() == 2 and all(map(_is_copied, (a, b, y)))
    readable = readable and inners > 0 and not inners % (_ALIGNED // a.element_size())
    # halves of which a tile's columns share a scale
    whole = format != "block" or paired != "one by one" or (wide > 0 and not columns % width)
    if not wide or not rows or not columns or not experts or bias is not None or not readable or not whole:
        grouped_mm.multiply(
            step,
            a,
            b,
            offsets,
            y,
            bias=bias,
            scale_a=scale_a,
            scale_b=scale_b,
            gather=gather,
            format=format,
            shared=shared,
            gate=gate,
            halves=halves,
        )
        return
    across = cdiv(columns, width)
    tiles = (cdiv(rows, ROWS.value * options["CONSUMERS"]) + experts) * across
    row_stride = a.stride(0) if a.shape[0] > 1 else _ALIGNED // a.element_size()
    registers = options.pop("REGISTERS")[gather is not None]
    launch(
        grouped,
        (min(tiles, how.programs), 1),
        _described(a, [*a.shape], [row_stride, 1], (ROWS.value, block_k)) if gather is None else a,
        _of_matrices(b, (wide, block_k), gate, halves),
        _of_results(y, wide // 2),
        offsets,
        scale_a,
        scale_b,
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
        *((0, 0) if scale_a is None else scale_a.stride()),
        *((0, 0, 0) if scale_b is None else scale_b.stride()),
        LANES=max(power_above(experts - 1), _FEWEST_LANES),
        BLOCK_K=block_k,
        GATE=gate,
        PAIRED=paired,
        FORMAT=format,
        EVEN=inners % block_k == 0,
        CONSUMER_REGISTERS=registers[0],
        PRODUCER_REGISTERS=registers[1],
        **options,
    )


def grouped_mm_hopper(
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    *,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    gather: Tensor | None = None,
    format: str = "none",
    out: Tensor | None = None,
) -> Tensor:
    """``grouped_mm`` of float16, bfloat16 or float8 numbers.

    Raises:
        ArgumentValueError: scales are not given as ``format`` says.
    """
    how: dict[str, Any] = {"bias": bias, "scale_a": scale_a, "scale_b": scale_b, "gather": gather, "format": format}
    return grouped_mm.product(multiply, a, b, offsets, out, **how)
