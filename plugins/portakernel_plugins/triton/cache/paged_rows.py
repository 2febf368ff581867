"""Rows of tokens, put into the pages of two caches in one launch.

    cache[slot // P, head, slot % P] = x[token, head] / scale           strides say the caches' order of dimensions

A row is one head of one token, ``WIDTH`` elements, and is one block of registers. The first programs take rows of the
first tensor, the others rows of the second. A slot outside the cache, such as -1, writes nothing and reads no row. What
is stored in the dtype that it had is moved, not computed with: it keeps its bits.
"""
# pyright: reportPossiblyUnboundVariable=false
# What branches of compile-time values bind, Triton sees bound.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring import ArgumentValueError
from portakernel.authoring.tensors import as_bytes
from portakernel.authoring.triton import Held, cdiv, grid_of, per_device, prepared, program_index
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.quantize.float8 import conversion, narrowed, quantized

# Scales between these have reciprocals, and quotients remainders, that do not underflow.
_LEAST: tl.constexpr = tl.constexpr(2.0**-60)
_MOST: tl.constexpr = tl.constexpr(2.0**60)
# Beyond the largest number of any float8: how it is rounded does not matter.
_BEYOND: tl.constexpr = tl.constexpr(2.0**17)


@triton.jit
def _divided(x, scale, FUSED: tl.constexpr):
    """``x / scale`` as IEEE 754 has it, infinities included, but for quotients that every float8 clamps.

    A row's ``scale: (rows,)`` divides all of it: its reciprocal, corrected by the remainder as in ``float8.divided``,
    costs less than as many divisions. Where the reciprocal could underflow, divisions it is.
    """
    if FUSED:
        size = tl.abs(scale)
        usual = (size >= _LEAST) & (size <= _MOST)
        if tl.min(usual.to(tl.int32), axis=0) == 1:
            reciprocal = tl.div_rn(1.0, scale)[:, None]
            quotient = x * reciprocal
            corrected = tl.fma(tl.fma(-quotient, scale[:, None], x), reciprocal, quotient)
            # an infinite quotient has no remainder
            quotient = tl.where(tl.abs(quotient) < _BEYOND, corrected, quotient)
        else:
            quotient = tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))
    else:
        quotient = tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))
    return quotient


