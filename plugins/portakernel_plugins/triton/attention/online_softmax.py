"""The softmax of scores that come block by block: what a tile of queries keeps of the keys that it has seen.

top   = max(s)                    per query, in units of log(2)
total = sum(2 ** (s - top))
acc   = sum(2 ** (s - top) * v)

Where a score is nothing but a product, or its tangent, times a factor, that is folded into ``z * factor - top``, one
instruction, which does not round the product that ``top`` is the rounded form of. From 2 ** 30 on that difference alone
could overflow: there the factor is a power of two (``coarse``), with which both are exact. Scores so large that are not
equal are so far apart that one has all the weight with either factor. Scores that a softcap bounds need no largest one
(``bounded_scores.py``).
"""
# pyright: reportGeneralTypeIssues=false, reportOptionalSubscript=false, reportPossiblyUnboundVariable=false
# Python's types do not see that Triton iterates over its ranges, and what branches of compile-time values bind.

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.attention.block_lists import begin_of, first_entry
from portakernel_plugins.triton.attention.bounded_scores import exponents
from portakernel_plugins.triton.attention.head_parts import add_weighted_rows, product_of_rows, times
from portakernel_plugins.triton.attention.masks import allows, ids_of
from portakernel_plugins.triton.attention.pages import EACH_ROW, load_paged, nearest_seen, place_of, scale_of
from portakernel_plugins.triton.attention.row_blocks import load_block
from portakernel_plugins.triton.attention.scores import changed, load_bias, sees
from portakernel_plugins.triton.attention.tangents import tangent
from portakernel_plugins.triton.attention.words import key_of_row, load_words, numbers_of_words
from portakernel_plugins.triton.exponentials import finite_or_zero

HUGE: tl.constexpr = tl.constexpr(2.0**30)


@triton.jit
def weighed(z, total, top, last, coarse, FOLDED: tl.constexpr):
    """The weights of a block, what sums before it are to be multiplied by, and ``total`` and ``top`` with it.

    ``z`` are scores or, with ``FOLDED``, what the ``last`` factor makes scores of.
    """
    if FOLDED:
        peak = tl.max(z, axis=1)
        factor = tl.where(tl.abs(peak * last) < HUGE, last, coarse)
        higher = tl.maximum(top, peak * factor)
        base = finite_or_zero(higher)
        p = tl.exp2(z * factor[:, None] - base[:, None])
    else:
        higher = tl.maximum(top, tl.max(z, axis=1))
        base = finite_or_zero(higher)
        p = tl.exp2(z - base[:, None])
    kept = tl.exp2(top - base)
    return p, kept, total * kept + tl.sum(p, axis=1), higher


@triton.jit
def log_of_sum(total, top, sunk, last, coarse, FOLDED: tl.constexpr):
    """``log2`` of the sum of all ``2 ** s``, -inf where there is none; ``sunk`` is the sink's score."""
    if FOLDED:
        top = tl.where((tl.abs(top) < HUGE) | (top == sunk), top, top / coarse * last)
    return top + tl.log2(total)


