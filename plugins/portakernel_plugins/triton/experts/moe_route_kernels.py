"""The kernels of ``moe_route``: which experts a row has, their weights, and the gradient of these.

What decides is compared as int32 numbers in the order of the float32 ones, of which a further number is below all:
what was chosen, or cannot be, has that, so that k passes over a row find k different experts whatever the row holds. A
row's experts are the lanes of a warp. Where there are groups, each takes a power of two of them.

Weights are shares of the largest of what is summed, as in the reference: nothing vanishes that would be divided by. In
backward they are computed again from the logits of the chosen experts, and for softmax over all experts from the row.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import triton
import triton.language as tl

from portakernel.authoring.triton import program_index
from portakernel_plugins.triton.exponentials import exponential

# Below the number of -inf.
OUT = tl.constexpr(-(2**31))


@triton.jit
def _without_nan(x):
    return tl.where(x == x, x, float("-inf"))  # noqa: PLR0124 - NaN is not


@triton.jit
def _ordered(x):
    """int32 numbers in the order of float32 ones, among which zeros are alike, and NaN is -inf."""
    x = _without_nan(x)
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _number(ordered):
    """The float32 number that ``_ordered`` has made this of."""
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _best(ordered, AXIS: tl.constexpr):
    """The largest of each row along ``AXIS``, the last one, and where the first one of it is.

    Two reductions of one number each: NVIDIA's warps have an instruction for those, and none for pairs.
    """
    best = tl.max(ordered, axis=AXIS)
    lane = tl.arange(0, ordered.shape[AXIS])
    for _ in tl.static_range(AXIS):
        lane = tl.expand_dims(lane, 0)
    is_best = ordered == tl.expand_dims(best, AXIS)
    return best, tl.min(tl.where(is_best, lane, ordered.shape[AXIS]), axis=AXIS)


@triton.jit
def _below(x, top):
    """``x - top``, 0 where they are equal, infinities too."""
    return tl.where(x == top, 0.0, x - top)


@triton.jit
def _in_kept_groups(
    ordered,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP_LANES: tl.constexpr,
    MEMBER_LANES: tl.constexpr,
    KEPT: tl.constexpr,
    BIASED: tl.constexpr,
):
    """``ordered``, ``OUT`` but in the best groups of each row."""
    members = tl.reshape(ordered, (ROWS, GROUP_LANES, MEMBER_LANES))
    if BIASED:
        first, at = _best(members, 2)
        is_first = tl.arange(0, MEMBER_LANES)[None, None, :] == at[:, :, None]
        second = tl.max(tl.where(is_first, OUT, members), axis=2)
        groups = _ordered(_number(first) + tl.where(second == OUT, 0.0, _number(second)))
    else:
        groups = tl.max(members, axis=2)
    lane = tl.arange(0, GROUP_LANES)[None, :]
    groups = tl.where(lane < GROUPS, groups, OUT)
    kept = tl.zeros((ROWS, GROUP_LANES), tl.int32)
    for _ in range(KEPT):
        _, place = _best(groups, 1)
        here = lane == place[:, None]
        kept = tl.where(here, 1, kept)
        groups = tl.where(here, OUT, groups)
    return tl.reshape(tl.where((kept != 0)[:, :, None], members, OUT), (ROWS, GROUP_LANES * MEMBER_LANES))


@triton.jit
def _weights(chosen, is_choice, row, SIGMOID: tl.constexpr, NORMALIZES: tl.constexpr):
    """The weights of chosen logits ``(ROWS, choices)``, without ``factor``; ``row`` are all logits, -inf beside."""
    if SIGMOID and not NORMALIZES:
        return 1.0 / (1.0 + tl.exp(-chosen))
    if SIGMOID:
        falling = tl.minimum(chosen, 0.0)
        top = tl.max(tl.where(is_choice, falling, float("-inf")), axis=1)[:, None]
        e = exponential(_below(falling, top)) / (1.0 + exponential(-tl.abs(chosen)))
        total = tl.sum(tl.where(is_choice, e, 0.0), axis=1)[:, None]
    elif NORMALIZES:
        top = tl.max(chosen, axis=1)[:, None]
        e = exponential(_below(chosen, top))
        total = tl.sum(tl.where(is_choice, e, 0.0), axis=1)[:, None]
    else:
        top = tl.max(row, axis=1)[:, None]
        e = exponential(_below(chosen, top))
        total = tl.sum(exponential(_below(row, top)), axis=1)[:, None]
    return tl.where(top == float("-inf"), 0.0, e / total)


@triton.jit(do_not_specialize=["rows"])
def forward(
    logits,  # (M, E)
    bias,  # (E,). None: there is none
    weights,  # (M, K) float32
    experts,  # (M, K) int32
    rows,
    logits_stride,
    bias_stride,
    factor,
    K: tl.constexpr,
    CHOICES: tl.constexpr,  # a power of two from K on
    SCORING: tl.constexpr,
    NORMALIZES: tl.constexpr,
    BIASED: tl.constexpr,
    GROUPS: tl.constexpr,
    MEMBERS: tl.constexpr,  # of a group
    KEPT: tl.constexpr,
    GROUP_LANES: tl.constexpr,  # powers of two from GROUPS and MEMBERS on
    MEMBER_LANES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Each row's experts and their weights."""
    row = program_index() * ROWS + tl.arange(0, ROWS)
    is_row = (row < rows)[:, None]
    lane = tl.arange(0, GROUP_LANES * MEMBER_LANES)
    if GROUPS == 1 or MEMBERS == MEMBER_LANES:
        # written so that several are seen to be read at once
        expert = lane
        is_expert = lane < GROUPS * MEMBERS
    else:
        expert = lane // MEMBER_LANES * MEMBERS + lane % MEMBER_LANES
        is_expert = (lane // MEMBER_LANES < GROUPS) & (lane % MEMBER_LANES < MEMBERS)
    at = logits + (row * logits_stride)[:, None] + expert[None, :]
    x = _without_nan(tl.load(at, mask=is_row & is_expert[None, :], other=float("-inf")).to(tl.float32))
    if not BIASED:
        ordered = _ordered(x)
    else:
        of_experts = tl.load(bias + expert * bias_stride, mask=is_expert, other=0.0).to(tl.float32)[None, :]
        if SCORING == "sigmoid":
            ordered = _ordered(1.0 / (1.0 + tl.exp(-x)) + of_experts)
        elif SCORING == "softmax":
            top = tl.max(x, axis=1)[:, None]
            e = exponential(_below(x, top))
            share = tl.where(top == float("-inf"), 0.0, e / tl.sum(e, axis=1)[:, None])
            ordered = _ordered(share + of_experts)
        else:
            ordered = _ordered(x + of_experts)
    ordered = tl.where(is_expert[None, :], ordered, OUT)
    if GROUPS > 1:
        ordered = _in_kept_groups(ordered, ROWS, GROUPS, GROUP_LANES, MEMBER_LANES, KEPT, BIASED)

    choice = tl.arange(0, CHOICES)[None, :]
    chosen = tl.full((ROWS, CHOICES), float("-inf"), tl.float32)
    places = tl.zeros((ROWS, CHOICES), tl.int32)
    for j in range(K):
        best, place = _best(ordered, 1)
        ordered = tl.where(lane[None, :] == place[:, None], OUT, ordered)
        if not BIASED:
            chosen = tl.where(choice == j, _number(best)[:, None], chosen)
        places = tl.where(choice == j, place[:, None], places)
    is_choice = choice < K
    places = places // MEMBER_LANES * MEMBERS + places % MEMBER_LANES
    if BIASED:  # read once more: to find them in registers would be a sum over the row for each
        at = logits + (row * logits_stride)[:, None] + places
        chosen = _without_nan(tl.load(at, mask=is_row & is_choice, other=float("-inf")).to(tl.float32))
    shares = _weights(chosen, is_choice, x, SCORING == "sigmoid", NORMALIZES)
    into = (row * K)[:, None] + choice
    tl.store(weights + into, shares * factor, mask=is_row & is_choice)
    tl.store(experts + into, places, mask=is_row & is_choice)


@triton.jit(do_not_specialize=["rows"])
def backward(
    grad_weights,  # (M, K)
    logits,  # (M, E)
    experts,  # (M, K)
    grad_logits,  # (M, E)
    rows,
    count,  # E
    grad_stride,
    logits_stride,
    experts_stride,
    factor,
    K: tl.constexpr,
    CHOICES: tl.constexpr,
    SIGMOID: tl.constexpr,
    NORMALIZES: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """The gradient of each row's logits."""
    row = program_index() * ROWS + tl.arange(0, ROWS)
    is_row = (row < rows)[:, None]
    choice = tl.arange(0, CHOICES)[None, :]
    is_choice = choice < K
    known = is_row & is_choice
    place = tl.load(experts + (row * experts_stride)[:, None] + choice, mask=known, other=0)
    g = tl.load(grad_weights + (row * grad_stride)[:, None] + choice, mask=known, other=0.0).to(tl.float32) * factor
    first = logits + (row * logits_stride)[:, None]
    chosen = _without_nan(tl.load(first + place, mask=known, other=float("-inf")).to(tl.float32))
    lane = tl.arange(0, LANES)[None, :]
    is_expert = lane < count
    if SIGMOID or NORMALIZES:
        row_logits = None
    else:
        row_logits = tl.load(first + lane, mask=is_row & is_expert, other=float("-inf")).to(tl.float32)
        row_logits = _without_nan(row_logits)
    w = _weights(chosen, is_choice, row_logits, SIGMOID, NORMALIZES)
    dot = tl.sum(tl.where(is_choice, g * w, 0.0), axis=1)[:, None]
    of_chosen = w * g if SIGMOID and not NORMALIZES else w * (g - dot)
    if SIGMOID:
        of_chosen *= 1.0 / (1.0 + tl.exp(chosen))
    if SIGMOID or NORMALIZES:
        found = tl.zeros((ROWS, LANES), tl.float32)
    else:
        found = -dot * _weights(row_logits, is_expert, row_logits, SIGMOID, NORMALIZES)
    for j in range(K):
        here = choice == j
        value = tl.sum(tl.where(here, of_chosen, 0.0), axis=1)[:, None]
        found = tl.where(lane == tl.sum(tl.where(here, place, 0), axis=1)[:, None], value, found)
    into = grad_logits + (row * count)[:, None] + lane
    tl.store(into, found.to(grad_logits.dtype.element_ty), mask=is_row & is_expert)
