"""What no case of ``mla_decode`` shows of its Triton kernels, interpreted: dead slots, shared parts, tiles of rows."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.references import mla_decode as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.attention import mla_decode as kernel

C, R = 48, 16
VALUES = {
    "scale": 0.15,
    "causal": True,
    "window": (-1, -1),
    "max_seqlen_q": None,
    "max_seqlen_k": None,
    "return_lse": True,
}


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def drawn(lengths: tuple[int, ...], queries: tuple[int, ...], *, page: int = 16, heads: int = 4) -> tuple[Tensor, ...]:
    """The arguments of sequences with so many keys and queries; pages are scattered, and one is nobody's."""
    source = torch.Generator().manual_seed(sum(lengths) + page)
    width = max(1, *(-(-length // page) for length in lengths))
    pages = len(lengths) * width + 1
    cache = torch.randn(pages, page, C + R, generator=source)
    table = torch.randperm(pages - 1, generator=source)[: len(lengths) * width].reshape(len(lengths), width).int()
    starts = torch.tensor([*accumulate(queries, initial=0)], dtype=torch.int32)
    q = torch.randn(sum(queries), heads, C + R, generator=source)
    ends = (table, torch.tensor(lengths, dtype=torch.int32), starts)
    return q[..., :C], q[..., C:], cache[..., :C], cache[..., C:], *ends


def called(given: tuple[Tensor, ...], **values: Any) -> Any:
    return kernel.mla_decode(*given, **{**VALUES, **values})


def assert_right(given: tuple[Tensor, ...], **values: Any) -> None:
    wide = (x.double() if x.is_floating_point() else x for x in given)
    expected = reference.forward(*wide, **{**VALUES, **values})
    for found, want in zip(called(given, **values), expected, strict=True):
        torch.testing.assert_close(found.double(), want.double(), atol=2e-5, rtol=2e-5)


def seen_slots(given: tuple[Tensor, ...], left: int) -> Tensor:
    """Which rows of which pages some query sees."""
    latent, table, lengths, starts = given[2], *given[4:]
    seen = torch.zeros(latent.shape[:2], dtype=torch.bool)
    for n, length in enumerate(lengths.tolist()):
        queries = int(starts[n + 1] - starts[n])
        first = 0 if left < 0 else max(length - queries - left, 0)
        for j in range(first if queries else length, length):
            seen[table[n, j // latent.shape[1]], j % latent.shape[1]] = True
    return seen


# in pages of 32 a block's tokens lie in one page, in pages of 7 in several
@pytest.mark.parametrize("page", [7, 32])
@pytest.mark.parametrize("left", [-1, 5])
def test_results_are_bit_equal_whatever_dead_slots_and_entries_hold(page, left):
    given = drawn((70, 47, 33, 5), (1, 40, 0, 3), page=page)
    *queries, latent, rope, table, lengths, starts = given
    seen, found = seen_slots(given, left), list[tuple[Tensor, ...]]()
    number = torch.arange(table.shape[1])
    counts = starts[1:] - starts[:-1]
    first = torch.zeros_like(lengths) if left < 0 else (lengths - counts - left).clamp(min=0)
    reached = (number < (-(-lengths // page))[:, None]) & (number >= (first // page)[:, None]) & (counts > 0)[:, None]
    for fill, entry in ((0.0, 0), (math.nan, -(2**31)), (math.inf, 2**31 - 1), (3e38, -1)):
        caches = [x.masked_fill(~seen[..., None], fill) for x in (latent, rope)]
        dead = table.masked_fill(~reached, entry)
        found.append(called((*queries, *caches, dead, lengths, starts), window=(left, -1)))
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))
    assert_right(given, window=(left, -1))


@pytest.mark.parametrize("page", [1, 16, 48, 64])
@pytest.mark.parametrize(("heads", "queries"), [(1, 1), (16, 1), (17, 2), (40, 1), (5, 16)])
def test_pages_heads_and_queries_of_any_number(page, heads, queries):
    assert_right(drawn((130, 3, 0, 61), (queries, 1, queries, 0), page=page, heads=heads), max_seqlen_q=queries)


@pytest.mark.parametrize("lengths", [(1, 260, 2), (0, 0, 0), (33, 32, 31, 64), (0, 300, 0, 299)])
def test_lists_are_shared_wherever_programs_begin_and_end(lengths):
    assert_right(drawn(lengths, (1,) * len(lengths), heads=40), max_seqlen_q=1)


def test_tiles_of_one_sequence_see_no_further_than_their_own_queries():
    given = drawn((90, 50), (90, 70), heads=3)
    assert_right(given)
    assert_right(given, window=(11, 0))
    assert_right(given, window=(7, 4), causal=False)


def test_equal_calls_give_equal_bits():
    given = drawn((260, 7, 190), (1, 2, 1), heads=20)
    first = called(given)
    called(drawn((33, 64), (1, 1)))
    assert all(map(torch.equal, first, called(given)))


def test_blocks_may_be_counted_in_64_bits(monkeypatch):
    given = drawn((260, 0, 130), (1, 0, 9), heads=20)
    want = called(given)
    monkeypatch.setattr(kernel, "MOST_BLOCKS", 0)
    assert all(map(torch.equal, want, called(given)))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_caches_are_numbers_times_their_scale(dtype):
    *queries, latent, rope, table, lengths, starts = drawn((70, 9, 40), (1, 9, 1), heads=20)
    caches = [x.to(dtype) for x in (latent, rope)]
    scale = torch.tensor(0.37)
    found = called((*queries, *caches, table, lengths, starts), latent_scale=scale)
    numbers = [x.double() * scale.double() for x in caches]
    wide = [x.double() for x in queries]
    for got, want in zip(found, reference.forward(*wide, *numbers, table, lengths, starts, **VALUES), strict=True):
        torch.testing.assert_close(got.double(), want.double(), atol=2e-5, rtol=2e-5)


def test_a_sink_counts_once_however_many_programs_share_a_list():
    given = drawn((260, 0, 7), (1, 1, 1), heads=20)
    sinks = torch.linspace(-3.0, 3.0, 20)
    assert_right(given, sinks=sinks)
    assert_right(given, sinks=torch.full((20,), -math.inf))


def test_caches_lie_apart_or_joined():
    *queries, latent, rope, table, lengths, starts = given = drawn((70, 9), (1, 20))
    assert not latent.is_contiguous()
    apart = (latent.contiguous(), rope.transpose(0, 1).contiguous().transpose(0, 1))
    assert all(map(torch.equal, called(given), called((*queries, *apart, table, lengths, starts))))


def test_rows_of_no_sequence_are_left_as_they_are():
    q_latent, q_rope, *more = given = drawn((70, 9), (20, 1))
    longer = [torch.cat([q, torch.full_like(q[:3], math.nan)]) for q in (q_latent, q_rope)]
    out = torch.full((len(longer[0]), 4, C), 7.0)
    called((*longer, *more), return_lse=False, out=out)
    assert (out[len(q_latent) :] == 7.0).all()
    torch.testing.assert_close(out[: len(q_latent)], called(given)[0])


def test_a_call_whose_sequences_have_no_queries_at_all():
    given = list(drawn((20, 5), (1, 1)))
    given[-1] = torch.zeros(3, dtype=torch.int32)  # both rows are nobody's
    called(tuple(given), max_seqlen_q=0)
