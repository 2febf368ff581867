"""``rotary_embedding`` in HIP C++: pairs of each head's first ``2C`` dimensions turned by their position's angles."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from portakernel.authoring import ArgumentValueError
from portakernel.authoring.tensors import delivered
from portakernel_plugins.hip.configurations import configuration
from portakernel_plugins.hip.launch import Launch, arch_of, cdiv, name_of, program
from portakernel_plugins.hip.rows import are_whole, packs_of, single_stride

_ROTARY = program("rotary_embedding", pointers=7, integers=18)


class _Heads(NamedTuple):
    """Queries or keys: where they lie, where their results go, and how many elements beyond the pairs are copied."""

    x: Tensor
    y: Tensor
    x_strides: tuple[int, int]
    y_strides: tuple[int, int]
    rest: int


def _strides(x: Tensor) -> tuple[int, int] | None:
    """The strides of tokens and heads of ``x: (*S, heads, D)``; None where a kernel cannot follow them."""
    heads, width = x.shape[-2:]
    if x.is_contiguous():
        return heads * width, width
    strides = x.stride()
    token = single_stride(x.shape[:-2], strides[:-2]) if width == 1 or strides[-1] == 1 else None
    return None if token is None else (token, strides[-2])


def _heads(x: Tensor, out: Tensor | None, pairs: int) -> _Heads:
    """``x`` and where its result goes: through contiguous copies where a kernel cannot follow the strides."""
    heads, width = x.shape[-2:]
    x_strides, y_strides = _strides(x), None if out is None else _strides(out)
    rest = 0 if out is x and y_strides is not None else width - 2 * pairs
    if x_strides is None:
        x, x_strides = x.contiguous(), (heads * width, width)
    if out is not None and y_strides is not None:
        return _Heads(x, out, x_strides, y_strides, rest)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return _Heads(x, y, x_strides, (heads * width, width), rest)


def _table(table: Tensor) -> tuple[Tensor, int]:
    """Cosines or sines with contiguous rows, and the stride of these."""
    if table.shape[1] > 1 and table.stride(1) != 1:
        table = table.contiguous()
    return table, table.stride(0)


@lru_cache(maxsize=4096)
def _launch(
    arch: str,
    dtype: torch.dtype,
    table_dtype: torch.dtype,
    position_dtype: torch.dtype | None,
    size: int,
    whole: bool,
    interleaved: bool,
) -> Launch:
    how = configuration("rotary_embedding", arch, size)
    defines = (
        ("ELEMENT", name_of(dtype)),
        ("TABLE", name_of(table_dtype)),
        ("POSITION", "int" if position_dtype is torch.int32 else "int64"),
        ("THREADS", how.threads),
        ("ROW_THREADS", how.row_threads),
        ("WHOLE", int(whole)),
        ("INTERLEAVED", int(interleaved)),
    )
    return Launch(_ROTARY, how, defines)


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

    Any strides: ``q`` and ``k`` are read where they lie if a head is contiguous and all tokens have one stride, tables
    if their rows are. ``q``, ``k``: float32, float16 or bfloat16; tables of that dtype or float32. ``out``: any
    strides; may be ``(q, k)`` itself.

    Raises:
        ArgumentValueError: there are no positions, and more tokens than the tables have.
    """
    leading, pairs = q.shape[:-2], cos.shape[1]
    tokens, length = math.prod(leading), leading[-1] if leading else 1
    if positions is None and length > cos.shape[0]:
        raise ArgumentValueError(
            f"rotary_embedding: cos and sin have {cos.shape[0]} positions (L), but the last leading dimension of q has"
            f" {length} tokens; without positions, a token's position is its index there"
        )
    q_out, k_out = (None, None) if out is None else out
    queries, keys = _heads(q, q_out, pairs), _heads(k, k_out, pairs)
    heads, rest = q.shape[-2] + k.shape[-2], max(queries.rest, keys.rest)
    if tokens * heads * (pairs + rest):
        _turn(queries, keys, cos, sin, positions, tokens, length, pairs, interleaved)
    return delivered(queries.y, q_out), delivered(keys.y, k_out)


def _turn(
    q: _Heads,
    k: _Heads,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    tokens: int,
    length: int,
    pairs: int,
    interleaved: bool,
) -> None:
    position_stride = 0
    if positions is not None:
        stride = single_stride(positions.shape, positions.stride())
        positions, position_stride = (positions.contiguous(), 1) if stride is None else (positions, stride)
    (cos, cos_stride), (sin, sin_stride) = _table(cos), _table(sin)
    q_heads, k_heads = q.x.shape[-2], k.x.shape[-2]
    strides = (*q.x_strides, *k.x_strides, *q.y_strides, *k.y_strides)
    lengths = pairs | q.rest | k.rest
    for stride in strides:
        lengths |= stride
    whole = are_whole(lengths, q.x.element_size(), q.x, k.x, q.y, k.y)
    whole = whole and are_whole(cos_stride | sin_stride, cos.element_size(), cos, sin)
    size = packs_of(max(pairs, q.rest, k.rest), q.x)
    position_dtype = None if positions is None else positions.dtype
    launch = _launch(arch_of(cos), q.x.dtype, cos.dtype, position_dtype, size, whole, interleaved)
    tensors = (cos, sin, positions, q.x, k.x, q.y, k.y)
    sizes = (tokens, length, q_heads, k_heads, pairs, q.rest, k.rest)
    blocks = cdiv(tokens * (q_heads + k_heads), launch.how.rows)
    launch(blocks, *tensors, *sizes, *strides, cos_stride, sin_stride, position_stride)
