"""Keys and values in pages: where a sequence's tokens lie, how float8 becomes the queries' dtype, and what scales it.

A page is a number, and so are offsets, of 64 bits. What no query of a tile sees is not read: whatever it holds, nothing
comes of it, and entries of the table behind a sequence's last page are not followed.
"""
# pyright: reportGeneralTypeIssues=false
# Tuples grow by concatenation, the one way that Triton knows, and have a second part where REST says so.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc"

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring import ArgumentValueError
from portakernel.authoring.tensors import as_bytes, is_aligned
from portakernel_plugins.triton.attention.head_parts import load_rows
from portakernel_plugins.triton.quantize.float8 import conversion, widened

# How many elements of a cache one scale is for.
_KINDS = ("none", "tensor", "head", "token_head")
ALL_HEADS, EACH_ROW = (tl.constexpr(_KINDS.index(kind)) for kind in ("tensor", "token_head"))


@triton.jit
def nearest_seen(token, lowest, keys):
    """Each token or, where no query sees it, the next that one sees: it is read again, and no copy needs a mask."""
    return tl.maximum(tl.minimum(token, keys - 1), lowest)


@triton.jit
def place_of(table, token, PAGE: tl.constexpr):
    """The page of each token, int64, and its row there."""
    page = tl.load(table + token // PAGE)
    return page.to(tl.int64), (token % PAGE).to(tl.int64)


@triton.jit
def places_of_block(table, first, lowest, keys, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """As ``place_of`` for the nearest seen of a block of tokens from ``first`` on, a multiple of ``BLOCK``.

    Where the block lies in one page there is one page for all.
    """
    token = nearest_seen(first + tl.arange(0, BLOCK), lowest, keys)
    if PAGE % BLOCK == 0:
        page = tl.load(table + first // PAGE).to(tl.int64)
        row = (token % PAGE).to(tl.int64)
    else:
        page, row = place_of(table, token, PAGE)
    return page, row


@triton.jit
def _decoded(codes, FORMAT: tl.constexpr, CAST: tl.constexpr, DTYPE: tl.constexpr, WIDEN: tl.constexpr):
    numbers = widened(codes, FORMAT, CAST).to(DTYPE)  # exact: each has more digits than float8, and more exponents
    if WIDEN:
        numbers = numbers.to(tl.float32)
    return numbers


@triton.jit
def load_paged(
    source,
    page,
    row,
    page_stride,
    row_stride,
    lane_stride,
    BLOCK: tl.constexpr,
    REST: tl.constexpr,
    WIDTH: tl.constexpr,
    TURNED: tl.constexpr,
    WIDEN: tl.constexpr,
    DTYPE: tl.constexpr,
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
):
    """Rows of a head, which ``source`` points to in the first page, as ``load_rows`` gives them."""
    rows = page * page_stride + row * row_stride
    parts = load_rows(source, rows, lane_stride, None, BLOCK, REST, WIDTH, TURNED, WIDEN and FORMAT == "")
    if FORMAT != "":
        numbers = (_decoded(parts[0], FORMAT, CAST, DTYPE, WIDEN),)
        if REST > 0:
            numbers = numbers + (_decoded(parts[1], FORMAT, CAST, DTYPE, WIDEN),)
        parts = numbers
    return parts


@triton.jit
def scale_of(scales, row, heads):
    """What each row of the cache is multiplied by; ``scales`` points to the head's own in the first."""
    return tl.load(scales + row * heads)


@triton.jit
def scales_of_head(k_scale, v_scale, key_head, SCALED: tl.constexpr):
    """What a head's keys and values are multiplied by: numbers, with ``EACH_ROW`` where they begin, or nothing: 1."""
    of_keys = 1.0
    of_values = 1.0
    if SCALED > 0:
        of_keys = k_scale
        of_values = v_scale
        if SCALED > ALL_HEADS:
            of_keys += key_head
            of_values += key_head
        if SCALED < EACH_ROW:
            of_keys = tl.load(of_keys)
            of_values = tl.load(of_values)
    return of_keys, of_values


@dataclass(frozen=True, slots=True)
class Pages:
    """A call's caches ``(NP, P, G, D)``, its table ``(B, W)`` and lengths ``(B,)``; scales as ``kv_scales`` says."""

    keys: Tensor
    values: Tensor
    table: Tensor
    lengths: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None
    kv_scales: str
    format: str
    longest: int

    @classmethod
    def of(
        cls,
        key_cache: Tensor,
        value_cache: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        k_scale: Tensor | None,
        v_scale: Tensor | None,
        kv_scales: str,
        max_seqlen_k: int | None,
    ) -> Pages:
        """Without ``max_seqlen_k`` a sequence may have as many keys as a row of the table has pages for.

        Raises:
            ArgumentValueError: scales are not given as ``kv_scales`` says.
        """
        for which, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
            if (scale is None) != (kv_scales == "none"):
                found = "is missing" if scale is None else "is given"
                raise ArgumentValueError(f"paged_attention: {which} {found} with kv_scales={kv_scales!r}")
        table = block_table if block_table.stride(1) == 1 else block_table.contiguous()
        room = block_table.shape[1] * key_cache.shape[1]
        longest = room if max_seqlen_k is None else min(room, max_seqlen_k)
        narrow = key_cache.element_size() == 1
        name = str(key_cache.dtype).removeprefix("torch.") if narrow else ""
        keys, values = (as_bytes(x) if narrow else x for x in (key_cache, value_cache))
        of_keys, of_values = (None if scale is None else scale.contiguous() for scale in (k_scale, v_scale))
        return cls(keys, values, table, seq_lens.contiguous(), of_keys, of_values, kv_scales, name, longest)

    def values_as_read(self, queries: torch.dtype) -> Tensor:
        """The values or, where decoding multiplies in float16, their words of four codes (``words.py``).

        Each float8 number is one of float16, and weights have more digits there.
        """
        x = self.values
        swift = self.flags["CAST"] == "saturating" and self.kv_scales != _KINDS[EACH_ROW] and queries.itemsize == 2
        whole = x.stride(3) == 1 and not (x.shape[3] % 4 or any(stride % 4 for stride in x.stride()[:3]))
        if swift and whole and x.storage_offset() % 4 == 0 and is_aligned(x, 4):
            return x.view(torch.int32)
        return x

    @property
    def flags(self) -> Mapping[str, Any]:
        """What is compiled into a kernel."""
        how = conversion(self.format, self.keys.device) if self.format else {"FORMAT": "", "CAST": "bits"}
        cast = {name: how[name] for name in ("FORMAT", "CAST")}
        return {"PAGE": self.keys.shape[1], "SCALED": _KINDS.index(self.kv_scales), **cast}

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What kernels take beside the caches."""
        return (self.table, self.lengths, self.k_scale, self.v_scale, self.table.stride(0))
