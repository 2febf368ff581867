"""``scaled_mm`` in Triton: ``(a * scale_a * global_scale_a) @ (b * scale_b * global_scale_b).T + bias``.

Operands are multiplied as they are where tensor cores take them: float8 by ``tl.dot``, and by ``tl.dot_scaled`` formats
whose scales few terms share. Elsewhere a tile's elements are decoded between memory and tensor cores.

Sums are float32. Tensor cores that keep those of float8 in fewer bits have no more than 128 terms added up, and the
rest is float32 addition, unless ``use_fast_accum`` permits otherwise.
"""
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false, reportPossiblyUnboundVariable=false
# Python's types do not see that Triton iterates over its ranges, and which branches of compile-time values it takes.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import as_bytes, delivered
from portakernel.authoring.triton import cdiv, processor
from portakernel_plugins.triton.matrix.ahead import begin_early
from portakernel_plugins.triton.matrix.products import (
    form_of,
    halves,
    is_described,
    launch_programs,
    operand,
    part_of_tile,
    read_block,
    result,
    shared_steps,
    tile_corner,
    tiles_of,
    write_block,
)
from portakernel_plugins.triton.matrix.scaled_operands import (
    BLOCKS,
    GROUPS,
    block_scales,
    decoded_block,
    elements_of,
    format_of,
    group_of,
    group_scales,
    scaled_part,
    scales_of_tile,
    sum_factors,
    terms_at_once,
)
from portakernel_plugins.triton.quantize.float8 import conversion_on

# Archs whose tensor cores multiply float8 numbers, and of which dtypes both operands may be.
_OCP = ("float8_e4m3fn", "float8_e5m2")
_FNUZ = ("float8_e4m3fnuz", "float8_e5m2fnuz")
_FLOAT8 = {"sm_89": _OCP, "sm_9": _OCP, "sm_1": _OCP, "gfx942": _FNUZ, "gfx950": _OCP, "gfx12": _OCP}
# Those that keep their sums in fewer bits than float32 has.
_CUT = ("sm_89", "sm_9", "sm_12")
# Those that apply scales of few terms, and which.
_SCALED = {"sm_10": ("mxfp8", "mxfp4", "nvfp4"), "gfx950": ("mxfp8", "mxfp4")}
# Terms after which sums that are cut are added up in float32.
_MOST_CUT = tl.constexpr(128)


