"""Matrix products in tiles: what kernels share that multiply on tensor cores and do something else with the result.

Of matrices ``a: (R, I)`` and ``b: (C, I)``, in memory by any strides, a kernel forms tiles of ``a @ b.T: (R, C)``, each
element a sum over all of I, in float32 and in order: its place does not change its bits. Few rows may have such sums
split (``splits.py``), where there are fewer tiles than programs.

A kernel's programs stay and take tile after tile. Operands are read through pointers, or by tensor descriptors where
the configuration says ``DESCRIPTORS`` and the strides allow it: there the hardware copies whole tiles (TMA).
"""
# pyright: reportPrivateUsage=false
# The allocator that is set has no public getter, and so could not be put back (triton 3.6 to 3.9).

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime._allocation import _allocator

from portakernel.authoring.tensors import as_bytes
from portakernel.authoring.triton import cdiv, launch, processor
from portakernel_plugins.triton.launching.configurations import Configuration, configuration
from portakernel_plugins.triton.matrix.splits import room_for_parts, split_count, sum_of_parts

# What an address and all strides but the innermost have to be divisible by, in bytes, for a descriptor.
_DESCRIBED = 16


@triton.jit
def tile_corner(
    tile: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The first row and column of a tile, by its number: ``GROUP`` tiles of one column, then those of the next.

    So programs that run side by side share operands that fit into the L2 cache.
    """
    down = tl.cdiv(rows, BLOCK_M)
    in_group = GROUP * tl.cdiv(columns, BLOCK_N)
    group = tile // in_group
    height = tl.minimum(down - group * GROUP, GROUP)
    place = tile - group * in_group
    return (group * GROUP + place % height) * BLOCK_M, place // height * BLOCK_N


@triton.jit
def operand(
    pointer: tl.tensor,
    outers: tl.tensor,
    inners: tl.tensor,
    outer_stride: tl.tensor,
    inner_stride: tl.tensor,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FORM: tl.constexpr,
):
    """A matrix ``(outers, inners)`` as ``tile_product`` takes it."""
    if FORM == "inner":
        source = tl.make_tensor_descriptor(pointer, [outers, inners], [outer_stride, 1], [BLOCK, BLOCK_K])
    elif FORM == "outer":
        source = tl.make_tensor_descriptor(pointer, [inners, outers], [inner_stride, 1], [BLOCK_K, BLOCK])
    else:
        source = pointer
    return source, outers, inners, outer_stride, inner_stride


@triton.jit
def read_block(
    matrix,
    first: tl.tensor,
    inner: tl.tensor,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FORM: tl.constexpr,
    EVEN: tl.constexpr,
    RIGHT: tl.constexpr,
):
    """``(BLOCK, BLOCK_K)`` of an ``operand``, zeros outside of it; as a ``RIGHT`` factor ``(BLOCK_K, BLOCK)``."""
    source, outers, inners, outer_stride, inner_stride = matrix
    if FORM == "inner":
        block = source.load([first, inner])
        if RIGHT:
            block = block.T
    elif FORM == "outer":
        block = source.load([inner, first])
        if not RIGHT:
            block = block.T
    else:
        # read as it is multiplied: transposed afterwards, tiles would go through registers (triton 3.9, sm_80)
        outer = tl.expand_dims(first + tl.arange(0, BLOCK), 0 if RIGHT else 1)
        lane = tl.expand_dims(tl.arange(0, BLOCK_K), 1 if RIGHT else 0)
        inside = outer < outers
        if not EVEN:
            inside = inside & (inner + lane < inners)
        # what changes from step to step is one number
        source += tl.cast(inner, tl.int64) * inner_stride
        offset = outer.to(tl.int64) * outer_stride + lane.to(tl.int64) * inner_stride
        block = tl.load(source + offset, mask=inside, other=0.0)
    return block


@triton.jit
def tile_product(
    z,
    a,
    b,
    row: tl.tensor,
    column: tl.tensor,
    steps: tl.tensor,
    BLOCK_K: tl.constexpr,
    FORM_A: tl.constexpr,
    FORM_B: tl.constexpr,
    EVEN: tl.constexpr,
    WIDEN: tl.constexpr,
    PRECISION: tl.constexpr,
    first: tl.tensor = 0,
):
    """``z`` and the tile of ``a @ b.T`` that begins at ``row`` and ``column``; ``a`` and ``b`` are ``operand``s.

    Of the terms of so many steps of ``BLOCK_K``, from the step ``first`` on.
    """
    tl.assume(steps > 0)  # or else a loop for none were compiled too
    for step in range(steps):
        inner = (first + step) * BLOCK_K
        left = read_block(a, row, inner, z.shape[0], BLOCK_K, FORM_A, EVEN, False)
        right = read_block(b, column, inner, z.shape[1], BLOCK_K, FORM_B, EVEN, True)
        if WIDEN:
            left, right = left.to(tl.float32), right.to(tl.float32)
        z = tl.dot(left, right, z, input_precision=PRECISION)
    return z


@triton.jit
def part_of_tile(z, parts, counters, tile, tiles, split, splits, first_row, rows):
    """The sum of all parts of a tile of few rows, of which ``z`` is one, and whether it is: the last one has it."""
    row, column = tl.arange(0, z.shape[0]), tl.arange(0, z.shape[1])
    offset = row[:, None] * z.shape[1] + column[None, :]
    live = (first_row + row < rows)[:, None]
    return sum_of_parts(
        z, live, parts, counters, tile, tiles, split, splits, offset, z.shape[0] * z.shape[1], 2
    )  # fmt: skip


@triton.jit
def halves(z):
    """The left and the right half of a tile: what is done with one after the other takes half of the registers."""
    return tl.split(tl.permute(tl.reshape(z, (z.shape[0], 2, z.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def result(
    pointer: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FORM: tl.constexpr,
):
    """A contiguous matrix ``(rows, columns)`` as ``write_block`` takes it; ``FORM`` is "inner" or "pointers"."""
    if FORM == "inner":
        into = tl.make_tensor_descriptor(pointer, [rows, columns], [columns, 1], [BLOCK_M, BLOCK_N])
    else:
        into = pointer
    return into


@triton.jit
def write_block(into, first_row, first_column, rows, columns, value, FORM: tl.constexpr):
    """Stores ``value`` at its place in a ``result``, rounded to its dtype, but for what lies outside."""
    if FORM == "inner":
        into.store([first_row, first_column], value.to(into.dtype))
    else:
        row = (first_row + tl.arange(0, value.shape[0])).to(tl.int64)
        column = first_column + tl.arange(0, value.shape[1])
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        at = into + row[:, None] * columns + column[None, :]
        tl.store(at, value.to(into.dtype.element_ty), mask=inside)


# At most so many rows have tiles of their own, which are as high; and so few of them lower ones.
_FEW_ROWS, _FEWEST_ROWS = 64, 16


def tiles_of(name: str, a: Tensor, b: Tensor, inners: int) -> tuple[Configuration, Tensor, Tensor]:
    """The tiles of an entry for ``a @ b.T``, of ``inners`` terms, and both operands as these tiles are read.

    Where there are fewer large tiles than programs, ``NAME.small`` has more, and ``NAME.smallest`` the most, which are
    taken where all of them run at once. An operand whose rows begin anywhere would be read one element at a time: it is
    copied, which takes less than a product of many rows would lose. Few rows have ``NAME.few_rows`` or
    ``NAME.fewest_rows``, and rather than such a copy ``NAME.few_rows_by_pointers``.
    """
    rows, columns = a.shape[0], b.shape[0]
    if rows <= _FEW_ROWS:
        anywhere = "pointers" in (form_of(a, True), form_of(b, True))
        kind = "few_rows_by_pointers" if anywhere else "few_rows" if rows > _FEWEST_ROWS else "fewest_rows"
        return configuration(f"{name}.{kind}", a.device, inners), a, b
    how = configuration(name, a.device, inners)
    if tile_count(how, rows, columns) < how.programs:
        small, smallest = (configuration(f"{name}.{kind}", a.device, inners) for kind in ("small", "smallest"))
        how = smallest if tile_count(smallest, rows, columns) <= smallest.programs else small
    return how, *_aligned(a, b)


def _aligned(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Operands with the same product, in rows that begin and end where 16 bytes do: copies where others do not.

    Rows that end elsewhere are followed by zeros in both.
    """
    unit = _DESCRIBED // a.element_size()
    short = a.shape[1] % unit != 0

    def aligned(matrix: Tensor) -> Tensor:
        if not short and (form_of(matrix, True) != "pointers" or not matrix.numel()):
            return matrix
        return _padded(matrix, cdiv(matrix.shape[1], unit) * unit)

    return aligned(a), aligned(b)


def _padded(matrix: Tensor, width: int) -> Tensor:
    """A copy, ``width`` wide, with zeros behind what there is."""
    codes = as_bytes(matrix)
    copy = codes.new_zeros(codes.shape[0], width)
    copy[:, : codes.shape[1]] = codes
    return copy.view(matrix.dtype)


def form_of(matrix: Tensor, described: bool) -> str:
    """How a matrix is read: by a descriptor along its ``inner`` or ``outer`` dimension, or by ``pointers``."""
    size = matrix.element_size()
    if described and matrix.numel() and matrix.data_ptr() % _DESCRIBED == 0:
        for name, along, across in (("inner", 1, 0), ("outer", 0, 1)):
            stride = matrix.stride(across)
            if matrix.stride(along) == 1 and stride >= matrix.shape[along] and stride * size % _DESCRIBED == 0:
                return name
    return "pointers"


def _precision(a: Tensor, b: Tensor) -> Mapping[str, Any]:
    """``WIDEN``: both are made float32 first. ``PRECISION``: what products of float32 numbers keep.

    TF32 of 16-bit numbers are all of their digits; whether those of float32 numbers will do, torch has been told.
    """
    arch = processor(a.device).arch
    mixed = a.dtype is not b.dtype
    cut = torch.float32 in (a.dtype, b.dtype) and arch.startswith("sm_")
    cut = cut and (mixed or torch.backends.cuda.matmul.fp32_precision == "tf32")
    # interpreted, products of bfloat16 numbers are wrong
    return {"WIDEN": mixed or arch == "interpreter", "PRECISION": "tf32" if cut else "ieee"}


def launch_tiles(
    kernel: Any, how: Configuration, a: Tensor, b: Tensor, *args: Any, splits: int = 1, **meta: Any
) -> None:
    """Launch ``kernel``, which forms ``a @ b.T`` by tiles of ``how``: with both, ``args``, sizes and strides."""
    inners = a.shape[1]
    forms = form_of(a, is_described(how)), form_of(b, is_described(how))
    block_k = how.options["BLOCK_K"]
    even = "pointers" not in forms or (inners > 0 and inners % block_k == 0)
    sizes = inners, max(1, cdiv(inners, block_k)), *a.stride(), *b.stride()
    meta = {"FORM_A": forms[0], "FORM_B": forms[1], "EVEN": even, **_precision(a, b), **meta}
    launch_programs(kernel, how, a.shape[0], b.shape[0], (a, b, *args), sizes, meta, splits)


def tile_count(how: Configuration, rows: int, columns: int) -> int:
    """How many tiles of ``how`` a matrix ``(rows, columns)`` has."""
    return cdiv(rows, how.options["BLOCK_M"]) * cdiv(columns, how.options["BLOCK_N"])


@dataclass(frozen=True, slots=True)
class Shared:
    """How many programs share a tile's steps, how many each has at most, and where they leave their parts."""

    splits: int
    share: int
    parts: Tensor | None
    counters: Tensor | None


def shared_steps(how: Configuration, rows: int, columns: int, inners: int, device: torch.device) -> Shared:
    """Of tiles of ``how``, if its entry says ``SPLIT``."""
    options = how.options
    steps, tiles = max(1, cdiv(inners, options["BLOCK_K"])), tile_count(how, rows, columns)
    splits, share = split_count(tiles, steps, how) if options.get("SPLIT", False) else (1, steps)
    return Shared(splits, share, *room_for_parts(splits, tiles, options["BLOCK_M"] * options["BLOCK_N"], device))


def is_described(how: Configuration) -> bool:
    """Whether tiles of ``how`` are copied by descriptors, where strides allow it."""
    described: bool = how.options.get("DESCRIPTORS", False)
    return described


def launch_programs(
    kernel: Any,
    how: Configuration,
    rows: int,
    columns: int,
    before: tuple[Any, ...],
    after: tuple[Any, ...],
    meta: Mapping[str, Any],
    splits: int = 1,
) -> None:
    """Launch the programs of a ``kernel`` over the tiles of ``(rows, columns)``: these stand between its arguments."""
    options = {name: value for name, value in how.options.items() if name not in ("DESCRIPTORS", "SPLIT")}
    if options.get("OVERLAP", False):
        options["launch_pdl"] = True
    tiles = tile_count(how, rows, columns) * splits
    with RoomForDescriptors(before[0].device):
        launch(kernel, (min(tiles, how.programs), 1), *before, rows, columns, *after, **meta, **options)


class RoomForDescriptors:
    """Within it, programs of launches have memory for their descriptors on ``device``."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __enter__(self) -> None:
        self.token = _allocator.set(_DescriptorMemory(self.device))

    def __exit__(self, *_: object) -> None:
        _allocator.reset(self.token)


class _DescriptorMemory:
    """Where a kernel's programs put their descriptors: what Triton asks for at a launch."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, size: int, alignment: int, stream: int | None) -> Tensor:
        """Memory of ``size`` bytes; torch's is aligned to more than a descriptor's 128."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)
