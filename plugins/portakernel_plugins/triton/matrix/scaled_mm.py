"""``scaled_mm`` in Triton: ``(a * scale_a * global_scale_a) @ (b * scale_b * global_scale_b).T + bias``.

Operands are multiplied as they are where tensor cores take them: float8 by ``tl.dot``, and by ``tl.dot_scaled`` formats
whose scales few terms share. Elsewhere a tile's elements are decoded between memory and tensor cores.

Sums are float32. Tensor cores that keep those of float8 in fewer bits have no more than 128 terms added up, and the
rest is float32 addition, unless ``use_fast_accum`` permits otherwise.
"""

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
from portakernel_plugins.triton.matrix.products import (
    form_of,
    is_described,
    launch_programs,
    shared_steps,
    tiles_of,
)
from portakernel_plugins.triton.matrix.scaled_mm_kernel import scaled_product
from portakernel_plugins.triton.matrix.scaled_operands import (
    BLOCKS,
    GROUPS,
)
from portakernel_plugins.triton.quantize.float8 import conversion_on

# Archs whose tensor cores multiply float8 numbers, and of which dtypes both operands may be.
_OCP = ("float8_e4m3fn", "float8_e5m2")
_FNUZ = ("float8_e4m3fnuz", "float8_e5m2fnuz")
_FLOAT8 = {"sm_89": _OCP, "sm_9": _OCP, "sm_1": _OCP, "gfx942": _FNUZ, "gfx950": _OCP, "gfx12": _OCP}
# Of two float8 dtypes Triton before 3.7 has AMD's matrix units take each for the other, or does not compile the product
# (triton#9567): there they are decoded.
_MIXED_ON_AMD = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 7)
# Those that keep their sums in fewer bits than float32 has.
_CUT = ("sm_89", "sm_9", "sm_12")
# Those that apply scales of few terms, and which.
_SCALED = {"sm_10": ("mxfp8", "mxfp4", "nvfp4"), "gfx950": ("mxfp8", "mxfp4")}


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
    launch_programs(scaled_product, how, y.shape[0], y.shape[1], before, after, constants, shared.splits)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _way(arch: str, left: _Operand, right: _Operand) -> str:
    """How tiles are multiplied: ``float8``, ``scaled`` or ``decoded``."""
    shared, dtypes = {left.shared, right.shared}, {left.dtype, right.dtype}
    if shared <= GROUPS.keys():
        # a scale of nvfp4 is a number of another format, and of another number of terms
        alike = shared == {"nvfp4"} or "nvfp4" not in shared
        return "scaled" if alike and shared <= set(_taken(_SCALED, arch)) else "decoded"
    whole = len(dtypes) == 1 or _MIXED_ON_AMD or not arch.startswith("gfx")
    return "float8" if whole and not shared & GROUPS.keys() and dtypes <= set(_taken(_FLOAT8, arch)) else "decoded"


def _taken(table: Mapping[str, tuple[str, ...]], arch: str) -> tuple[str, ...]:
    """What tensor cores of ``arch`` take."""
    return next((taken for start, taken in table.items() if arch.startswith(start)), ())