@triton.jit
def _sums(
    z,
    a,
    b,
    scales_a,
    scales_b,
    row,
    column,
    first,  # the step of the first terms
    steps,
    BLOCK_K: tl.constexpr,
    FORM_A: tl.constexpr,
    FORM_B: tl.constexpr,
    EVEN_A: tl.constexpr,
    EVEN_B: tl.constexpr,
    SHARED_A: tl.constexpr,
    SHARED_B: tl.constexpr,
    FORMAT_A: tl.constexpr,
    FORMAT_B: tl.constexpr,
    CAST_A: tl.constexpr,
    CAST_B: tl.constexpr,
    SWIZZLED: tl.constexpr,
    HOW: tl.constexpr,
    NUMBERS: tl.constexpr,
    PROMOTED: tl.constexpr,
):
    """``z`` and the tile's sums; without the scales that are applied at the end."""
    BLOCK_M: tl.constexpr = z.shape[0]
    BLOCK_N: tl.constexpr = z.shape[1]
    PACKED_A: tl.constexpr = elements_of(FORMAT_A)
    PACKED_B: tl.constexpr = elements_of(FORMAT_B)
    GROUP_A: tl.constexpr = group_of(SHARED_A)
    GROUP_B: tl.constexpr = group_of(SHARED_B)
    COUNT_A: tl.constexpr = scales_of_tile(SHARED_A, BLOCK_M)
    COUNT_B: tl.constexpr = scales_of_tile(SHARED_B, BLOCK_N)
    TERMS: tl.constexpr = terms_at_once(BLOCK_K, SHARED_A, SHARED_B)
    ahead_a = block_scales(scales_a, row, first * BLOCK_K, BLOCK_M, SHARED_A)
    ahead_b = block_scales(scales_b, column, first * BLOCK_K, BLOCK_N, SHARED_B)
    tl.assume(steps > 0)  # or else a loop for none were compiled too
    for step in range(steps):
        for i in tl.static_range(BLOCK_K // TERMS):
            inner = (first + step) * BLOCK_K + i * TERMS
            # read where they are needed, the next sums would wait for them
            of_rows, of_columns = ahead_a, ahead_b
            ahead_a = block_scales(scales_a, row, inner + TERMS, BLOCK_M, SHARED_A)
            ahead_b = block_scales(scales_b, column, inner + TERMS, BLOCK_N, SHARED_B)
            if HOW == "decoded":
                left = decoded_block(
                    a, scales_a, row, inner, BLOCK_M, TERMS, FORM_A, EVEN_A, SHARED_A, SWIZZLED, FORMAT_A, CAST_A,
                    NUMBERS,
                )  # fmt: skip
                right = decoded_block(
                    b, scales_b, column, inner, BLOCK_N, TERMS, FORM_B, EVEN_B, SHARED_B, SWIZZLED, FORMAT_B, CAST_B,
                    NUMBERS,
                ).T  # fmt: skip
            else:
                left = read_block(a, row, inner // PACKED_A, BLOCK_M, TERMS // PACKED_A, FORM_A, EVEN_A, False)
                right = read_block(b, column, inner // PACKED_B, BLOCK_N, TERMS // PACKED_B, FORM_B, EVEN_B, True)
            if HOW == "scaled":
                left_scales = group_scales(scales_a, row, inner, BLOCK_M, TERMS, GROUP_A, SWIZZLED)
                right_scales = group_scales(scales_b, column, inner, BLOCK_N, TERMS, GROUP_B, SWIZZLED)
                if SHARED_A == "nvfp4":
                    left_scales = left_scales.to(tl.float8e4nv, bitcast=True)
                    right_scales = right_scales.to(tl.float8e4nv, bitcast=True)
                z = tl.dot_scaled(
                    left, left_scales, format_of(FORMAT_A), right, right_scales, format_of(FORMAT_B), acc=z
                )  # fmt: skip
            elif PROMOTED or COUNT_A + COUNT_B > 0:
                # said to be cut, the sum is not taken for the beginning of the next
                part = tl.dot(left, right, input_precision="ieee", max_num_imprecise_acc=min(TERMS, _MOST_CUT))
                z += scaled_part(part, of_rows, of_columns, COUNT_A, COUNT_B)
            else:
                z = tl.dot(left, right, z, input_precision="ieee")
    return z


@triton.jit(do_not_specialize=["rows", "steps", "splits", "share"])
def _scaled_product(
    a: tl.tensor,
    b: tl.tensor,
    scale_a: tl.tensor,
    scale_b: tl.tensor,
    global_scale_a: tl.tensor,  # None: 1
    global_scale_b: tl.tensor,  # None: 1
    bias: tl.tensor,  # None: 0
    y: tl.tensor,  # (rows, columns), contiguous
    parts: tl.tensor,  # (splits, tiles, BLOCK_M * BLOCK_N) float32. None: one split
    counters: tl.tensor,
    bias_stride: tl.tensor,
    splits: tl.tensor,
    share: tl.tensor,  # steps of a split
    rows: tl.tensor,
    columns: tl.tensor,
    inners_a: tl.tensor,  # bytes
    inners_b: tl.tensor,
    groups_a: tl.tensor,  # scales of a row
    groups_b: tl.tensor,
    steps: tl.tensor,
    a_stride: tl.tensor,
    b_stride: tl.tensor,
    scale_a_outer: tl.tensor,
    scale_a_inner: tl.tensor,
    scale_b_outer: tl.tensor,
    scale_b_inner: tl.tensor,
    SHARED_A: tl.constexpr,  # the format: which elements share a scale
    SHARED_B: tl.constexpr,
    FORMAT_A: tl.constexpr,
    FORMAT_B: tl.constexpr,
    CAST_A: tl.constexpr,
    CAST_B: tl.constexpr,
    SWIZZLED: tl.constexpr,
    HOW: tl.constexpr,  # float8 and scaled: as they are; decoded: as NUMBERS
    NUMBERS: tl.constexpr,
    PROMOTED: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    FLATTEN: tl.constexpr,
    FORM_A: tl.constexpr,
    FORM_B: tl.constexpr,
    FORM_Y: tl.constexpr,
    EVEN_A: tl.constexpr,
    EVEN_B: tl.constexpr,
    OVERLAP: tl.constexpr = False,  # pyright: ignore[reportArgumentType] - programs begin before the kernel before ends
    FETCH: tl.constexpr = False,  # pyright: ignore[reportArgumentType] - L2 is told of the weight first
) -> None:
    terms = (share if SPLIT else steps) * (BLOCK_K // elements_of(FORMAT_B))
    begin_early(b, b_stride, rows, columns, inners_b, terms, BLOCK_M, BLOCK_N, GROUP, OVERLAP, FETCH)
    TERMS: tl.constexpr = terms_at_once(BLOCK_K, SHARED_A, SHARED_B)
    left = operand(a, rows, inners_a, a_stride, 1, BLOCK_M, TERMS // elements_of(FORMAT_A), FORM_A)
    right = operand(b, columns, inners_b, b_stride, 1, BLOCK_N, TERMS // elements_of(FORMAT_B), FORM_B)
    scales_a = scale_a, rows, groups_a, scale_a_outer, scale_a_inner
    scales_b = scale_b, columns, groups_b, scale_b_outer, scale_b_inner
    into = result(y, rows, columns, BLOCK_M, BLOCK_N // 2, FORM_Y)
    tiles = tl.cdiv(rows, BLOCK_M) * tl.cdiv(columns, BLOCK_N)
    for item in tl.range(tl.program_id(0), tiles * splits, tl.num_programs(0), flatten=FLATTEN):
        tile, split = item % tiles, item // tiles
        first_row, first_column = tile_corner(tile, rows, columns, BLOCK_M, BLOCK_N, GROUP)
        z = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
        begin = split * share if SPLIT else 0
        here = tl.minimum(share, steps - begin) if SPLIT else steps
        z = _sums(
            z, left, right, scales_a, scales_b, first_row, first_column, begin, here, BLOCK_K, FORM_A, FORM_B, EVEN_A,
            EVEN_B, SHARED_A, SHARED_B, FORMAT_A, FORMAT_B, CAST_A, CAST_B, SWIZZLED, HOW, NUMBERS, PROMOTED,
        )  # fmt: skip
        if SPLIT:
            z, last = part_of_tile(z, parts, counters, tile, tiles, split, splits, first_row, rows)
            if last:
                _write(
                    z, into, scales_a, scales_b, global_scale_a, global_scale_b, bias, bias_stride, first_row,
                    first_column, rows, columns, SHARED_A, SHARED_B, FORM_Y,
                )  # fmt: skip
        else:
            _write(
                z, into, scales_a, scales_b, global_scale_a, global_scale_b, bias, bias_stride, first_row,
                first_column, rows, columns, SHARED_A, SHARED_B, FORM_Y,
            )  # fmt: skip


@triton.jit
def _write(
    z,
    into,
    scales_a,
    scales_b,
    global_scale_a,
    global_scale_b,
    bias,
    bias_stride,
    first_row,
    first_column,
    rows,
    columns,
    SHARED_A: tl.constexpr,
    SHARED_B: tl.constexpr,
    FORM_Y: tl.constexpr,
):
    """What follows a tile's sums: scales of rows and of whole operands, and the bias; a half after the other."""
    WIDTH: tl.constexpr = z.shape[1] // 2
    of_rows = sum_factors(scales_a, global_scale_a, first_row, z.shape[0], SHARED_A)
    sides = halves(z)
    for side in tl.static_range(2):
        first = first_column + side * WIDTH
        of_columns = sum_factors(scales_b, global_scale_b, first, WIDTH, SHARED_B)
        value = sides[side] * of_rows[:, None] * of_columns[None, :]
        if bias is not None:
            column = (first + tl.arange(0, WIDTH)).to(tl.int64)
            added = tl.load(bias + column * bias_stride, mask=column < columns, other=0.0)
            value += added.to(tl.float32)[None, :]
        write_block(into, first_row, first, rows, columns, value, FORM_Y)


def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    global_scale_a: Tensor | None,
    global_scale_b: Tensor | None,
    format_a: str,
    format_b: str,
    out_dtype: str,
    use_fast_accum: bool,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``(M, N)`` in ``out_dtype``: ``a``: ``(M, K)``, ``b``: ``(N, K)``, their scales as their formats say.

    Any strides; an operand whose last dimension is not dense is copied. ``out``: any strides.
    """
    left = _Operand(a, scale_a, global_scale_a, format_a, _name(a))
    right = _Operand(b, scale_b, global_scale_b, format_b, _name(b))
    return _multiply(left, right, bias, out_dtype, out, fast=use_fast_accum, swizzled=False)


def scaled_mm_groups(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    global_scale_a: Tensor | None,
    global_scale_b: Tensor | None,
    format_a: str,
    format_b: str,
    out_dtype: str,
    use_fast_accum: bool,
    swizzle: str = "none",
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The same where scales may lie as cuBLAS has those of few terms."""
    left = _Operand(a, scale_a, global_scale_a, format_a, _name(a))
    right = _Operand(b, scale_b, global_scale_b, format_b, _name(b))
    return _multiply(left, right, bias, out_dtype, out, fast=use_fast_accum, swizzled=swizzle != "none")


@dataclass(frozen=True, slots=True)
class _Operand:
    """A matrix ``(rows, K)`` in ``dtype``, its scales, and which elements share one."""

    matrix: Tensor
    scale: Tensor
    global_scale: Tensor | None
    shared: str
    dtype: str

    @property
    def elements(self) -> int:
        """Those in a byte."""
        return 2 if self.dtype == "float4_e2m1fn_x2" else 1

    @property
    def terms(self) -> int:
        """K."""
        return self.matrix.shape[1] * self.elements

    def as_read(self, how: str) -> Tensor:
        """The matrix as kernels read it: its codes, but for tensor cores that take float8; rows dense, or copied.

        Tensor cores take float8 along what is summed alone.
        """
        matrix = self.matrix if how == "float8" else as_bytes(self.matrix)
        return matrix if matrix.stride(1) == 1 else matrix.contiguous()

    def scales_as_read(self, swizzled: bool) -> tuple[Tensor, int, tuple[int, int]]:
        """The scales, those that few terms share as bytes; how many a row has; their strides."""
        if self.shared == "tensor":
            return self.scale, 1, (0, 0)
        if self.shared not in GROUPS:
            return self.scale, self.scale.shape[1], (self.scale.stride(0), self.scale.stride(1))
        codes = as_bytes(self.scale)
        codes = codes.contiguous() if swizzled else codes
        return codes, cdiv(self.terms, GROUPS[self.shared]), (codes.stride(0), codes.stride(1))


def _multiply(
    left: _Operand, right: _Operand, bias: Tensor | None, dtype: str, out: Tensor | None, *, fast: bool, swizzled: bool
) -> Tensor:
    shape = left.matrix.shape[0], right.matrix.shape[0]
    y = out
    if y is None or not y.is_contiguous():
        y = left.matrix.new_empty(shape, dtype=getattr(torch, dtype))
    if y.numel():
        arch = processor(y.device).arch
        how = _way(arch, left, right)
        promoted = how == "float8" and not fast and arch.startswith(_CUT)
        # numbers of bfloat16 hold elements, also times a scale that few terms share
        numbers = tl.float32 if arch == "interpreter" else tl.bfloat16
        meta = {"HOW": how, "PROMOTED": promoted, "SWIZZLED": swizzled, "NUMBERS": numbers}
        _launch(left, right, bias, y, meta, arch)
    return delivered(y, out)


def _launch(
    left: _Operand, right: _Operand, bias: Tensor | None, y: Tensor, meta: Mapping[str, Any], arch: str
) -> None:
    """Launch the kernel over the tiles of ``y``; ``meta`` says how tiles are multiplied."""
    both, way = (left, right), meta["HOW"]
    blocked = way == "float8" and any(one.shared in BLOCKS for one in both)
    name = "scaled_mm.blocked" if blocked else "scaled_mm.promoted" if meta["PROMOTED"] else f"scaled_mm.{way}"
    how, a, b = tiles_of(name, left.as_read(way), right.as_read(way), left.terms)
    block_k = how.options["BLOCK_K"]
    scales = [one.scales_as_read(meta["SWIZZLED"]) for one in both]
    shared = shared_steps(how, y.shape[0], y.shape[1], left.terms, y.device)
    constants = {**meta, "FORM_Y": form_of(y, is_described(how)), "SPLIT": shared.splits > 1}
    for side, matrix, one in zip("AB", (a, b), both, strict=True):
        constants[f"FORM_{side}"] = "inner" if form_of(matrix, is_described(how)) == "inner" else "pointers"
        constants[f"EVEN_{side}"] = matrix.numel() > 0 and matrix.shape[1] % (block_k // one.elements) == 0
        constants[f"SHARED_{side}"], constants[f"FORMAT_{side}"] = one.shared, one.dtype
        constants[f"CAST_{side}"] = conversion_on(one.dtype, arch)["CAST"]
    before = (
        *(a, b),
        *(scale for scale, _, _ in scales),
        *(one.global_scale for one in both),
        *(bias, y, shared.parts, shared.counters),
        0 if bias is None else bias.stride(0),
        *(shared.splits, shared.share),
    )
    after = (
        *(a.shape[1], b.shape[1]),
        *(groups for _, groups, _ in scales),
        max(1, cdiv(left.terms, block_k)),
        *(a.stride(0), b.stride(0)),
        *(stride for _, _, strides in scales for stride in strides),
    )
    launch_programs(_scaled_product, how, y.shape[0], y.shape[1], before, after, constants, shared.splits)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _way(arch: str, left: _Operand, right: _Operand) -> str:
    """How tiles are multiplied: ``float8``, ``scaled`` or ``decoded``."""
    shared, dtypes = {left.shared, right.shared}, {left.dtype, right.dtype}
    if shared <= GROUPS.keys():
        # a scale of nvfp4 is a number of another format, and of another number of terms
        alike = shared == {"nvfp4"} or "nvfp4" not in shared
        return "scaled" if alike and shared <= set(_taken(_SCALED, arch)) else "decoded"
    return "float8" if not shared & GROUPS.keys() and dtypes <= set(_taken(_FLOAT8, arch)) else "decoded"


def _taken(table: Mapping[str, tuple[str, ...]], arch: str) -> tuple[str, ...]:
    """What tensor cores of ``arch`` take."""
    return next((taken for start, taken in table.items() if arch.startswith(start)), ())
