"""Which queries and keys a program has: packed heads, blocks that a window cuts, and how a call is launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import processor
from portakernel_plugins.triton.attention.head_parts import narrowest_values, parts_of
from portakernel_plugins.triton.launching.configurations import configuration

# With no more queries the heads of one key head share a tile.
_FEW = 32
# Up to here tiles are small, so that there are enough of them.
_SHORT = 512
# With heads of up to 128 they are, too, up to here under a causal mask, which hides less of each (an H100: 499 TFLOP/s
# of 480), and wherever scores are changed one by one, which takes registers (378 of 356 with softcap, 0.92 of the plain
# case's speed with ALiBi of 0.85).
_SHORT_CAUSAL, _NARROW = 4096, 128
# Keys of a window of which tiles of few queries skip more (an H200, of 128: heads of 256 1.16 to 1.5 times as fast).
_NARROW_WINDOW = 256
# Beside a bias: more than there are.
_WIDEST = 512


@triton.jit
def rows_of_tile(tile, first_head, queries, PACKED: tl.constexpr, BLOCK: tl.constexpr):
    """Of each row of a tile the query, the head, and whether it is there; where it is not, it is the last one again.

    ``PACKED`` heads of one key head stand in neighbouring rows, query after query; with 1 a tile is one head's.
    """
    row = tile * BLOCK + tl.arange(0, BLOCK)
    there = row < queries * PACKED
    row = tl.minimum(row, queries * PACKED - 1)
    return row // PACKED, first_head + row % PACKED, there


@triton.jit
def seen_blocks(first, last, ahead, end, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """Where blocks of the other side begin, are seen by all of a tile, are no more, and end.

    The tile's rows are ``first`` to ``last``; a row ``i`` sees from ``i + ahead - left`` to ``i + ahead + right`` of
    what is numbered up to ``end``. Blocks begin at multiples of ``BLOCK``, but for those of an end.
    """
    begin = 0
    stop = end
    whole_from = 0
    whole_to = end
    if LEFT:
        begin = tl.maximum(first + ahead - left, 0)
        whole_from = tl.maximum(last + ahead - left, 0)
    if RIGHT:
        stop = tl.minimum(last + ahead + right + 1, end)
        whole_to = tl.minimum(first + ahead + right + 1, end)
    begin = begin // BLOCK * BLOCK
    stop = tl.maximum(stop, begin)
    whole_from = tl.minimum(tl.cdiv(whole_from, BLOCK) * BLOCK, tl.cdiv(stop, BLOCK) * BLOCK)
    whole_to = tl.maximum(tl.maximum(whole_to, 0) // BLOCK * BLOCK, whole_from)
    return begin, whole_from, whole_to, stop


def shapes(q: Tensor, v: Tensor) -> Mapping[str, Any]:
    """The sizes of heads that are compiled into a kernel, and what products of their elements keep.

    TF32 of 16-bit numbers are all of their digits; of float32 numbers three products of it are, and whether one will
    do, torch has been told.
    """
    exact = q.dtype is torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32"
    return _shapes(q.shape[3], v.shape[3], q.dtype, exact, processor(q.device).arch)


@cache
def _shapes(D: int, E: int, dtype: torch.dtype, exact: bool, arch: str) -> Mapping[str, Any]:
    (block_d, rest_d), (block_e, rest_e) = parts_of(D), parts_of(E, narrowest_values(arch))
    precision = "ieee"
    if dtype is torch.float32 and arch.startswith("sm_"):
        precision = "tf32x3" if exact else "tf32"
    return {
        "D": D,
        "BLOCK_D": block_d,
        "REST_D": rest_d,
        "E": E,
        "BLOCK_E": block_e,
        "REST_E": rest_e,
        "PRECISION": precision,
        # interpreted, products of bfloat16 numbers are wrong
        "WIDEN": arch == "interpreter",
    }


@dataclass(frozen=True, slots=True)
class Tiling:
    """How queries are put into tiles: ``packed`` heads of one key head into each; ``programs`` fill the chip.

    ``few_parts`` are so few that half of them do.
    """

    packed: int
    programs: int
    options: Mapping[str, Any]
    few_parts: int = 0


def room_of(q: Tensor, v: Tensor, bias: Tensor | None) -> int:
    """The size by which a configuration is found: the wider one of keys and values.

    A bias comes in tiles of its own, for which the blocks of the widest heads alone leave memory.
    """
    return max(q.shape[3], v.shape[3]) if bias is None else _WIDEST


def tiles_of_queries(
    q: Tensor, queries: int, heads: int, width: int, sides: tuple[int, int], changed: bool, paged: bool = False
) -> Tiling:
    """For so many ``queries`` of ``q``, with ``heads`` of each key head; ``width`` is ``room_of`` it.

    ``sides``: keys that are seen before and after a query's position, -1 for all; ``changed``: scores are more than
    products times a factor; ``paged``: keys are in pages.
    """
    left, right = sides
    size = q.element_size()
    if paged and queries > _FEW:
        how = configuration("attention.paged_prefill", q.device, width, size)
        return Tiling(1, how.programs, how.options)
    if queries > _FEW:
        small = queries <= _SHORT or (width <= _NARROW and (changed or (right >= 0 and queries <= _SHORT_CAUSAL)))
        table = "attention.forward_short" if small else "attention.forward"
        if min(left, right) >= 0 and left + right < _NARROW_WINDOW:
            table = "attention.forward_window"
        how = configuration(table, q.device, width, size)
        return Tiling(1, how.programs, how.options)
    how = configuration("attention.few_queries", q.device, width, size)
    rows = 1 << (queries * heads - 1).bit_length()
    options = {**how.options, "BLOCK_M": min(max(rows, 16), how.options["BLOCK_M"])}
    few_parts = options.pop("FEW_PARTS", 0)
    return Tiling(heads, how.programs, options, few_parts)
