"""The loop of the gradients for queries and bias: a tile of queries' sums over the keys that they see."""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.attention.block_lists import begin_of, first_entry
from portakernel_plugins.triton.attention.head_parts import add_weighted_rows, product_of_rows, turned
from portakernel_plugins.triton.attention.masks import allows, ids_of
from portakernel_plugins.triton.attention.row_blocks import load_block
from portakernel_plugins.triton.attention.scores import changed, load_bias, sees, weights_of


@triton.jit
def over_keys(
    sums,
    q,
    grad,
    k,
    k_rest,
    v,
    v_rest,
    batch,
    first_key,
    key_head,
    bias,
    bias_rows,
    grad_bias,
    there,
    position,
    slope,
    shift,
    delta,
    keys,
    begin,
    stop,
    left,
    right,
    scale,
    cap,
    k_row,
    k_lane,
    v_row,
    v_lane,
    bias_column,
    OF_Q: tl.constexpr,
    MASKED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    REST_D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_E: tl.constexpr,
    REST_E: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    DESCRIBED: tl.constexpr,
    RAGGED: tl.constexpr,
    listed=None,
    LISTED: tl.constexpr = 0,
    MASK: tl.constexpr = None,
    head=None,
    query_ids=None,
    key_ids=None,
    prefix=None,
):
    """``sums`` with the keys from ``begin`` to ``stop``; of these the bias's gradient is written.

    What comes after ``RAGGED`` is as in forward's loop (``online_softmax.py``).
    """
    lane = tl.arange(0, BLOCK_N)
    entry = first_entry(listed, stop, LISTED)
    for place in tl.range(begin, stop, BLOCK_N):
        first, entry = begin_of(place, entry, listed, stop, BLOCK_N, LISTED)
        column = first + lane
        rows = lane.to(tl.int64)
        inside = None
        across = None
        behind = None
        if MASKED:
            inside = column < keys
            across = inside[None, :]
        if MASKED or slope is not None:
            behind = position[:, None] - column[None, :]
        block = load_block(
            k, k_rest, batch, first_key, first, key_head, rows, k_row, k_lane, inside, BLOCK_N, BLOCK_D, REST_D, D,
            False, WIDEN, DESCRIBED, RAGGED,
        )  # fmt: skip
        z = product_of_rows(q, turned(block, REST_D), REST_D, PRECISION)
        added = load_bias(bias, bias_rows[:, None], column[None, :], across, bias_column)
        scores, bounded = changed(z, behind, slope, added, scale, cap, SOFTCAP)
        p = weights_of(scores, shift[:, None])
        if MASKED:
            seen = sees(across, behind, left, right, LEFT, RIGHT)
            if MASK is not None:
                of_keys = ids_of(key_ids, column, inside)
                seen = seen & allows(MASK, batch, head, position, column, query_ids, of_keys, prefix, 1)
            p = tl.where(seen, p, 0.0)
        values = load_block(
            v, v_rest, batch, first_key, first, key_head, rows, v_row, v_lane, inside, BLOCK_N, BLOCK_E, REST_E, E,
            True, WIDEN, DESCRIBED, RAGGED,
        )  # fmt: skip
        of_scores = p * (product_of_rows(grad, values, REST_E, PRECISION) - delta[:, None])
        if grad_bias is not None:
            mask = there[:, None]
            if MASKED:
                mask = mask & across
            tl.store(grad_bias + column[None, :], of_scores.to(grad_bias.dtype.element_ty), mask=mask)
        if OF_Q:
            if SOFTCAP:
                of_scores = of_scores * (1.0 - bounded * bounded)
            of_scores = of_scores.to(DTYPE)
            if WIDEN:
                of_scores = of_scores.to(tl.float32)
            sums = add_weighted_rows(sums, of_scores, block, REST_D, PRECISION)
    return sums
