"""``paged_attention`` for Hopper: keys and values of sequences with many queries are copied out of their pages first.

The copy, read and written once, costs next to nothing beside products of that many queries, and ``attention_varlen``'s
kernel for Hopper, whose blocks the copy engine fetches, is 1.7 times as fast as one that gathers rows. Where the copy
could need more than ``_MOST_BYTES``, rows are gathered. How much that is depends on bounds that the host knows; lengths
are read on the device.
"""

from __future__ import annotations

import triton
import triton.language as tl

from portakernel.authoring.triton import cdiv, grid_of, launch, program_index
from portakernel_plugins.triton.attention.hopper import launch_hopper
from portakernel_plugins.triton.attention.paged import Prefill, attention_with, from_pages
from portakernel_plugins.triton.attention.pages import (
    EACH_ROW,
    load_paged,
    nearest_seen,
    place_of,
    scale_of,
    scales_of_head,
)
from portakernel_plugins.triton.attention.sequences import Sequences
from portakernel_plugins.triton.attention.shares import MOST_SEQUENCES
from portakernel_plugins.triton.launching.configurations import configuration

_MOST_BYTES = 512 << 20


@triton.jit(do_not_specialize=["sequences", "tiles", "few", "left"])
def _gather(
    keys,
    values,
    k,  # out: (T, G, D), contiguous; of sequences with more than ``few`` queries, one after the other
    v,
    ends,  # out: (B+1,) int32, where each has its keys
    starts,
    table,
    lengths,
    k_scale,
    v_scale,
    table_row,
    sequences,
    tiles,
    few,
    left,
    key_heads,
    k_page,
    k_row,
    k_head,
    k_lane,
    v_page,
    v_row,
    v_head,
    v_lane,
    SEQUENCES: tl.constexpr,
    LEFT: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
    SCALED: tl.constexpr,
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
) -> None:
    program = program_index()
    sequence = program // tiles
    tile = program % tiles
    number = tl.arange(0, SEQUENCES)
    there = number < sequences
    first_rows = tl.load(starts + number, mask=there, other=0)
    counts = tl.load(starts + number + 1, mask=there, other=0) - first_rows
    kept = tl.where(counts > few, tl.load(lengths + number, mask=there, other=0), 0)
    if program == 0:
        tl.store(ends, 0)
        tl.store(ends + 1 + number, tl.cumsum(kept, 0), mask=there)
    count = tl.sum(tl.where(number == sequence, counts, 0), 0)
    length = tl.sum(tl.where(number == sequence, kept, 0), 0)
    token = (tile * ROWS).to(tl.int32) + tl.arange(0, ROWS)
    inside = token < length
    if tile * ROWS >= length:
        return
    lowest = tl.cast(0, tl.int32)
    if LEFT:
        lowest = tl.maximum(length - count - left, 0)
    first = tl.sum(tl.where(number < sequence, kept, 0), 0)
    at = ((first + token).to(tl.int64) * key_heads)[:, None] * D + tl.arange(0, D)[None, :]
    page, row = place_of(table + sequence * table_row, nearest_seen(token, lowest, length), PAGE)
    for head in range(key_heads):
        number_of_head = tl.cast(head, tl.int64)
        scale_k, scale_v = scales_of_head(k_scale, v_scale, number_of_head, SCALED)
        of_keys = load_paged(
            keys + number_of_head * k_head, page, row, k_page, k_row, k_lane, D, 0, D, False, False,
            k.dtype.element_ty, FORMAT, CAST,
        )[0]  # fmt: skip
        of_values = load_paged(
            values + number_of_head * v_head, page, row, v_page, v_row, v_lane, D, 0, D, False, False,
            v.dtype.element_ty, FORMAT, CAST,
        )[0]  # fmt: skip
        if SCALED == EACH_ROW:
            of_keys = of_keys.to(tl.float32) * scale_of(scale_k, page * PAGE + row, key_heads)[:, None]
            of_values = of_values.to(tl.float32) * scale_of(scale_v, page * PAGE + row, key_heads)[:, None]
        elif SCALED > 0:
            of_keys = of_keys.to(tl.float32) * scale_k
            of_values = of_values.to(tl.float32) * scale_v
        to = at + head * D
        tl.store(k + to, of_keys.to(k.dtype.element_ty), mask=inside[:, None])
        tl.store(v + to, of_values.to(v.dtype.element_ty), mask=inside[:, None])


def _gathered(call: Prefill) -> None:
    """By ``attention_varlen``'s kernel for Hopper, over a copy of the keys and values."""
    pages, (G, D) = call.pages, call.pages.keys.shape[2:]
    B, longest = len(pages.lengths), pages.longest
    # each sequence that is copied has more than few queries
    rows = min(B, len(call.q) // (call.few + 1)) * longest
    if not rows or 2 * rows * G * D * call.q.element_size() > _MOST_BYTES or B > MOST_SEQUENCES:
        from_pages(call)
        return
    k, v = call.q.new_empty((rows, G, D)), call.q.new_empty((rows, G, D))
    ends = call.starts.new_empty(B + 1)
    how = configuration("attention.gather_pages", k.device, D)
    tiles = cdiv(longest, how.rows)
    launch(
        _gather,
        grid_of(B * tiles),
        pages.keys,
        pages.values,
        k,
        v,
        ends,
        call.starts,
        *pages.arguments,
        B,
        tiles,
        call.few,
        call.how.left,
        G,
        *pages.keys.stride(),
        *pages.values.stride(),
        SEQUENCES=max(16, 1 << (B - 1).bit_length()),
        LEFT=call.how.left >= 0,
        D=D,
        ROWS=how.rows,
        **pages.flags,
        **how.options,
    )
    sequences = Sequences(call.starts, ends, (call.longest, longest))
    read = (call.q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0))
    launch_hopper(*read, call.slopes, call.sinks, call.written, call.how, sequences)


paged_attention = attention_with(_gathered)
