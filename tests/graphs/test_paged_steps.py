"""A serving step, captured once: with other lengths, tables, slots and mixes its replay is eager calls, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel import ops
from portakernel_plugins.triton.attention import counters

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="captures a stream, which takes a GPU")
PAGE, PAGES, WIDTH, HEADS, KEY_HEADS, SIZE = 16, 400, 20, 8, 2, 64
SEQUENCES, TOKENS, LONGEST = 6, 70, 48
# Keys of each sequence, the new ones included, and how many queries it has.
STEPS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((100, 40, 3, 320, 17, 1), (1, 1, 1, 1, 1, 1)),
    ((320, 320, 320, 319, 300, 2), (1, 1, 1, 1, 1, 1)),
    ((5, 1, 2, 3, 4, 5), (1, 1, 1, 1, 1, 1)),
    ((0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0)),
    ((0, 77, 0, 200, 48, 48), (0, 1, 0, 2, 16, 48)),
    ((320, 9, 31, 8, 8, 8), (40, 9, 1, 1, 1, 0)),
)


def step(number: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """What a step is given; its table's dead entries point nowhere, its padding is written nowhere."""
    lengths, queries = STEPS[number]
    source = torch.Generator().manual_seed(number)
    table = torch.full((SEQUENCES, WIDTH), -(2**31), dtype=torch.int64)
    order, first = torch.randperm(PAGES, generator=source), 0
    slots = torch.full((TOKENS,), -1)
    starts = [0]
    for n, (length, count) in enumerate(zip(lengths, queries, strict=True)):
        needed = -(-length // PAGE)
        table[n, :needed] = order[first : first + needed]
        first += needed
        for i in range(count):
            j = length - count + i
            slots[starts[-1] + i] = table[n, j // PAGE] * PAGE + j % PAGE
        starts.append(starts[-1] + count)
    found = {
        "qkv": torch.randn(TOKENS, HEADS + 2 * KEY_HEADS, SIZE, generator=source).to(dtype),
        "table": table.int(),
        "lengths": torch.tensor(lengths, dtype=torch.int32),
        "starts": torch.tensor(starts, dtype=torch.int32),
        "slots": slots,
    }
    return {name: tensor.cuda() for name, tensor in found.items()}


def run(given: dict[str, Tensor], cache: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
    """New keys and values go into the cache, and every query attends to its sequence's."""
    q, k, v = given["qkv"].split([HEADS, KEY_HEADS, KEY_HEADS], 1)
    ops.write_kv_cache(k, v, cache[:, 0], cache[:, 1], given["slots"])
    found = ops.paged_attention(
        q, cache[:, 0], cache[:, 1], given["table"], given["lengths"], given["starts"], return_lse=True, **more
    )
    assert isinstance(found, tuple)
    return found


@pytest.mark.parametrize("longest", [1, LONGEST, None])
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_captured_step_replays_with_other_lengths_tables_and_slots(longest, cache_dtype):
    more = {"max_seqlen_q": longest}
    numbers = [n for n, (_, queries) in enumerate(STEPS) if max(queries) <= (longest or TOKENS)]
    # what was written before the steps is there; all else is NaN
    cache = torch.randn(PAGES, 2, PAGE, KEY_HEADS, SIZE, device="cuda").to(cache_dtype)
    held = step(numbers[0], torch.bfloat16)
    run(held, cache.clone(), **more)
    mine = cache.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = run(held, mine, **more)
    for number in (*numbers, *numbers[::-1]):
        given, other = step(number, torch.bfloat16), cache.clone()
        want = run(given, other, **more)
        mine.copy_(cache)
        for name, tensor in held.items():
            tensor.copy_(given[name])
        graph.replay()
        rows = int(given["starts"][-1])
        assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8))
        assert torch.equal(outs[0][:rows], want[0][:rows])
        assert torch.equal(outs[1][:, :rows], want[1][:, :rows])


def test_two_streams_at_once_do_not_share_what_calls_count_in():
    given = [step(n, torch.bfloat16) for n in (0, 1)]
    cache = torch.randn(PAGES, 2, PAGE, KEY_HEADS, SIZE, device="cuda").bfloat16()
    wants = [run(each, cache, max_seqlen_q=1) for each in given]
    streams = [torch.cuda.Stream() for _ in given]
    torch.cuda.synchronize()
    found: list[list[Tensor]] = [[], []]
    for _ in range(50):
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                q = given[number]["qkv"][:, :HEADS]
                caches = (cache[:, 0], cache[:, 1])
                more = [given[number][name] for name in ("table", "lengths", "starts")]
                found[number].append(ops.paged_attention(q, *caches, *more, max_seqlen_q=1)[: len(STEPS[0][0])])
    torch.cuda.synchronize()
    for each, (want, _) in zip(found, wants, strict=True):
        assert all(torch.equal(y, want[: len(STEPS[0][0])]) for y in each)


def test_pages_beyond_32_bits_of_elements_are_found():
    pages = 2**31 // (PAGE * KEY_HEADS * SIZE) + 8
    cache = torch.full((pages, PAGE, KEY_HEADS, SIZE), math.nan, dtype=torch.bfloat16, device="cuda")
    last = torch.tensor([pages - 1, pages - 3], device="cuda")
    q, k, v = (torch.randn(20, heads, SIZE, device="cuda").bfloat16() for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    values = cache.clone()
    j = torch.arange(20, device="cuda")
    slots = last[j // PAGE] * PAGE + j % PAGE
    ops.write_kv_cache(k, v, cache, values, slots)
    lengths = torch.tensor([20], dtype=torch.int32, device="cuda")
    for queries in (1, 20):
        starts = torch.tensor([0, queries], dtype=torch.int32, device="cuda")
        found = ops.paged_attention(q[:queries], cache, values, last[None].int(), lengths, starts)
        want = ops.attention(q[None, :queries], k[None], v[None], causal=True, kernel="triton.attention")
        torch.testing.assert_close(found, want[0], atol=2e-2, rtol=2e-2)


def test_captured_calls_keep_counters_of_their_own_until_none_are_left(monkeypatch):
    given, cache = step(1, torch.bfloat16), torch.randn(PAGES, 2, PAGE, KEY_HEADS, SIZE, device="cuda").bfloat16()
    want = run(given, cache, max_seqlen_q=1)
    device = cache.device
    held = counters.HELD[device]
    monkeypatch.setattr(held, "_taken", counters.FOR_CAPTURES - SEQUENCES * KEY_HEADS)
    graphs, outs = [torch.cuda.CUDAGraph() for _ in range(2)], list[Tensor]()
    for graph in graphs:  # the second one clears its own
        with torch.cuda.graph(graph):
            outs.append(run(given, cache, max_seqlen_q=1)[0])
    assert held._taken == counters.FOR_CAPTURES + SEQUENCES * KEY_HEADS
    for _ in range(3):
        for graph, out in zip(graphs, outs, strict=True):
            out.zero_()
            graph.replay()
            assert torch.equal(out[:SEQUENCES], want[0][:SEQUENCES])
    assert not held._for_captures.any()
