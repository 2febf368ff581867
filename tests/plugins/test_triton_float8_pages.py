"""Decoding from float8 caches on NVIDIA GPUs: values are read as words of four codes, and products are of float16."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.references import paged_attention as reference
from portakernel.words.target import Target
from portakernel_plugins.triton.attention.paged import paged_attention
from portakernel_plugins.triton.launching.on_triton import compiling

VALUES = {"causal": True, "scale": None, "softcap": 0.0, "max_seqlen_q": 1, "max_seqlen_k": 512, "return_lse": False}
FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2)

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: it is assembly for one")


def drawn(dtype: torch.dtype, cache: torch.dtype, device: str, width: int = 64) -> tuple[Tensor, ...]:
    """Three sequences with 100, 0 and 512 keys in pages of 16, and one query each."""
    source = torch.Generator().manual_seed(width)
    keys, values = (torch.randn(96, 16, 2, width, generator=source).to(cache) for _ in range(2))
    table = torch.randperm(96, generator=source).reshape(3, 32).int()
    lengths, starts = torch.tensor([100, 0, 512]).int(), torch.arange(4).int()
    q = torch.randn(3, 8, width, generator=source).to(dtype)
    return tuple(x.to(device) for x in (q, keys, values, table, lengths, starts))


def scaled(kind: str, device: str, k: float = 1.0, v: float = 1.0) -> dict[str, Any]:
    shape = {"none": None, "tensor": (), "head": (2,), "token_head": (96, 16, 2)}[kind]
    scale, given = (lambda x: None if shape is None else torch.full(shape, x, device=device)), {"kv_scales": kind}
    return {**VALUES, **given, "window": (-1, -1), "k_scale": scale(k), "v_scale": scale(v)}


def assert_right(given: tuple[Tensor, ...], values: dict[str, Any]) -> None:
    q, keys, rest = given[0], given[1:3], given[3:]
    found = paged_attention(*given, **values)
    wide = (q.double(), *(x.double() for x in keys), *rest)
    want = reference.forward(*wide, **{k: x.double() if isinstance(x, Tensor) else x for k, x in values.items()})
    error, size = (found.double() - want).abs().max().item(), want.abs().max().item()
    assert error <= size * (2**-7 if q.dtype is torch.bfloat16 else 2**-10), (error, size)


@on_gpu
@pytest.mark.parametrize("kind", ["none", "tensor", "head", "token_head"])
@pytest.mark.parametrize("cache", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_are_those_of_the_decoded_cache(dtype, cache, kind):
    assert_right(drawn(dtype, cache, "cuda"), scaled(kind, "cuda", 1.25, 0.75))


@on_gpu
@pytest.mark.parametrize("width", [48, 72, 100, 256])
def test_heads_of_other_widths(width):
    assert_right(drawn(torch.bfloat16, FORMATS[0], "cuda", width), scaled("tensor", "cuda"))


@on_gpu
@pytest.mark.parametrize("size", [1e-30, 1e-6, 1e6, 1e30])
def test_queries_and_scales_of_any_size(size):
    """float16 has neither: rows are in units of a power of two."""
    q, *rest = drawn(torch.bfloat16, FORMATS[0], "cuda")
    q[0] *= size
    values = scaled("tensor", "cuda", 1.0 / size, size if size < 1e30 else 1.0)
    assert_right((q, *rest), {**values, "scale": 1.0 / 8})
    q[1:] *= size
    assert_right((q, *rest), {**values, "scale": 1.0 / 8})


@on_gpu
@pytest.mark.parametrize("offset", [0, 1, 2, 4])
def test_values_that_are_no_words_are_read_as_bytes(offset):
    q, keys, values, *rest = drawn(torch.bfloat16, FORMATS[0], "cuda")
    memory = torch.empty(values.numel() + 8, dtype=torch.uint8, device="cuda")[offset : offset + values.numel()]
    moved = memory.view(values.dtype).view(values.shape)
    moved.view(torch.uint8).copy_(values.view(torch.uint8))
    assert_right((q, keys, moved, *rest), scaled("tensor", "cuda"))


@on_gpu
def test_nan_in_a_seen_key_reaches_its_own_sequence_alone():
    q, keys, values, table, *rest = drawn(torch.bfloat16, FORMATS[0], "cuda")
    values.view(torch.uint8)[table[2, 3].long(), 5] = 0x7F
    found = paged_attention(q, keys, values, table, *rest, **scaled("tensor", "cuda"))
    assert found[2].isnan().all()
    assert not found[:2].isnan().any()


@pytest.mark.parametrize(("kind", "words"), [("tensor", True), ("token_head", False)])
def test_hardware_converts_pairs_on_sm_90(kind, words):
    """Per token and head weights times their scales may be too small for float16."""
    with compiling(Target.parse("nvidia:sm_90")) as compiled:
        paged_attention(*drawn(torch.bfloat16, FORMATS[0], "meta"), **scaled(kind, "meta"))
    (kernel,) = compiled
    assert ("mov.b32 {low, high}" in kernel.assembly) == words
    assert not kernel.spilled_bytes