@triton.jit
def _put(
    x,
    cache,
    scale,
    scales,
    slots,
    block,
    tokens,
    places,
    slot_stride,
    x_token_stride,
    x_head_stride,
    x_stride,
    page_stride,
    line_stride,
    head_stride,
    element_stride,
    scale_stride,
    scales_page_stride,
    scales_line_stride,
    scales_head_stride,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SCALES: tl.constexpr,
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    FUSED: tl.constexpr,
):
    """Put rows ``block * BLOCK_M`` and on of one tensor: row ``r`` is head ``r % HEADS`` of token ``r // HEADS``."""
    first = block * BLOCK_M
    first_token = first // HEADS
    # 64 bits in the scalars alone: as many divisions of them as there are rows would be slow
    local = (first - first_token * HEADS).to(tl.int32) + tl.arange(0, BLOCK_M)
    token = first_token + local // HEADS
    head = (local % HEADS).to(tl.int64)
    slot = tl.load(slots + token * slot_stride, mask=token < tokens, other=-1)
    written = (slot >= 0) & (slot < places)
    # in the slots' own width: a page's size is known while this is compiled
    page = (slot // PAGE).to(tl.int64)
    line = (slot % PAGE).to(tl.int64)

    column = tl.arange(0, BLOCK_N)
    inside = written[:, None] & (column < WIDTH)[None, :]
    element = column.to(tl.int64)
    source = (x + token * x_token_stride + head * x_head_stride)[:, None] + (element * x_stride)[None, :]
    row = tl.load(source, mask=inside, other=0.0)
    if FORMAT != "same":
        row = row.to(tl.float32)
        if SCALES == "token_head":
            row, computed = quantized(row, FORMAT, CAST, FUSED)
            to = scales + page * scales_page_stride + line * scales_line_stride + head * scales_head_stride
            tl.store(to, computed, mask=written)
        else:
            if SCALES == "tensor":
                row = _divided(row, tl.broadcast_to(tl.load(scale), (BLOCK_M,)), FUSED)
            elif SCALES == "head":
                row = _divided(row, tl.load(scale + head * scale_stride), FUSED)
            row = narrowed(row, FORMAT, CAST)
    target = (cache + page * page_stride + line * line_stride + head * head_stride)[:, None]
    tl.store(target + (element * element_stride)[None, :], row, mask=inside)


# The number of tokens and of slots must not recompile the kernel.
@triton.jit(do_not_specialize=["tokens", "places"])
def _paged_rows(
    a: tl.tensor,
    b: tl.tensor,
    a_cache: tl.tensor,
    b_cache: tl.tensor,
    a_scale: tl.tensor,  # None: not scaled, or scales are computed
    b_scale: tl.tensor,
    a_scales: tl.tensor,  # None: scales are not computed
    b_scales: tl.tensor,
    slots: tl.tensor,
    tokens: tl.tensor,
    places: tl.tensor,
    slot_stride: tl.tensor,
    a_token_stride: tl.tensor,
    a_head_stride: tl.tensor,
    a_stride: tl.tensor,
    a_page_stride: tl.tensor,
    a_line_stride: tl.tensor,
    a_cache_head_stride: tl.tensor,
    a_cache_stride: tl.tensor,
    a_scale_stride: tl.tensor,
    a_scales_page_stride: tl.tensor,
    a_scales_line_stride: tl.tensor,
    a_scales_head_stride: tl.tensor,
    b_token_stride: tl.tensor,
    b_head_stride: tl.tensor,
    b_stride: tl.tensor,
    b_page_stride: tl.tensor,
    b_line_stride: tl.tensor,
    b_cache_head_stride: tl.tensor,
    b_cache_stride: tl.tensor,
    b_scale_stride: tl.tensor,
    b_scales_page_stride: tl.tensor,
    b_scales_line_stride: tl.tensor,
    b_scales_head_stride: tl.tensor,
    HEADS: tl.constexpr,
    A_WIDTH: tl.constexpr,
    B_WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    A_ROWS: tl.constexpr,
    B_ROWS: tl.constexpr,
    A_BLOCK: tl.constexpr,
    B_BLOCK: tl.constexpr,
    SCALES: tl.constexpr,
    FORMAT: tl.constexpr,  # of the caches: a float8, or the "same" as the rows
    CAST: tl.constexpr,
    FUSED: tl.constexpr,
) -> None:
    block = program_index()
    a_blocks = (tl.cast(tokens, tl.int64) * HEADS + (A_ROWS - 1)) // A_ROWS
    if block < a_blocks:
        _put(
            a,
            a_cache,
            a_scale,
            a_scales,
            slots,
            block,
            tokens,
            places,
            slot_stride,
            a_token_stride,
            a_head_stride,
            a_stride,
            a_page_stride,
            a_line_stride,
            a_cache_head_stride,
            a_cache_stride,
            a_scale_stride,
            a_scales_page_stride,
            a_scales_line_stride,
            a_scales_head_stride,
            HEADS,
            A_WIDTH,
            PAGE,
            A_ROWS,
            A_BLOCK,
            SCALES,
            FORMAT,
            CAST,
            FUSED,
        )
    else:
        _put(
            b,
            b_cache,
            b_scale,
            b_scales,
            slots,
            block - a_blocks,
            tokens,
            places,
            slot_stride,
            b_token_stride,
            b_head_stride,
            b_stride,
            b_page_stride,
            b_line_stride,
            b_cache_head_stride,
            b_cache_stride,
            b_scale_stride,
            b_scales_page_stride,
            b_scales_line_stride,
            b_scales_head_stride,
            HEADS,
            B_WIDTH,
            PAGE,
            B_ROWS,
            B_BLOCK,
            SCALES,
            FORMAT,
            CAST,
            FUSED,
        )


class Part(NamedTuple):
    """What is written into one cache: ``x: (T, G, N)`` into ``cache: (NP, P, G, N)``, any strides.

    ``scale``: ``()`` or ``(G,)``, what it is divided by; ``scales``: ``(NP, P, G)``, where computed scales go.
    """

    x: Tensor
    cache: Tensor
    scale: Tensor | None = None
    scales: Tensor | None = None

    def strides(self) -> Sequence[int]:
        """The strides that a launch is told of."""
        scale, scales = self.scale, self.scales
        return (
            *self.x.stride(),
            *self.cache.stride(),
            0 if scale is None or scale.dim() == 0 else scale.stride(0),
            *((0, 0, 0) if scales is None else scales.stride()),
        )


def put(kernel: str, a: Part, b: Part, slot_mapping: Tensor, kind: str) -> None:
    """Writes both parts, of as many tokens and heads, to the slots ``(T,)``; ``kind``: what shares a scale."""
    tokens, heads, width = a.x.shape
    if not tokens:
        return
    pages, page = a.cache.shape[:2]
    cache_dtype = a.cache.dtype
    same = cache_dtype is a.x.dtype
    held, rows = _launch_of(
        kernel, a.x.device, width, b.x.shape[2], heads, page, kind, None if same else str(cache_dtype)
    )
    held.launch(
        grid_of(cdiv(tokens * heads, rows[0]) + cdiv(tokens * heads, rows[1])),
        a.x,
        b.x,
        *((a.cache, b.cache) if same else (as_bytes(a.cache), as_bytes(b.cache))),
        a.scale,
        b.scale,
        a.scales,
        b.scales,
        slot_mapping,
        tokens,
        pages * page,
        slot_mapping.stride(0),
        *a.strides(),
        *b.strides(),
    )


@per_device
def _launch_of(
    kernel: str,
    device: torch.device,
    a_width: int,
    b_width: int,
    heads: int,
    page: int,
    kind: str,
    float8: str | None,
) -> tuple[Held, tuple[int, int]]:
    """What is launched for rows of these sizes, and how many of each part a program takes."""
    how = configuration(kernel, device, max(a_width, b_width))
    blocks = [1 << (width - 1).bit_length() for width in (a_width, b_width)]
    rows = [max(1, how.rows * how.columns // block) for block in blocks]
    same = {"FORMAT": "same", "CAST": "bits", "FUSED": False}
    to: Mapping[str, Any] = same if float8 is None else conversion(float8.removeprefix("torch."), device)
    meta = {
        "HEADS": heads,
        "A_WIDTH": a_width,
        "B_WIDTH": b_width,
        "PAGE": page,
        "A_ROWS": rows[0],
        "B_ROWS": rows[1],
        "A_BLOCK": blocks[0],
        "B_BLOCK": blocks[1],
        "SCALES": kind,
        **to,
        **how.options,
    }
    return prepared(_paged_rows, meta), (rows[0], rows[1])


def check_scales(op: str, kind: str, wanted: Mapping[str, Sequence[str]], given: Mapping[str, Tensor | None]) -> None:
    """Nothing, when those scales are given that ``kv_scales=kind`` asks for, and no others.

    Raises:
        ArgumentValueError: one is missing, or is there and would not be used.
    """
    asked = wanted.get(kind, ())
    for name, tensor in given.items():
        if (tensor is None) is (name in asked):
            found = "is missing" if tensor is None else "is given, and would not be used"
            needs = f"needs {' and '.join(asked)}, and no other scales" if asked else "needs no scales"
            raise ArgumentValueError(f"{op}: kv_scales={kind!r} {needs}; {name} {found}")
