"""Narrow numbers in kernels: float8, e2m1 and e8m0 as bytes, the scales of blocks, and where blocks lie.

Kernels see narrow tensors as bytes: Triton has no e8m0 or e2m1, and float8 not for every target. A conversion is the
hardware's where ``_NATIVE`` names it, and integer arithmetic elsewhere: rounded to nearest, ties to even.
"""
# pyright: reportAssignmentType=false
# In a jit function, `name: tl.constexpr = 1` makes a constexpr of the number.

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import cdiv, launch, processor, program_index
from portakernel_plugins.triton.launching.configurations import configuration

# Where instructions convert between float32 and float8, by prefixes of archs.
_OCP = ("sm_89", "sm_9", "sm_1", "gfx950", "gfx12")
_FNUZ = ("gfx942",)
_NATIVE: Mapping[str, tuple[str, ...]] = {
    "float8_e4m3fn": _OCP,
    "float8_e5m2": _OCP,
    "float8_e4m3fnuz": _FNUZ,
    "float8_e5m2fnuz": _FNUZ,
}


def conversion(dtype: str, device: torch.device) -> Mapping[str, Any]:
    """How ``device`` converts from and to ``dtype``: the constants of ``narrowed``, ``widened``, ``divided``."""
    return conversion_on(dtype, processor(device).arch)


@cache
def conversion_on(dtype: str, arch: str) -> Mapping[str, Any]:
    """The constants for an arch that need not be here.

    ``CAST``: ``bits`` where integer arithmetic converts; else the hardware does, and ``saturating`` where that clamps.
    ``FUSED``: whether ``tl.fma`` rounds once, which Triton's interpreter has not always done.
    """
    native = arch.startswith(_NATIVE.get(dtype, ()))
    cast = "bits" if not native else "saturating" if arch.startswith("sm_") else "plain"
    return {"FORMAT": dtype, "CAST": cast, "FUSED": arch != "interpreter"}


# --- formats, while a kernel is compiled -----------------------------------------------------------------------------


@triton.constexpr_function
def _fraction_bits(dtype: str) -> int:
    return 1 if dtype == "float4_e2m1fn_x2" else 3 if "e4m3" in dtype else 2


@triton.constexpr_function
def _bias(dtype: str) -> int:
    if dtype == "float4_e2m1fn_x2":
        return 1
    return (7 if "e4m3" in dtype else 15) + dtype.endswith("uz")


@triton.constexpr_function
def _sign_bit(dtype: str) -> int:
    return 8 if dtype == "float4_e2m1fn_x2" else 0x80


@triton.constexpr_function
def _without_negative_zero(dtype: str) -> bool:
    return dtype.endswith("uz")


@triton.constexpr_function
def largest_number(dtype: str) -> float:
    """The largest number of a float8 dtype."""
    return 57344.0 if "e5m2" in dtype else 240.0 if dtype.endswith("uz") else 448.0


@triton.constexpr_function
def _largest_exponent(dtype: str) -> int:
    return 2 if dtype == "float4_e2m1fn_x2" else 15 if "e5m2" in dtype else 7 if dtype.endswith("uz") else 8


@triton.constexpr_function
def _cast_type(dtype: str) -> tl.dtype:
    if dtype.endswith("uz"):
        return tl.float8e4b8 if "e4m3" in dtype else tl.float8e5b16
    return tl.float8e4nv if "e4m3" in dtype else tl.float8e5


# --- numbers ---------------------------------------------------------------------------------------------------------


