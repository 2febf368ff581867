"""``moe_route``'s reference against routers as models have them, what it refuses, and what survives any logits."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from portakernel import ops
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.references.moe_route import forward

SCORINGS = ("softmax", "sigmoid", "softmax_of_chosen")


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def test_mixtral_softmax_over_the_two_best_and_over_all_of_them_renormalized_are_one():
    logits = drawn(30, 8)
    chosen, experts = logits.topk(2)
    for scoring in ("softmax", "softmax_of_chosen"):
        weights, found = forward(logits, k=2, scoring=scoring)
        assert torch.equal(found, experts.int())
        torch.testing.assert_close(weights, chosen.softmax(-1))


def test_without_renormalizing_weights_are_those_of_all_experts():
    logits = drawn(30, 60)
    shares, experts = logits.softmax(-1).topk(4)
    weights, found = forward(logits, k=4, renormalize=False, factor=2.5)
    assert torch.equal(found, experts.int())
    torch.testing.assert_close(weights, 2.5 * shares)


def test_deepseek_v3_a_bias_decides_among_the_best_groups_and_weighs_nothing():
    logits, bias = drawn(40, 64), drawn(64)
    scores = logits.sigmoid()
    decides = scores + bias
    groups = decides.view(40, 8, 8).topk(2).values.sum(-1).topk(4).indices
    kept = torch.zeros(40, 8, dtype=torch.bool).scatter(1, groups, True).repeat_interleave(8, 1)
    experts = decides.masked_fill(~kept, -math.inf).topk(6).indices
    wanted = scores.gather(1, experts)
    found = forward(logits, bias=bias, k=6, scoring="sigmoid", factor=2.5, groups=8, groups_kept=4)
    assert torch.equal(found[1], experts.int())
    torch.testing.assert_close(found[0], 2.5 * wanted / wanted.sum(-1, keepdim=True))


def test_deepseek_v2_groups_count_as_much_as_their_best_expert():
    scores = drawn(40, 40).softmax(-1)
    groups = scores.view(40, 4, 10).amax(-1).topk(2).indices
    kept = torch.zeros(40, 4, dtype=torch.bool).scatter(1, groups, True).repeat_interleave(10, 1)
    shares, experts = scores.masked_fill(~kept, 0.0).topk(6)
    weights, found = forward(scores.log(), k=6, renormalize=False, groups=4, groups_kept=2)
    assert torch.equal(found, experts.int())
    torch.testing.assert_close(weights, shares)


def test_ties_go_to_the_lower_expert_and_group_and_zeros_of_both_signs_are_one():
    logits = torch.tensor([[0.0, -0.0, 0.0, -0.0, 1.0, 1.0]])
    assert forward(logits, k=4)[1].tolist() == [[4, 5, 0, 1]]
    assert forward(torch.zeros(1, 6), k=2, groups=3, groups_kept=1)[1].tolist() == [[0, 1]]
    assert forward(torch.zeros(1, 6), bias=torch.zeros(6), k=3, scoring="sigmoid")[1].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("biased", [True, False])
def test_experts_are_different_and_in_range_whatever_the_logits_are(scoring, renormalize, groups, biased):
    some = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 3e38, -3e38, 1.0])
    source = torch.Generator().manual_seed(groups)
    logits = some[torch.randint(7, (200, 16), generator=source)]
    logits[:7] = some[:, None]
    bias = some[torch.randint(7, (16,), generator=source)] if biased else None
    values: dict[str, Any] = {"scoring": scoring, "renormalize": renormalize, "groups": groups, "groups_kept": groups}
    weights, experts = forward(logits, bias=bias, k=8, **values)
    ordered = experts.sort(-1).values
    assert (ordered[:, 1:] > ordered[:, :-1]).all()
    assert ordered.min() >= 0
    assert ordered.max() < 16
    assert not weights.isnan().any()
    if not biased:
        assert experts[0].tolist() == experts[2].tolist() == list(range(8))
        assert not weights[0].any()
        assert not weights[2].any()


def test_infinite_logits_share_all_the_weight():
    weights, experts = forward(torch.tensor([[1.0, math.inf, 2.0, math.inf]]), k=3)
    assert experts.tolist() == [[1, 3, 2]]
    assert weights.tolist() == [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize("scoring", SCORINGS)
def test_shares_of_vanishing_scores_are_not_lost(scoring):
    weights, _ = forward(torch.tensor([[-300.0, -301.0, -5000.0]]), k=2, scoring=scoring)
    torch.testing.assert_close(weights, torch.tensor([[0.0, -1.0]]).softmax(-1))


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("bias", [None, drawn(9)])
def test_gradients_are_those_of_the_formula(scoring, renormalize, bias):
    logits = drawn(5, 9).requires_grad_()
    values = {"k": 3, "scoring": scoring, "renormalize": renormalize, "factor": -1.3}

    def weights(x: Tensor) -> Tensor:
        return ops.moe_route(x, bias=bias, **values)[0]

    assert torch.autograd.gradcheck(weights, logits)


def test_a_gradient_goes_to_no_expert_that_was_hidden():
    logits = torch.tensor([[math.nan, 1.0, 2.0, math.nan]], requires_grad=True)
    weights, _ = ops.moe_route(logits, k=3, renormalize=False)
    weights[0, 0].backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad[0, 1:3], torch.tensor([-1.0, 1.0]) * 0.26894143 * 0.7310586)
    assert logits.grad[0, [0, 3]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        ({}, ArgumentTypeError, "k is not given; it must be an integer from 1 up: how many experts a token goes to"),
        ({"k": 0}, ArgumentValueError, "k must be an integer from 1 up; this is 0"),
        ({"k": 7}, ArgumentValueError, "needs k <= E; this is E = 6, k = 7"),
        ({"k": 2, "groups": 4}, ArgumentValueError, "needs E % groups == 0; this is E = 6, groups = 4"),
        (
            {"k": 2, "groups": 2, "groups_kept": 3},
            ArgumentValueError,
            "needs groups_kept <= groups; this is groups = 2, groups_kept = 3",
        ),
        (
            {"k": 3, "groups": 3},
            ArgumentValueError,
            "needs k * groups <= E * groups_kept; this is E = 6, groups = 3, groups_kept = 1, k = 3",
        ),
        ({"top_k": 2}, ArgumentTypeError, "unknown argument 'top_k'; here it is called 'k'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(values, kind, text):
    with pytest.raises(kind, match=re.escape(f"moe_route: {text}")):
        ops.moe_route(torch.zeros(4, 6), **values)
