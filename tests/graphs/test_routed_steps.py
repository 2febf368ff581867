"""Routing, sorting and experts, captured once: replays with other logits are eager calls, whoever has the tokens."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel import ops

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="captures a stream, which takes a GPU")
EXPERTS, HIDDEN, WIDTH, K = 16, 128, 64, 4


def logits_of(number: int, tokens: int) -> Tensor:
    """Even routing, all tokens to the same experts, half of the experts idle, NaN and infinities."""
    found = torch.randn(tokens, EXPERTS, generator=torch.Generator().manual_seed(number))
    if number == 1:
        found[:, [3, 9, 0, 14]] = 50.0
    if number == 2:
        found[:, ::2] = -math.inf
    if number == 3:
        found[0] = math.nan
        found[1:3] = math.inf
        found[-1] = 0.0
    return found.cuda()


def run(x: Tensor, logits: Tensor, w_in: Tensor, w_out: Tensor) -> tuple[Tensor, ...]:
    weights, experts = ops.moe_route(logits, k=K)
    y = ops.moe_mlp(x, w_in, w_out, weights, experts)
    order, offsets, inverse, blocks, total = ops.moe_sort(
        experts, num_experts=EXPERTS, capacity=experts.numel() + EXPERTS * 15, block=16
    )
    capacity = experts.numel()
    plain, ends, places = ops.moe_sort(experts, num_experts=EXPERTS, capacity=capacity)
    rows = ops.grouped_mm(x, w_in, ends, gather=plain // K)
    return weights, experts, y, order, offsets, inverse, blocks, total, places, rows


@pytest.mark.parametrize("tokens", [1, 8, 64, 700])
def test_a_captured_step_replays_with_other_routing(tokens):
    source = torch.Generator().manual_seed(tokens)
    w_in = (torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=source) / 11).bfloat16().cuda()
    w_out = (torch.randn(EXPERTS, HIDDEN, WIDTH, generator=source) / 8).bfloat16().cuda()
    x, logits = torch.randn(tokens, HIDDEN, generator=source).bfloat16().cuda(), logits_of(0, tokens)
    with torch.no_grad():
        run(x, logits, w_in, w_out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held = run(x, logits, w_in, w_out)
        for number in (0, 1, 2, 3, 2, 1):
            logits.copy_(logits_of(number, tokens))
            x.copy_(torch.randn(tokens, HIDDEN, generator=source).bfloat16())
            graph.replay()
            for found, want in zip(held, run(x, logits, w_in, w_out), strict=True):
                assert torch.equal(found, want)
            experts = held[1].long()
            ordered = experts.sort(-1).values
            assert bool((ordered[:, 1:] > ordered[:, :-1]).all())
            assert 0 <= int(ordered.min()) <= int(ordered.max()) < EXPERTS