@triton.jit
def over_keys(
    acc,
    total,
    top,
    q,
    k,
    k_rest,
    v,
    v_rest,
    batch,
    first_key,
    key_head,
    bias,
    bias_rows,
    position,
    slope,
    keys,
    begin,
    stop,
    left,
    right,
    scale,
    coarse,
    cap,
    k_row,
    k_lane,
    v_row,
    v_lane,
    bias_column,
    MASKED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    BOUNDED: tl.constexpr,
    FOLDED: tl.constexpr,
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
    paged=None,
    PAGE: tl.constexpr = 0,
    SCALED: tl.constexpr = 0,
    FORMAT: tl.constexpr = "",
    CAST: tl.constexpr = "",
    listed=None,
    LISTED: tl.constexpr = 0,
    MASK: tl.constexpr = None,
    head=None,
    query_ids=None,
    key_ids=None,
    prefix=None,
):
    """``acc``, ``total`` and ``top`` with the keys from ``begin`` to ``stop``.

    With ``BOUNDED`` ``top`` stays as it is: weights are in units that do not change. With ``PAGE``, the tokens of a
    page, ``paged`` has the sequence's row of the table, the strides of pages, the first key that the tile sees, the
    scales of keys and values, and how many heads have some; one that all values share is the caller's affair. Where
    ``v`` points to words (``words.py``), so is the order of their columns. With ``LISTED``, the keys of a block, both
    ends count keys of the blocks that ``listed`` names. ``MASK`` is a function that says more of what is seen
    (``masks.py``), of the ``head`` and of what else it reads: ``key_ids`` point there.
    """
    WORDS: tl.constexpr = PAGE > 0 and v.dtype.element_ty == tl.int32
    lane = tl.arange(0, BLOCK_N)
    last = cap if SOFTCAP else scale
    entry = first_entry(listed, stop, LISTED)
    for place in tl.range(begin, stop, BLOCK_N):
        first, entry = begin_of(place, entry, listed, stop, BLOCK_N, LISTED)
        column = first + lane
        inside = None
        across = None
        behind = None
        if MASKED:
            inside = column < keys
            if PAGE > 0:
                inside = inside & (column >= paged[3])
            across = inside[None, :]
        if MASKED or slope is not None:
            behind = position[:, None] - column[None, :]
        rows = lane.to(tl.int64)
        if PAGE > 0:
            if WORDS:  # early, so that they are there when the weights are
                held = nearest_seen(first + key_of_row(lane), paged[3], keys)
                page, row = place_of(paged[0], held, PAGE)
                words = load_words(v, page * paged[2] + row * v_row, v_lane, BLOCK_E, E)
            page, row = place_of(paged[0], nearest_seen(column, paged[3], keys) if MASKED else column, PAGE)
            columns = load_paged(
                k, page, row, paged[1], k_row, k_lane, BLOCK_D, REST_D, D, True, WIDEN, DTYPE, FORMAT, CAST
            )
        else:
            columns = load_block(
                k, k_rest, batch, first_key, first, key_head, rows, k_row, k_lane, inside, BLOCK_N, BLOCK_D, REST_D, D,
                True, WIDEN, DESCRIBED, RAGGED,
            )  # fmt: skip
        z = product_of_rows(q, columns, REST_D, PRECISION)
        if SCALED == EACH_ROW:
            z = z * scale_of(paged[4], page * PAGE + row, paged[6])[None, :]
        elif SCALED > 0 or WORDS:
            z = z * paged[4]
        if BOUNDED:
            z = exponents(z, scale, cap, SOFTCAP)
        elif FOLDED:
            if SOFTCAP:
                z = tangent(z * scale, SOFTCAP)
        else:
            added = load_bias(bias, bias_rows[:, None], column[None, :], across, bias_column)
            z, _ = changed(z, behind, slope, added, scale, cap, SOFTCAP)
        if MASKED:
            seen = sees(across, behind, left, right, LEFT, RIGHT)
            if MASK is not None:
                of_keys = ids_of(key_ids, column, inside)
                seen = seen & allows(MASK, batch, head, position, column, query_ids, of_keys, prefix, 1)
            z = tl.where(seen, z, float("-inf"))
        if BOUNDED:
            p = tl.exp2(z)
            total += tl.sum(p, axis=1)
        else:
            p, kept, total, top = weighed(z, total, top, last, coarse, FOLDED)
            acc = times(acc, kept, REST_E)
        if WORDS:
            values = (numbers_of_words(words, BLOCK_E, FORMAT),)
        elif PAGE > 0:
            values = load_paged(
                v, page, row, paged[2], v_row, v_lane, BLOCK_E, REST_E, E, False, WIDEN, DTYPE, FORMAT, CAST
            )
        else:
            values = load_block(
                v, v_rest, batch, first_key, first, key_head, rows, v_row, v_lane, inside, BLOCK_N, BLOCK_E, REST_E, E,
                False, WIDEN, DESCRIBED, RAGGED,
            )  # fmt: skip
        if SCALED == EACH_ROW:
            p = p * scale_of(paged[5], page * PAGE + row, paged[6])[None, :]
        weights = p.to(DTYPE)
        if WIDEN:
            weights = weights.to(tl.float32)
        acc = add_weighted_rows(acc, weights, values, REST_E, PRECISION)
    return acc, total, top
