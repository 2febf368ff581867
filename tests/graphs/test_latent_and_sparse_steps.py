"""Latent attention and attention over lists of blocks, captured once: replays with other contents are eager calls."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel import masks, ops

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="captures a stream, which takes a GPU")
C, R, SEQUENCES, TOKENS, LONGEST = 512, 64, 6, 6, 320
# Keys of each sequence, the new ones included, and how many queries it has.
STEPS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((100, 40, 3, 320, 17, 1), (1, 1, 1, 1, 1, 1)),
    ((320, 320, 320, 319, 300, 2), (1, 1, 1, 1, 1, 1)),
    ((0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0)),
    ((0, 77, 0, 200, 64, 128), (0, 1, 0, 2, 2, 1)),
)


def step(number: int, heads: int, page: int) -> dict[str, Tensor]:
    """What a step is given; its table's dead entries point nowhere, its padding is written nowhere."""
    lengths, queries = STEPS[number]
    source = torch.Generator().manual_seed(number)
    width = -(-LONGEST // page)
    table = torch.full((SEQUENCES, width), -(2**31), dtype=torch.int64)
    order, slots, starts = torch.randperm(SEQUENCES * width, generator=source), torch.full((TOKENS,), -1), [0]
    for n, (length, count) in enumerate(zip(lengths, queries, strict=True)):
        needed = -(-length // page)
        table[n, :needed] = order[n * width : n * width + needed]
        for i in range(count):
            j = length - count + i
            slots[starts[-1] + i] = table[n, j // page] * page + j % page
        starts.append(starts[-1] + count)
    found = {
        "q": torch.randn(TOKENS, heads, C + R, generator=source).bfloat16(),
        "new": torch.randn(TOKENS, C + R, generator=source).bfloat16(),
        "table": table.int(),
        "lengths": torch.tensor(lengths, dtype=torch.int32),
        "starts": torch.tensor(starts, dtype=torch.int32),
        "slots": slots,
    }
    return {name: tensor.cuda() for name, tensor in found.items()}


def run(given: dict[str, Tensor], cache: Tensor) -> tuple[Tensor, Tensor]:
    """New vectors go into the cache, and every query attends to its sequence's."""
    new, caches = given["new"].split([C, R], 1), cache.split([C, R], 2)
    ops.write_latent_cache(*new, *caches, given["slots"])
    q, where = given["q"].split([C, R], 2), (given["table"], given["lengths"], given["starts"])
    found = ops.mla_decode(*q, *caches, *where, scale=0.07, max_seqlen_q=2, return_lse=True)
    assert isinstance(found, tuple)
    return found


@pytest.mark.parametrize(("heads", "page"), [(16, 16), (16, 64), (64, 64), (128, 64), (128, 16)])
def test_a_captured_step_of_latent_attention_replays_with_other_lengths_tables_and_slots(heads, page):
    pages = SEQUENCES * -(-LONGEST // page)
    # what was written before the steps is there; nobody's page is NaN
    cache = torch.randn(pages + 1, page, C + R, device="cuda").bfloat16()
    cache[pages] = math.nan
    held, mine = step(0, heads, page), cache.clone()
    run(held, cache.clone())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = run(held, mine)
    for number in (0, 1, 2, 3, 2, 1):
        given, other = step(number, heads, page), cache.clone()
        want = run(given, other)
        mine.copy_(cache)
        for name, tensor in held.items():
            tensor.copy_(given[name])
        graph.replay()
        rows = int(given["starts"][-1])
        assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8))
        assert torch.equal(outs[0][:rows], want[0][:rows])
        assert torch.equal(outs[1][:, :rows], want[1][:, :rows])
        assert want[0][:rows].isfinite().all()


def lists(seed: int) -> list[Tensor]:
    """Of three rows of blocks and five columns: some lists are empty, and some blocks on none."""
    state = torch.randint(4, (2, 4, 3, 5), generator=torch.Generator().manual_seed(seed))
    state[:, :, :, seed % 5] = 0
    state[:, seed % 4] = 0
    return [x.cuda() for pair in (masks.lists(state == 1), masks.lists(state == 2)) for x in pair]


def trained(qkv: list[Tensor], held: list[Tensor], grad: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in qkv]
    out = ops.block_sparse_attention(*leaves, *held, mask="causal")
    return [out, *torch.autograd.grad(out, leaves, grad)]


def test_a_captured_step_of_sparse_attention_replays_with_other_lists_and_equal_calls_are_equal():
    source = torch.Generator("cuda").manual_seed(1)
    shapes = (2, 384, 4, 64), (2, 600, 2, 64), (2, 600, 2, 64)
    qkv = [torch.randn(shape, generator=source, device="cuda").bfloat16() for shape in shapes]
    grad = torch.randn(shapes[0], generator=source, device="cuda").bfloat16()
    held = lists(0)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        trained(qkv, held, grad)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = trained(qkv, held, grad)
    for seed in (*range(8), *range(8)):
        for mine, other in zip(held, lists(seed), strict=True):
            mine.copy_(other)
        want = trained(qkv, held, grad)
        for _ in range(5):
            graph.replay()
            assert all(map(torch.equal, outs, want))
            assert all(map(torch.equal, trained(qkv, held, grad), want))
