"""The gradients of ``linear_cross_entropy`` in Triton.

With ``z = x @ weight.T``, ``t`` a row's target, ``s`` the label smoothing and ``q = (1 - s) * [class is t] + s / V``:

    d           = g * (exp(z - lse) - q)               g: gradient of loss; 0 where t is ignored
    grad_x      = d @ weight
    grad_weight = d.T @ x

z is formed again, for as many classes at once as the configuration has room for; d of them is left in memory, and
multiplied with both factors. Parts are of classes and not of rows because then an element of ``grad_weight`` is one
sum, rounded once, and only ``grad_x``, the smaller one where logits are a burden, carries float32 sums from part to
part. A part begins with what the one before has left, so that the sum is the same in whatever parts it is taken.

d has the precision of the inputs' dtype, which tensor cores take, and always the range of float32: bfloat16 numbers for
bfloat16 inputs, and for float16 ones float32 numbers rounded to TF32, which has as many digits.
"""
# pyright: reportGeneralTypeIssues=false, reportPossiblyUnboundVariable=false
# Python's types do not see that Triton iterates over its ranges, and which branches of compile-time values it takes.

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import contiguous_like
from portakernel.authoring.triton import cdiv
from portakernel_plugins.triton.exponentials import exponential
from portakernel_plugins.triton.launching.configurations import Configuration, configuration
from portakernel_plugins.triton.losses.linear_cross_entropy import tiles_for
from portakernel_plugins.triton.matrix.products import halves, launch_tiles, operand, tile_corner, tile_product

# Parts are multiples of as many classes: of every tile's, so that sums are grouped alike in all of them.
_CLASSES = 256
# And no smaller than this: a shorter sum would wait for the memory that carries it.
_FEWEST_CLASSES = 4096
# d's rows begin at multiples of as many elements, so that the widest accesses take them.
_ALIGNED = 16


