"""``merge_attention`` and ``merge_attentions`` in Triton: parts of attention over sets of keys, weighted by their lse.

With ``m`` the largest lse of a row, a query's head, and ``w = exp(lse - m)`` of each part:

    out = sum(w * part) / sum(w)
    lse = m + log(sum(w))

Everything is computed in float32, in the order of the parts, and rounded once; no lane needs another's numbers, so that
a row's bits depend on that row alone. A part that saw no key has lse -inf and holds anything: it is not multiplied by
0 but left out. A program has ROWS rows, the heads of a query one after the other as they lie in memory, and BLOCK_E
columns of each. It has read all that it overwrites before it writes: ``out`` may be the first part.

``split_keys`` merges parts of its own, contiguous and in float32, whose logarithms are to base 2.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import Held, cdiv, grid_of, per_device, prepared, program_index
from portakernel_plugins.triton.exponentials import exponential, finite_or_zero
from portakernel_plugins.triton.launching.configurations import configuration

# Of more parts a program's time is that of reading them one after the other.
_MANY_PARTS = 4


@triton.jit
def _place(rows, heads, columns, ROWS: tl.constexpr, BLOCK_E: tl.constexpr):
    """The queries, heads and columns of this program, int64; which rows there are; whether its columns are the first.

    Neighbouring programs read neighbouring memory.
    """
    across = tl.maximum(tl.cdiv(columns, BLOCK_E), 1)
    # 32 bits hold the number of any program; rows need not fit, and are divided once, the rest in 32 bits
    index = program_index().to(tl.int32)
    rows_before = index // across
    first_row = tl.cast(rows_before, tl.int64) * ROWS
    first_query = first_row // heads
    row = tl.arange(0, ROWS)
    head = (first_row - first_query * heads).to(tl.int32) + row
    query = first_query + (head // heads).to(tl.int64)
    column = (index - rows_before * across) * BLOCK_E + tl.arange(0, BLOCK_E)
    return (
        query,
        (head % heads).to(tl.int64),
        column.to(tl.int64),
        first_row + row < rows,
        index == rows_before * across,
    )


@triton.jit
def _at(pointer, query, head, column, query_stride, head_stride, column_stride):
    """Where the columns of these rows are."""
    return pointer + (query * query_stride + head * head_stride)[:, None] + (column * column_stride)[None, :]


@triton.jit
def _inverse(total):
    """What weights are multiplied by to add up to 1; 1 where there are none."""
    return 1.0 / tl.where(total == 0.0, 1.0, total)


@triton.jit(do_not_specialize=["rows", "heads"])
def _merge_two(
    a,  # (S, H, E)
    lse_a,  # (H, S) float32
    b,
    lse_b,
    out,
    lse,  # None: not wanted
    rows,  # S * H
    heads,
    columns,
    a_query,
    a_head,
    a_column,
    lse_a_head,
    lse_a_query,
    b_query,
    b_head,
    b_column,
    lse_b_head,
    lse_b_query,
    out_query,
    out_head,
    out_column,
    lse_head,
    lse_query,
    ROWS: tl.constexpr,
    BLOCK_E: tl.constexpr,
) -> None:
    query, head, column, is_row, is_first = _place(rows, heads, columns, ROWS, BLOCK_E)
    inside = is_row[:, None] & (column < columns)[None, :]
    log_a = tl.load(lse_a + head * lse_a_head + query * lse_a_query, mask=is_row, other=float("-inf"))
    log_b = tl.load(lse_b + head * lse_b_head + query * lse_b_query, mask=is_row, other=float("-inf"))
    # not masked by lse: both loads are under way at once
    part_a = tl.load(_at(a, query, head, column, a_query, a_head, a_column), mask=inside, other=0.0).to(tl.float32)
    part_b = tl.load(_at(b, query, head, column, b_query, b_head, b_column), mask=inside, other=0.0).to(tl.float32)

    top = finite_or_zero(tl.maximum(log_a, log_b))
    weight_a, weight_b = exponential(log_a - top), exponential(log_b - top)
    total = weight_a + weight_b
    scale = _inverse(total)
    merged = tl.where((log_a > float("-inf"))[:, None], part_a * (weight_a * scale)[:, None], 0.0)
    merged += tl.where((log_b > float("-inf"))[:, None], part_b * (weight_b * scale)[:, None], 0.0)

    at = _at(out, query, head, column, out_query, out_head, out_column)
    tl.store(at, merged.to(out.dtype.element_ty), mask=inside)
    if lse is not None:
        tl.store(lse + head * lse_head + query * lse_query, top + tl.log(total), mask=is_row & is_first)


@triton.jit(do_not_specialize=["rows", "heads"])
def _merge_parts(
    outs,  # (PARTS, S, H, E)
    lses,  # (PARTS, H, S) float32
    out,
    lse,  # None: not wanted
    rows,  # S * H
    heads,
    columns,
    outs_part,
    outs_query,
    outs_head,
    outs_column,
    lses_part,
    lses_head,
    lses_query,
    out_query,
    out_head,
    out_column,
    lse_head,
    lse_query,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_E: tl.constexpr,
) -> None:
    query, head, column, is_row, is_first = _place(rows, heads, columns, ROWS, BLOCK_E)
    inside = is_row[:, None] & (column < columns)[None, :]
    first_log = lses + head * lses_head + query * lses_query

    # The few logarithms of a row are read three times, from the cache but for the first, and its parts once.
    at = first_log
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    for _ in range(PARTS):
        top = tl.maximum(top, tl.load(at, mask=is_row, other=float("-inf")))
        at += lses_part
    top = finite_or_zero(top)
    at = first_log
    total = tl.full((ROWS,), 0.0, tl.float32)
    for _ in range(PARTS):
        total += exponential(tl.load(at, mask=is_row, other=float("-inf")) - top)
        at += lses_part
    scale = _inverse(total)

    at = first_log
    part_at = _at(outs, query, head, column, outs_query, outs_head, outs_column)
    merged = tl.full((ROWS, BLOCK_E), 0.0, tl.float32)
    for _ in range(PARTS):
        weight = exponential(tl.load(at, mask=is_row, other=float("-inf")) - top)
        part = tl.load(part_at, mask=inside & (weight > 0.0)[:, None], other=0.0).to(tl.float32)
        merged += part * (weight * scale)[:, None]
        at += lses_part
        part_at += outs_part

    at_out = _at(out, query, head, column, out_query, out_head, out_column)
    tl.store(at_out, merged.to(out.dtype.element_ty), mask=inside)
    if lse is not None:
        tl.store(lse + head * lse_head + query * lse_query, top + tl.log(total), mask=is_row & is_first)


@per_device
def _plan(kernel: str, device: torch.device, columns: int, parts: int) -> tuple[Held, int, int]:
    """What is launched for heads of so many ``columns``; how many a program takes, and how many programs take one."""
    many = kernel == "merge_attentions" and parts > _MANY_PARTS
    how = configuration("merge_attentions.many" if many else kernel, device, columns)
    block = min(how.columns, how.elements)
    meta = {"ROWS": how.rows, "BLOCK_E": block, **how.options}
    held = (
        prepared(_merge_parts, {"PARTS": parts, **meta}) if kernel == "merge_attentions" else prepared(_merge_two, meta)
    )
    return held, how.rows, max(1, cdiv(columns, block))


def _merged(
    kernel: str,
    tensors: tuple[Tensor, ...],
    parts: int,
    return_lse: bool,
    out: Tensor | tuple[Tensor, ...] | None,
) -> Tensor | tuple[Tensor, ...]:
    """The results of ``kernel`` for ``tensors``, the first of which has ``(..., S, H, E)``."""
    first = tensors[0]
    S, H, E = first.shape[-3:]
    given = out if isinstance(out, tuple) else (out,)
    y = first.new_empty((S, H, E)) if given[0] is None else given[0]
    lse = None
    if return_lse:
        lse = given[1] if len(given) > 1 else first.new_empty((H, S), dtype=torch.float32)
    rows = S * H
    if rows:
        held, together, across = _plan(kernel, first.device, E, parts)
        strides = [step for tensor in (*tensors, y) for step in tensor.stride()]
        strides += (0, 0) if lse is None else lse.stride()
        held.launch(grid_of(cdiv(rows, together) * across), *tensors, y, lse, rows, H, E, *strides)
    return y if lse is None else (y, lse)


def merge_attention(
    a: Tensor,
    lse_a: Tensor,
    b: Tensor,
    lse_b: Tensor,
    *,
    return_lse: bool = True,
    out: Tensor | tuple[Tensor, ...] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """``out (S, H, E)`` and ``lse (H, S)`` of two parts ``a, b: (S, H, E)`` with ``lse_a, lse_b: (H, S)``.

    All of any strides, ``out`` too, whose first tensor may be ``a`` itself; float32, float16 or bfloat16, lse float32.
    """
    return _merged("merge_attention", (a, lse_a, b, lse_b), 2, return_lse, out)


def merge_attentions(
    outs: Tensor,
    lses: Tensor,
    *,
    return_lse: bool = True,
    out: Tensor | tuple[Tensor, ...] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """``out (S, H, E)`` and ``lse (H, S)`` of the parts ``outs (R, S, H, E)`` with ``lses (R, H, S)``.

    All of any strides, ``out`` too; float32, float16 or bfloat16, lse float32.
    """
    return _merged("merge_attentions", (outs, lses), outs.shape[0], return_lse, out)
