"""``rotary_embedding`` and its gradient in Triton: pairs ``(a, b)`` of a head's first ``2C`` dimensions are turned.

    a * cos - b * sin, b * cos + a * sin                       cos, sin at the token's position, of the pair

A pair is ``(x[i], x[C + i])`` or, interleaved, ``(x[2i], x[2i + 1])``; what lies beyond ``2C`` passes through.
Gradients are turned back, by the negative angle. Everything is computed in float32 and rounded once, when it is stored.

One launch serves queries and keys: the first programs take rows, each a token's head, of the queries, the others of the
keys. Each thread turns few pairs and reads their cosines where they lie, which for all heads of a token but the first
is in a cache.
"""
# pyright: reportPossiblyUnboundVariable=false
# What branches of compile-time values bind, Triton sees bound.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring import ArgumentValueError
from portakernel.authoring.tensors import contiguous_like, joined_stride
from portakernel.authoring.triton import Held, cdiv, grid_of, per_device, prepared, program_index
from portakernel_plugins.triton.launching.configurations import configuration


@triton.jit
def _turn(
    x,
    y,
    cos,
    sin,
    positions,
    block,
    tokens,
    length,
    x_token_stride,
    x_head_stride,
    y_token_stride,
    y_head_stride,
    cos_stride,
    cos_pair_stride,
    sin_stride,
    sin_pair_stride,
    position_stride,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    REST: tl.constexpr,
    WRAPS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BACK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """Turn rows ``block * BLOCK_M`` and on of one tensor: row ``r`` is head ``r % HEADS`` of token ``r // HEADS``."""
    first = block * BLOCK_M
    first_token = first // HEADS
    # 64 bits in the scalars alone: as many divisions of them as there are rows would be slow
    local = (first - first_token * HEADS).to(tl.int32) + tl.arange(0, BLOCK_M)
    token = first_token + local // HEADS
    head = (local % HEADS).to(tl.int64)
    there = token < tokens
    x_row = (x + token * x_token_stride + head * x_head_stride)[:, None]
    y_row = (y + token * y_token_stride + head * y_head_stride)[:, None]
    if positions is not None:
        position = tl.load(positions + token * position_stride, mask=there, other=0).to(tl.int64)
    elif WRAPS:
        position = ((first_token.to(tl.int32) % length + local // HEADS) % length).to(tl.int64)
    else:
        position = token

    pair = tl.arange(0, BLOCK_C)
    inside = there[:, None] & (pair < PAIRS)[None, :]
    # Everything is read before anything is written: ``y`` may be ``x``.
    if INTERLEAVED:
        element = tl.arange(0, 2 * BLOCK_C)
        elements_inside = there[:, None] & (element < 2 * PAIRS)[None, :]
        both = tl.load(x_row + element[None, :], mask=elements_inside, other=0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(both, (BLOCK_M, BLOCK_C, 2)))
    else:
        a = tl.load(x_row + pair[None, :], mask=inside, other=0.0).to(tl.float32)
        b = tl.load(x_row + (PAIRS + pair)[None, :], mask=inside, other=0.0).to(tl.float32)
    if REST > 0:
        beyond = tl.arange(0, BLOCK_REST)
        rest_inside = there[:, None] & (beyond < REST)[None, :]
        rest = tl.load(x_row + (2 * PAIRS + beyond)[None, :], mask=rest_inside, other=0.0)
        tl.store(y_row + (2 * PAIRS + beyond)[None, :], rest, mask=rest_inside)
    cos_at = cos + (position * cos_stride)[:, None] + (pair.to(tl.int64) * cos_pair_stride)[None, :]
    sin_at = sin + (position * sin_stride)[:, None] + (pair.to(tl.int64) * sin_pair_stride)[None, :]
    c = tl.load(cos_at, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin_at, mask=inside, other=0.0).to(tl.float32)

    if BACK:
        s = -s
    # which product is fused with the sum is no compiler's choice: a token alone gets the bits that it gets among others
    turned_a = tl.fma(a, c, -(b * s)).to(y.dtype.element_ty)
    turned_b = tl.fma(b, c, a * s).to(y.dtype.element_ty)
    if INTERLEAVED:
        turned = tl.reshape(tl.join(turned_a, turned_b), (BLOCK_M, 2 * BLOCK_C))
        tl.store(y_row + element[None, :], turned, mask=elements_inside)
    else:
        tl.store(y_row + pair[None, :], turned_a, mask=inside)
        tl.store(y_row + (PAIRS + pair)[None, :], turned_b, mask=inside)


# Neither is specialised: the number of tokens must not recompile the kernel.
@triton.jit(do_not_specialize=["tokens", "length"])
def _rotary(
    cos: tl.tensor,
    sin: tl.tensor,
    q: tl.tensor,
    k: tl.tensor,
    turned_q: tl.tensor,
    turned_k: tl.tensor,
    positions: tl.tensor,  # None: a token's position is its number, modulo ``length`` where WRAPS
    tokens: tl.tensor,
    length: tl.tensor,
    q_token_stride: tl.tensor,
    q_head_stride: tl.tensor,
    k_token_stride: tl.tensor,
    k_head_stride: tl.tensor,
    turned_q_token_stride: tl.tensor,
    turned_q_head_stride: tl.tensor,
    turned_k_token_stride: tl.tensor,
    turned_k_head_stride: tl.tensor,
    cos_stride: tl.tensor,
    cos_pair_stride: tl.tensor,
    sin_stride: tl.tensor,
    sin_pair_stride: tl.tensor,
    position_stride: tl.tensor,
    Q_HEADS: tl.constexpr,  # 0: the queries' are not wanted
    K_HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    Q_REST: tl.constexpr,  # elements to copy beyond the pairs: 0 where they are in place
    K_REST: tl.constexpr,
    WRAPS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BACK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_REST: tl.constexpr,
) -> None:
    block = program_index()
    q_blocks = (tl.cast(tokens, tl.int64) * Q_HEADS + (BLOCK_M - 1)) // BLOCK_M
    if block < q_blocks:
        if Q_HEADS > 0:
            _turn(
                q,
                turned_q,
                cos,
                sin,
                positions,
                block,
                tokens,
                length,
                q_token_stride,
                q_head_stride,
                turned_q_token_stride,
                turned_q_head_stride,
                cos_stride,
                cos_pair_stride,
                sin_stride,
                sin_pair_stride,
                position_stride,
                Q_HEADS,
                PAIRS,
                Q_REST,
                WRAPS,
                INTERLEAVED,
                BACK,
                BLOCK_M,
                BLOCK_C,
                BLOCK_REST,
            )
    elif K_HEADS > 0:
        _turn(
            k,
            turned_k,
            cos,
            sin,
            positions,
            block - q_blocks,
            tokens,
            length,
            k_token_stride,
            k_head_stride,
            turned_k_token_stride,
            turned_k_head_stride,
            cos_stride,
            cos_pair_stride,
            sin_stride,
            sin_pair_stride,
            position_stride,
            K_HEADS,
            PAIRS,
            K_REST,
            WRAPS,
            INTERLEAVED,
            BACK,
            BLOCK_M,
            BLOCK_C,
            BLOCK_REST,
        )


class _Turn(NamedTuple):
    """What a launch is told of the queries or of the keys."""

    x: Tensor | None
    y: Tensor | None
    x_strides: tuple[int, int] = (0, 0)
    y_strides: tuple[int, int] = (0, 0)
    heads: int = 0
    rest: int = 0


_NONE = _Turn(None, None)


def _strides(x: Tensor) -> tuple[int, int] | None:
    """The strides of tokens and heads of ``x: (*S, heads, D)``; None where a kernel cannot follow them."""
    heads, width = x.shape[-2:]
    if x.is_contiguous():
        return heads * width, width
    strides = x.stride()
    token = joined_stride(x.shape[:-2], strides[:-2]) if width == 1 or strides[-1] == 1 else None
    return None if token is None else (token, strides[-2])


def _plan(x: Tensor, out: Tensor | None, pairs: int) -> _Turn:
    """``x`` and where its result goes: through contiguous copies where a kernel cannot follow the strides."""
    heads, width = x.shape[-2:]
    x_strides, y_strides = _strides(x), None if out is None else _strides(out)
    rest = 0 if out is x and y_strides is not None else width - 2 * pairs
    if x_strides is None:
        x, x_strides = x.contiguous(), (heads * width, width)
    if out is not None and y_strides is not None:
        return _Turn(x, out, x_strides, y_strides, heads, rest)
    y = contiguous_like(x)
    return _Turn(x, y, x_strides, (heads * width, width), heads, rest)


def _rotate(
    q: _Turn,
    k: _Turn,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    leading: Sequence[int],
    interleaved: bool,
    back: bool,
) -> None:
    tokens, pairs = math.prod(leading), cos.shape[1]
    length = leading[-1] if leading else 1
    if positions is None and length > cos.shape[0]:
        raise ArgumentValueError(
            f"rotary_embedding: cos and sin have {cos.shape[0]} positions (L), but the last leading dimension of q has"
            f" {length} tokens; without positions, a token's position is its index there"
        )
    if not tokens * (q.heads + k.heads) * (pairs + max(q.rest, k.rest)):
        return
    position_stride = 0
    if positions is not None:
        stride = joined_stride(leading, positions.stride())
        positions, position_stride = (positions.contiguous(), 1) if stride is None else (positions, stride)
    rest = max(q.rest, k.rest)
    wraps = length != tokens
    held, together = _launch_of(
        "rotary_embedding",
        cos.device,
        max(pairs, rest),
        pairs,
        q.heads,
        k.heads,
        q.rest,
        k.rest,
        wraps,
        interleaved,
        back,
    )
    held.launch(
        grid_of(cdiv(tokens * q.heads, together) + cdiv(tokens * k.heads, together)),
        cos,
        sin,
        q.x,
        k.x,
        q.y,
        k.y,
        positions,
        tokens,
        length,
        *q.x_strides,
        *k.x_strides,
        *q.y_strides,
        *k.y_strides,
        *cos.stride(),
        *sin.stride(),
        position_stride,
    )


@per_device
def _launch_of(
    kernel: str,
    device: torch.device,
    size: int,
    pairs: int,
    q_heads: int,
    k_heads: int,
    q_rest: int,
    k_rest: int,
    wraps: bool,
    interleaved: bool,
    back: bool,
) -> tuple[Held, int]:
    """What is launched for heads of these sizes, and how many of them a program takes."""
    how = configuration(kernel, device, size)
    meta = {
        "Q_HEADS": q_heads,
        "K_HEADS": k_heads,
        "PAIRS": pairs,
        "Q_REST": q_rest,
        "K_REST": k_rest,
        "WRAPS": wraps,
        "INTERLEAVED": interleaved,
        "BACK": back,
        "BLOCK_M": how.rows,
        "BLOCK_C": 1 << max(pairs - 1, 0).bit_length(),
        "BLOCK_REST": 1 << max(q_rest - 1, k_rest - 1, 0).bit_length(),
        **how.options,
    }
    return prepared(_rotary, meta, "C"), how.rows


def rotary_embedding(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: bool = False,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """``q: (*S, H, D)`` and ``k: (*S, G, D)`` turned by ``cos, sin: (L, C)`` at ``positions: (*S,)``.

    Any strides: tables are read where they lie, and so are ``q`` and ``k`` if a head is contiguous and all tokens have
    one stride. ``q``, ``k``: float32, float16 or bfloat16; tables of that dtype or float32. ``out``: any strides; may
    be ``(q, k)`` itself.

    Raises:
        ArgumentValueError: there are no positions, and more tokens than the tables have.
    """
    pairs = cos.shape[1]
    queries = _plan(q, None if out is None else out[0], pairs)
    keys = _plan(k, None if out is None else out[1], pairs)
    _rotate(queries, keys, cos, sin, positions, q.shape[:-2], interleaved, back=False)
    turned_q, turned_k = queries.y, keys.y
    assert turned_q is not None
    assert turned_k is not None
    if out is None:
        return turned_q, turned_k
    for place, turned in zip(out, (turned_q, turned_k), strict=True):
        if turned is not place:
            place.copy_(turned)
    return out


def backward(
    grad_turned_q: Tensor | None,
    grad_turned_k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    *,
    interleaved: bool = False,
    needs: tuple[bool, bool, bool, bool, bool] = (True, True, False, False, False),
) -> tuple[Tensor | None, Tensor | None, None, None, None]:
    """The gradients for ``q`` and ``k``: those of their results, any strides, turned back; the rest has none."""
    pairs = cos.shape[1]
    queries = _plan(grad_turned_q, None, pairs) if grad_turned_q is not None and needs[0] else _NONE
    keys = _plan(grad_turned_k, None, pairs) if grad_turned_k is not None and needs[1] else _NONE
    any_grad = grad_turned_q if grad_turned_q is not None else grad_turned_k
    if any_grad is not None:
        _rotate(queries, keys, cos, sin, positions, any_grad.shape[:-2], interleaved, back=True)
    return queries.y, keys.y, None, None, None
