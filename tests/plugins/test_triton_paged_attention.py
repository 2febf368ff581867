"""What no case of ``paged_attention`` shows of its Triton kernels, interpreted: dead slots, shared parts, orders."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.references import paged_attention as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.attention import hopper_paged
from portakernel_plugins.triton.attention.counters import Counters
from portakernel_plugins.triton.attention.forward import launch_forward
from portakernel_plugins.triton.attention.paged import paged_attention
from portakernel_plugins.triton.attention.paged_decode import most_queries

VALUES = {
    "kv_scales": "none",
    "causal": True,
    "scale": None,
    "window": (-1, -1),
    "softcap": 0.0,
    "max_seqlen_q": None,
    "max_seqlen_k": None,
    "return_lse": True,
}


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def drawn(
    lengths: tuple[int, ...], queries: tuple[int, ...], *, page: int = 16, heads: int = 4, key_heads: int = 2
) -> tuple[Tensor, ...]:
    """The arguments of sequences with so many keys and queries; pages are scattered, and one is nobody's."""
    source = torch.Generator().manual_seed(sum(lengths) + page)
    width = max(1, *(-(-length // page) for length in lengths))
    pages = len(lengths) * width + 1
    keys, values = (torch.randn(pages, page, key_heads, 32, generator=source) for _ in range(2))
    table = torch.randperm(pages - 1, generator=source)[: len(lengths) * width].reshape(len(lengths), width).int()
    starts = torch.tensor([*accumulate(queries, initial=0)], dtype=torch.int32)
    q = torch.randn(sum(queries), heads, 32, generator=source)
    return q, keys, values, table, torch.tensor(lengths, dtype=torch.int32), starts


def called(given: tuple[Tensor, ...], **values: Any) -> tuple[Tensor, Tensor]:
    return paged_attention(*given, **{**VALUES, **values})


def assert_right(given: tuple[Tensor, ...], **values: Any) -> None:
    wide = (x.double() if x.is_floating_point() else x for x in given)
    wide_values = {name: x.double() if isinstance(x, Tensor) else x for name, x in values.items()}
    wants = reference.forward(*wide, return_lse=True, **wide_values)
    for found, want in zip(called(given, **values), wants, strict=True):
        torch.testing.assert_close(found.double(), want, atol=2e-5, rtol=2e-5)


def seen_slots(given: tuple[Tensor, ...], left: int) -> Tensor:
    """Which rows of which pages some query sees."""
    _, keys, _, table, lengths, starts = given
    seen = torch.zeros(keys.shape[:2], dtype=torch.bool)
    for n, length in enumerate(lengths.tolist()):
        queries = int(starts[n + 1] - starts[n])
        first = 0 if left < 0 else max(length - queries - left, 0)
        for j in range(first if queries else length, length):
            seen[table[n, j // keys.shape[1]], j % keys.shape[1]] = True
    return seen


@pytest.mark.parametrize("left", [-1, 5])
@pytest.mark.parametrize("queries", [(1, 1, 1, 1), (1, 40, 0, 3)])
def test_results_are_bit_equal_whatever_dead_slots_and_entries_hold(queries, left):
    given = drawn((70, 47, 33, 5), queries)
    q, keys, values, table, lengths, starts = given
    seen, found = seen_slots(given, left), list[tuple[Tensor, ...]]()
    reached = torch.arange(table.shape[1]) < (-(-lengths // 16))[:, None]
    for fill, entry in ((0.0, 0), (math.nan, -(2**31)), (math.inf, 2**31 - 1), (3e38, -1)):
        k, v = (x.masked_fill(~seen[..., None, None], fill) for x in (keys, values))
        dead = table.masked_fill(~reached, entry)
        found.append(called((q, k, v, dead, lengths, starts), window=(left, -1)))
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))
    assert_right(given, window=(left, -1))


def test_what_lies_before_every_window_may_be_nobody_s_page():
    given = drawn((70, 90), (1, 2))
    q, keys, values, table, lengths, starts = given
    table = table.clone()
    table[:, :3] = 2**31 - 1  # the windows begin in the fourth page
    want = called(given, window=(9, -1))
    found = called((q, keys, values, table, lengths, starts), window=(9, -1))
    assert all(map(torch.equal, want, found))


@pytest.mark.parametrize("page", [1, 7, 16, 48, 128])
@pytest.mark.parametrize("queries", [1, 2, 5, 16])
def test_pages_and_queries_of_any_number(page, queries):
    assert_right(drawn((130, 3, 0, 61), (queries, 1, queries, queries), page=page), max_seqlen_q=queries)


@pytest.mark.parametrize("queries", [1, 2, 5, 16, 40])
def test_pages_that_are_longer_than_most_sequences(queries):
    assert_right(drawn((800, 3, 0, 61), (queries, 1, queries, queries), page=784), max_seqlen_q=queries)


# Every two values of different features are in one of them.
FEATURES = (
    ((-1, -1), True, False, 0.0, (4, 4)),
    ((-1, -1), True, True, 2.0, (6, 2)),
    ((-1, -1), False, True, 0.0, (8, 1)),
    ((9, 0), True, True, 0.0, (4, 4)),
    ((9, 0), True, False, 2.0, (8, 1)),
    ((40, -1), True, True, 2.0, (6, 2)),
    ((9, 0), False, False, 0.0, (6, 2)),
    ((5, 3), False, True, 2.0, (4, 4)),
    ((70, 2), False, False, 2.0, (8, 1)),
)


@pytest.mark.parametrize(("window", "causal", "sunk", "softcap", "heads"), FEATURES)
def test_windows_sinks_softcaps_and_groups_meet(window, causal, sunk, softcap, heads):
    # one query, whose keys several programs share; some; more than are decoded; more queries than keys; no keys
    given = drawn((260, 33, 75, 50, 0), (1, 3, 70, 66, 2), heads=heads[0], key_heads=heads[1])
    sinks = torch.linspace(-1.0, 4.0, heads[0]) if sunk else None
    assert_right(given, window=window, causal=causal, sinks=sinks, softcap=softcap, scale=0.4)


@pytest.mark.parametrize("queries", [1, 40])
def test_pages_beyond_32_bits_of_elements_are_read(queries):
    q, *caches, _, lengths, starts = drawn((20,), (queries,))
    near = [x[:2].to(torch.float8_e5m2) for x in caches]
    pages = (1 << 31) // near[0][0].numel() + 4
    far = [torch.empty(pages, *x.shape[1:], dtype=x.dtype) for x in near]  # untouched memory is not there
    for x, of in zip(near, far, strict=True):
        of[pages - 2 :] = x
    tables = [torch.tensor([[last, last - 1]], dtype=torch.int32) for last in (1, pages - 1)]
    both = [called((q, *x, table, lengths, starts)) for x, table in zip((near, far), tables, strict=True)]
    assert all(map(torch.equal, *both))


@pytest.mark.parametrize("lengths", [(260,), (1, 260, 2), (0, 0, 0), (33, 32, 31, 64), (0, 300, 0, 299)])
def test_lists_are_shared_wherever_programs_begin_and_end(lengths):
    assert_right(drawn(lengths, (1,) * len(lengths)), max_seqlen_q=1)


def test_equal_calls_give_equal_bits_and_leave_nothing_behind():
    given = drawn((260, 7, 190), (1, 2, 1))
    first = called(given)
    called(drawn((33, 64), (1, 1)))
    assert all(map(torch.equal, first, called(given)))


@pytest.mark.parametrize("heads", [(8, 1), (6, 2), (5, 5), (130, 1)])
def test_groups_of_heads_of_any_size(heads):
    assert_right(drawn((70, 9), (1, 3), heads=heads[0], key_heads=heads[1]), max_seqlen_q=3)


def test_caches_lie_heads_first_or_joined():
    q, keys, values, *more = given = drawn((70, 9), (1, 20))
    want = called(given)
    heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (keys, values)]
    in_one = torch.stack([keys, values], 1)
    side_by_side = torch.cat([keys, values], -1)
    for k, v in (heads_first, (in_one[:, 0], in_one[:, 1]), (side_by_side[..., :32], side_by_side[..., 32:])):
        assert not (k.is_contiguous() and v.is_contiguous())
        assert all(map(torch.equal, want, called((q, k, v, *more))))


def test_a_split_prefill_leaves_alone_what_decoding_has_written():
    # one sequence has too many queries for decoding and so few that its keys are shared among programs
    few = most_queries(2)
    given = drawn((200, 180, 150), (few + 8, few, 1))
    assert_right(given)


@pytest.mark.parametrize("queries", [(1, 1), (20, 1)])
def test_rows_of_no_sequence_are_left_as_they_are(queries):
    q, keys, values, table, lengths, starts = drawn((70, 9), queries)
    more = torch.cat([q, torch.full_like(q[:3], math.nan)])
    out = torch.full((len(more), 4, 32), 7.0)
    values_of = {**VALUES, "return_lse": False}
    paged_attention(more, keys, values, table, lengths, starts, **values_of, out=out)
    assert (out[len(q) :] == 7.0).all()
    torch.testing.assert_close(out[: len(q)], called((q, keys, values, table, lengths, starts))[0])


def test_without_a_bound_of_queries_all_lengths_are_served():
    given = drawn((70, 9, 40), (1, 9, 34))
    bounded = called(given, max_seqlen_q=34, max_seqlen_k=70)
    assert_right(given)
    for found, want in zip(called(given), bounded, strict=True):
        torch.testing.assert_close(found, want)


def test_counters_of_captured_calls_lie_as_those_that_launches_were_compiled_for():
    held = Counters(torch.device("cpu"))
    taken = [held.of_capture(count) for count in (1, 2, 3, 4, 5, 30)]
    assert [len(each) for each in taken] == [1, 2, 3, 4, 5, 30]
    assert {each.data_ptr() % 16 for each in taken} == {0}
    ends = [(each.data_ptr(), each.data_ptr() + each.nbytes) for each in taken]
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))


def by_rows(q: Tensor, k: Tensor, v: Tensor, slopes: Any, sinks: Any, written: Any, how: Any, sequences: Any) -> None:
    """In the place of the kernel for Hopper, which is not interpreted: the one that any arch has, of the same copy."""
    launch_forward(q, k, v, slopes, None, sinks, written, how, sequences)


@pytest.mark.parametrize("window", [(-1, -1), (5, 0)])
@pytest.mark.parametrize("queries", [(40, 1, 0, 35), (50, 64, 40, 33), (1, 2, 1, 5)])
@pytest.mark.parametrize("most", [1 << 30, 0])
def test_keys_that_are_copied_out_of_their_pages_give_the_same(monkeypatch, queries, window, most):
    monkeypatch.setattr(hopper_paged, "launch_hopper", by_rows)
    monkeypatch.setattr(hopper_paged, "_MOST_BYTES", most)
    given = drawn((70, 47, 33, 35), queries)
    q, keys, values, table, lengths, starts = given
    seen = seen_slots(given, window[0])
    dead = [x.masked_fill(~seen[..., None, None], math.nan) for x in (keys, values)]
    reached = torch.arange(table.shape[1]) < (-(-lengths // 16))[:, None]
    table = table.masked_fill(~reached, -(2**31))
    found = hopper_paged.paged_attention(q, *dead, table, lengths, starts, **{**VALUES, "window": window})
    wide = (x.double() if x.is_floating_point() else x for x in given)
    for got, want in zip(found, reference.forward(*wide, return_lse=True, window=window), strict=True):
        torch.testing.assert_close(got.double(), want, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("kind", ["none", "tensor", "head", "token_head"])
def test_copies_of_float8_pages_are_numbers_times_their_scales(monkeypatch, kind):
    monkeypatch.setattr(hopper_paged, "launch_hopper", by_rows)
    q, keys, values, *more = drawn((70, 47), (40, 35))
    caches = [x.to(torch.float8_e4m3fn) for x in (keys, values)]
    shape = {"none": (), "tensor": (), "head": (2,), "token_head": keys.shape[:3]}[kind]
    scales = {} if kind == "none" else {name: torch.rand(shape) + 0.5 for name in ("k_scale", "v_scale")}
    found = hopper_paged.paged_attention(q, *caches, *more, **{**VALUES, "kv_scales": kind}, **scales)
    want = reference.forward(q.double(), *caches, *more, return_lse=True, kv_scales=kind, **scales)
    for got, wanted in zip(found, want, strict=True):
        torch.testing.assert_close(got.double(), wanted.double(), atol=2e-5, rtol=2e-5)