@triton.jit
def narrowed(x: tl.tensor, FORMAT: tl.constexpr, CAST: tl.constexpr):
    """The float8 codes, uint8, of float32 numbers: rounded to nearest, ties to even, clamped to the largest."""
    LARGEST: tl.constexpr = largest_number(FORMAT)
    if CAST == "bits":
        KEPT: tl.constexpr = _fraction_bits(FORMAT)
        BIAS: tl.constexpr = _bias(FORMAT)
        CUT: tl.constexpr = 23 - KEPT
        bits = x.to(tl.int32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        size = tl.minimum(magnitude.to(tl.float32, bitcast=True), LARGEST)
        size_bits = size.to(tl.int32, bitcast=True)
        # half of what is cut off, less one where the last bit kept is even: rounds to nearest, ties to even
        normal = (size_bits + ((1 << (CUT - 1)) - 1) + ((size_bits >> CUT) & 1)) >> CUT
        normal -= (127 - BIAS) << KEPT
        # the sum's last bit is worth what that of the dtype's subnormal numbers is: the addition rounds
        POWER: tl.constexpr = 24 - BIAS - KEPT
        subnormal = (size + 2.0**POWER).to(tl.int32, bitcast=True) - ((127 + POWER) << 23)
        code = tl.where(size_bits < ((128 - BIAS) << 23), subnormal, normal)
        signed = code | ((bits >> 24) & 0x80)
        if _without_negative_zero(FORMAT):
            # that code is NaN's
            signed = tl.where(code == 0, 0, signed)
            signed = tl.where(magnitude > 0x7F800000, 0x80, signed)
        else:
            signed = tl.where(magnitude > 0x7F800000, 0x7F, signed)
        narrow = signed.to(tl.uint8)
    else:
        if CAST != "saturating":
            x = tl.clamp(x, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
        narrow = x.to(_cast_type(FORMAT)).to(tl.uint8, bitcast=True)
    return narrow


@triton.jit
def widened(code: tl.tensor, FORMAT: tl.constexpr, CAST: tl.constexpr):
    """The float32 numbers of uint8 codes, exact."""
    KEPT: tl.constexpr = _fraction_bits(FORMAT)
    BIAS: tl.constexpr = _bias(FORMAT)
    SIGN: tl.constexpr = _sign_bit(FORMAT)
    bits = code.to(tl.int32)
    size = bits & (SIGN - 1)
    if CAST != "bits":
        x = code.to(_cast_type(FORMAT), bitcast=True).to(tl.float32)
    elif FORMAT == "float8_e5m2fnuz":  # it has numbers where a float16 has infinities
        normal = ((size << 21) + ((127 - BIAS) << 23)).to(tl.float32, bitcast=True)
        x = tl.where(size < 4, size.to(tl.float32) * 2.0 ** (1 - BIAS - KEPT), normal)
        x = tl.where(bits > 0x80, -x, x)
        x = tl.where(bits == 0x80, float("nan"), x)
    else:
        # the fields at their places in a float16: subnormal numbers there are not flushed, and the bias alone differs
        half = ((bits & SIGN) * (0x8000 // SIGN)) | (size << (10 - KEPT))
        x = half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 2.0 ** (15 - BIAS)
        if FORMAT == "float8_e4m3fn":
            x = tl.where(size == 0x7F, float("nan"), x)
        elif FORMAT == "float8_e4m3fnuz":
            x = tl.where(bits == 0x80, float("nan"), x)
    return x


@triton.jit
def widened_power(code: tl.tensor):
    """The float32 numbers of float8_e8m0fnu codes: 2 ** (code - 127), NaN for 255."""
    wide = code.to(tl.int32)
    bits = tl.where(wide == 0, 0x00400000, wide << 23)
    return tl.where(wide == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def divided(x: tl.tensor, divisor: tl.tensor, reciprocal: tl.tensor, FUSED: tl.constexpr):
    """``x / divisor`` as IEEE 754 has it, with ``reciprocal`` the rounded one of a divisor that many share.

    Markstein's theorem: the remainder of the approximate quotient is exact, and corrects it. It asks for a quotient
    and a remainder that do not underflow: tiny ones round to zero in all narrow dtypes.
    """
    if FUSED:
        quotient = x * reciprocal
        quotient = tl.fma(tl.fma(-quotient, divisor, x), reciprocal, quotient)
    else:
        quotient = tl.div_rn(x, divisor)
    return quotient


# --- scales ----------------------------------------------------------------------------------------------------------


@triton.jit
def magnitude(x: tl.tensor):
    """The bits of ``abs(x)``, float32, in int32: ordered as the magnitudes, above them infinity, above that NaN."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def largest_scale(largest_magnitude: tl.tensor, LARGEST: tl.constexpr):
    """``amax / LARGEST``, 1 below 2**-100; NaN where something was not finite."""
    bits = tl.where(largest_magnitude >= 0x7F800000, 0x7FC00000, largest_magnitude)
    scale = tl.div_rn(bits.to(tl.float32, bitcast=True), LARGEST)
    return tl.where(scale < 2.0**-100, 1.0, scale)


@triton.jit
def quantized(x: tl.tensor, FORMAT: tl.constexpr, CAST: tl.constexpr, FUSED: tl.constexpr):
    """The float8 codes, uint8, of float32 rows ``(groups, elements)``, and the scale that each row shares."""
    s = largest_scale(tl.max(magnitude(x), axis=1), largest_number(FORMAT))
    quotient = divided(x, s[:, None], tl.div_rn(1.0, s)[:, None], FUSED)
    return narrowed(quotient, FORMAT, CAST), s


@triton.jit
def power_scale(largest_magnitude: tl.tensor, FORMAT: tl.constexpr):
    """``2 ** (floor(log2(amax)) - emax(FORMAT))``: its code in float8_e8m0fnu, and its reciprocal in float32."""
    exponent = largest_magnitude >> 23
    code = tl.where(exponent == 255, 255, tl.maximum(exponent - _largest_exponent(FORMAT), 0))
    reciprocal = tl.where(exponent == 255, 0x7FC00000, (254 - code) << 23).to(tl.float32, bitcast=True)
    return code.to(tl.uint8), reciprocal


@triton.jit(do_not_specialize=["rows", "tiles"])
def _maxima(
    x: tl.tensor,
    partial: tl.tensor,  # (programs,) int32
    rows: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    tiles: tl.tensor,
    tiles_across: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    program = program_index()
    largest = tl.full((BLOCK_M, BLOCK_N), 0, tl.int32)
    for tile in range(program, tiles, tl.num_programs(0)):
        row = tile // tiles_across * BLOCK_M + tl.arange(0, BLOCK_M)
        column = tile % tiles_across * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        block = tl.load(x + row[:, None] * stride + column[None, :], mask=inside, other=0.0)
        largest = tl.maximum(largest, magnitude(block.to(tl.float32)))
    tl.store(partial + program, tl.max(tl.max(largest, axis=1), axis=0))


@triton.jit
def largest_of(partial: tl.tensor, count: tl.tensor, PARTIALS: tl.constexpr):
    """The largest magnitude in all of a tensor, from what ``maxima`` left."""
    index = tl.arange(0, PARTIALS)
    return tl.max(tl.load(partial + index, mask=index < count, other=0), axis=0)


def maxima(x: Tensor, rows: int, columns: int, stride: int) -> tuple[Tensor, int]:
    """The largest magnitudes, as int32 bits, of parts of ``x``: ``(P,)``; and P rounded up to the same power of two.

    That power depends on the device alone. No atomics: whatever the order, the largest of the largest is the same.
    """
    if stride == columns:
        rows, columns = 1, rows * columns
    how = configuration("float8.maxima", x.device, columns)
    width = min(how.columns, how.elements)
    tiles_across = cdiv(columns, width)
    tiles = cdiv(rows, how.rows) * tiles_across
    programs = max(1, min(tiles, how.programs))
    partial = torch.empty(programs, dtype=torch.int32, device=x.device)
    args = (x, partial, rows, columns, stride, tiles, max(1, tiles_across))
    launch(_maxima, (programs, 1), *args, BLOCK_M=how.rows, BLOCK_N=width, **how.options)
    return partial, 1 << (how.programs - 1).bit_length()


# --- places ----------------------------------------------------------------------------------------------------------


@triton.jit
def group_places(
    rows: tl.tensor,
    columns: tl.tensor,
    per_row: tl.tensor,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    FLAT: tl.constexpr,
):
    """Of this program's ``GROUPS`` groups of ``GROUP`` elements: number, row, first column, and elements there are.

    Groups are numbered along rows, ``per_row`` in each, of which the last may be shorter. All int64. ``FLAT``: one row.
    """
    first = program_index() * GROUPS
    if FLAT:
        number = first + tl.arange(0, GROUPS)
        row = number * 0
        column = number * GROUP
        left = columns - column
    else:
        number = first + tl.arange(0, GROUPS)
        above = first // per_row
        # divisions of vectors are in 32 bits
        local = (first - above * per_row).to(tl.int32) + tl.arange(0, GROUPS)
        down = local // per_row
        row = above + down
        column = (local - down * per_row).to(tl.int64) * GROUP
        # a product, because what a selection is divisible by Triton does not see: masks would forbid wide accesses
        left = (columns - column) * (row < rows).to(tl.int64)
    return number, row, column, left


def flattened(rows: int, columns: int, stride: int, group: int) -> tuple[int, int, bool]:
    """``(rows, columns, flat)`` as ``group_places`` takes them: one row where groups follow each other in memory."""
    if stride == columns and columns % group == 0:
        return 1, rows * columns, True
    return rows, columns, False


# --- tensors ---------------------------------------------------------------------------------------------------------


def memory(out: Tensor | None, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Contiguous memory for a result on the device of ``x``: ``out`` where that is contiguous."""
    # torch.empty takes half as long again
    return out if out is not None and out.is_contiguous() else x.new_empty(shape, dtype=dtype)