@triton.jit
def _to_tf32(x: tl.tensor):
    """Rounded to the digits of TF32, to nearest, ties to even: tensor cores would cut what is beyond."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & -0x2000
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, x, rounded.to(tl.float32, bitcast=True))


@triton.jit(do_not_specialize=["rows", "first", "ignore_index", "steps"])
def _gradient(
    x: tl.tensor,
    weight: tl.tensor,  # of the classes from ``first`` on
    target: tl.tensor,
    grad_loss: tl.tensor,
    lse: tl.tensor,
    d: tl.tensor,
    first: tl.tensor,
    target_stride: tl.tensor,
    grad_loss_stride: tl.tensor,
    d_stride: tl.tensor,
    ignore_index: tl.tensor,
    hot: tl.tensor,  # q of the target
    cold: tl.tensor,  # q of other classes
    rows: tl.tensor,
    classes: tl.tensor,
    width: tl.tensor,
    steps: tl.tensor,
    x_outer: tl.tensor,
    x_inner: tl.tensor,
    weight_outer: tl.tensor,
    weight_inner: tl.tensor,
    TF32: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    FLATTEN: tl.constexpr,
    FORM_A: tl.constexpr,
    FORM_B: tl.constexpr,
    EVEN: tl.constexpr,
    WIDEN: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    a = operand(x, rows, width, x_outer, x_inner, BLOCK_M, BLOCK_K, FORM_A)
    b = operand(weight, classes, width, weight_outer, weight_inner, BLOCK_N, BLOCK_K, FORM_B)
    if FORM_A != "pointers":
        into = tl.make_tensor_descriptor(d, [rows, classes], [d_stride, 1], [BLOCK_M, BLOCK_N // 2])
    tiles = tl.cdiv(rows, BLOCK_M) * tl.cdiv(classes, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        first_row, first_class = tile_corner(tile, rows, classes, BLOCK_M, BLOCK_N, GROUP)
        z = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
        z = tile_product(
            z, a, b, first_row, first_class, steps, BLOCK_K, FORM_A, FORM_B, EVEN, WIDEN, PRECISION
        )  # fmt: skip
        row = (first_row + tl.arange(0, BLOCK_M)).to(tl.int64)
        in_rows = row < rows
        t = tl.load(target + row * target_stride, mask=in_rows, other=0).to(tl.int64)
        ignored = t == ignore_index
        # 32 bits hold a class's place; a target that is elsewhere must not become one
        place = tl.where((t >= first) & (t < first + classes), t - first, -1).to(tl.int32)
        scale = tl.load(grad_loss + row * grad_loss_stride, mask=in_rows, other=0.0)
        row_lse = tl.load(lse + row, mask=in_rows, other=0.0)
        sides = halves(z)
        for side in tl.static_range(2):
            first_column = first_class + side * (BLOCK_N // 2)
            column = first_column + tl.arange(0, BLOCK_N // 2)
            p = exponential(sides[side] - row_lse[:, None])
            value = scale[:, None] * (p - tl.where(column[None, :] == place[:, None], hot, cold))
            # written, not multiplied by zero: an ignored row may hold NaN
            value = tl.where(ignored[:, None], 0.0, value)
            if TF32:
                value = _to_tf32(value)
            value = value.to(d.dtype.element_ty)
            if FORM_A != "pointers":
                into.store([first_row, first_column], value)
            else:
                inside = in_rows[:, None] & (column < classes)[None, :]
                tl.store(d + row[:, None] * d_stride + column[None, :], value, mask=inside)


@triton.jit(do_not_specialize=["steps"])
def _product(
    a: tl.tensor,
    b: tl.tensor,
    carried: tl.tensor,  # (tiles, BLOCK_M, BLOCK_N) float32, sums between launches for one. None: this one is alone
    out: tl.tensor,  # (R, C), contiguous
    rows: tl.tensor,
    columns: tl.tensor,
    inners: tl.tensor,
    steps: tl.tensor,
    a_outer: tl.tensor,
    a_inner: tl.tensor,
    b_outer: tl.tensor,
    b_inner: tl.tensor,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    FLATTEN: tl.constexpr,
    FORM_A: tl.constexpr,
    FORM_B: tl.constexpr,
    EVEN: tl.constexpr,
    WIDEN: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    left = operand(a, rows, inners, a_outer, a_inner, BLOCK_M, BLOCK_K, FORM_A)
    right = operand(b, columns, inners, b_outer, b_inner, BLOCK_N, BLOCK_K, FORM_B)
    tiles = tl.cdiv(rows, BLOCK_M) * tl.cdiv(columns, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        first_row, first_column = tile_corner(tile, rows, columns, BLOCK_M, BLOCK_N, GROUP)
        # a tile's own place: with constant strides, addresses take no registers
        within = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        if FIRST:
            z = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
        else:
            z = tl.load(carried + tl.cast(tile, tl.int64) * (BLOCK_M * BLOCK_N) + within)
        z = tile_product(
            z, left, right, first_row, first_column, steps, BLOCK_K, FORM_A, FORM_B, EVEN, WIDEN, PRECISION
        )  # fmt: skip
        if LAST:
            row = first_row + tl.arange(0, BLOCK_M)
            sides = halves(z)
            for side in tl.static_range(2):
                column = first_column + side * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
                inside = (row < rows)[:, None] & (column < columns)[None, :]
                at = out + row.to(tl.int64)[:, None] * columns + column[None, :]
                tl.store(at, sides[side].to(out.dtype.element_ty), mask=inside)
        else:
            tl.store(carried + tl.cast(tile, tl.int64) * (BLOCK_M * BLOCK_N) + within, z)


def class_parts(rows: int, classes: int, how: Configuration) -> Iterator[slice]:
    """The classes whose d is in memory at once, all parts but the last of one size."""
    most = max(_FEWEST_CLASSES, how.elements // rows)
    equal = cdiv(classes, cdiv(classes, most))
    size = cdiv(equal, _CLASSES) * _CLASSES
    return (slice(start, min(start + size, classes)) for start in range(0, classes, size))


def _carried(rows: int, columns: int, how: Configuration, like: Tensor) -> Tensor:
    """Memory for the sums of all tiles of ``(rows, columns)``."""
    height, width = how.options["BLOCK_M"], how.options["BLOCK_N"]
    return like.new_empty(cdiv(rows, height) * cdiv(columns, width), height, width, dtype=torch.float32)


def backward(
    grad_loss: Tensor,
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    lse: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float = 0.0,
    needs: tuple[bool, bool, bool] = (True, True, False),
) -> tuple[Tensor | None, Tensor | None, None]:
    """The gradients for ``x`` and ``weight`` that ``needs`` asks for: contiguous, each rounded once.

    Arguments as in forward; ``lse``: ``(M,)`` float32, from forward; ``grad_loss``: ``(...)`` float32, any strides.
    """
    rows, (classes, width) = target.numel(), weight.shape
    grad_x = contiguous_like(x) if needs[0] else None
    grad_weight = contiguous_like(weight) if needs[1] else None
    if not (rows and width):
        return grad_x, grad_weight if grad_weight is None else grad_weight.zero_(), None
    if grad_x is None and grad_weight is None:
        return None, None, None

    matrix, targets, scales = x.reshape(rows, width), target.reshape(rows), grad_loss.reshape(rows)
    parts = list(class_parts(rows, classes, configuration("linear_cross_entropy.d", x.device, width)))
    dtype = torch.bfloat16 if x.dtype is torch.bfloat16 else torch.float32
    d = x.new_empty(rows, cdiv(parts[0].stop, _ALIGNED) * _ALIGNED, dtype=dtype)
    forms_d, multiplies = tiles_for("gradient", x, width), tiles_for("product", d, width)
    carried = _carried(rows, width, multiplies, x) if grad_x is not None and len(parts) > 1 else None
    for part in parts:
        some = weight[part]
        launch_tiles(
            _gradient,
            forms_d,
            matrix,
            some,
            targets,
            scales,
            lse,
            d,
            part.start,
            targets.stride(0),
            scales.stride(0),
            d.stride(0),
            ignore_index,
            1.0 - label_smoothing + label_smoothing / classes,
            label_smoothing / classes,
            TF32=x.dtype is torch.float16,
        )
        here = d[:, : part.stop - part.start]
        if grad_x is not None:
            ends = {"FIRST": part is parts[0], "LAST": part is parts[-1]}
            launch_tiles(_product, multiplies, here, some.T, carried, grad_x, **ends)
        if grad_weight is not None:
            launch_tiles(_product, multiplies, here.T, matrix.T, None, grad_weight[part], FIRST=True, LAST=True)
    return grad_x, grad_weight, None
