"""What serving ops are given: drawn so that every rule about it holds, and so that whoever looks too far reads NaN."""

from __future__ import annotations

import math

import pytest
import torch

from portakernel.contract import Case, Contract, Cost, Draw, Parameter, Result, TensorArgument, Tolerance
from portakernel.contracts import contract
from portakernel.tensors.serving_draws import (
    alive,
    draw_experts,
    draw_lengths,
    draw_lse,
    draw_pages,
    draw_slots,
    poisoned,
    reached,
    routed_experts,
)
from portakernel_kit.conformance.inputs import draw_inputs, generator

ATTENTION = Contract(
    op="paged",
    summary="",
    formula="",
    tensors=(
        TensorArgument("query", ("B", "D"), ("float32",)),
        TensorArgument("cache", ("NP", "P", "D"), ("query",), draw=Draw(poison="table")),
        TensorArgument("table", ("B", "W"), ("int32",), draw=Draw("pages", below="NP", lengths="lens", page="P")),
        TensorArgument("lens", ("B",), ("int32",), draw=Draw("lengths", below="W*P")),
    ),
    parameters=(Parameter("k", 2, kind="int"),),
    outputs=(Result("best", ("B", "$k"), like="query"),),
    cases=(),
    tolerance=Tolerance(),
    cost=lambda *_: Cost(0, 0),
    source="",
)
CASE = Case("pages", dims={"B": 7, "D": 4, "NP": 40, "P": 8, "W": 5})


@pytest.mark.parametrize("seed", range(20))
def test_a_paged_cache_is_nan_where_no_sequence_reaches(seed):
    dtypes = {"query": "float32", "cache": "float32", "table": "int32", "lens": "int32"}
    given = draw_inputs(ATTENTION, CASE, dtypes, "cpu", generator(seed)).given
    table, lengths, cache = given["table"].tolist(), given["lens"].tolist(), given["cache"]
    used = [row[: -(-length // 8)] for row, length in zip(table, lengths, strict=True)]
    pages = [page for row in used for page in row]
    assert len(pages) == len(set(pages))
    assert all(0 <= page < 40 for page in pages)
    behind = [page for row, mine in zip(table, used, strict=True) for page in row[len(mine) :]]
    assert {-1, 40} & set(behind) or not behind
    assert not set(behind) & set(pages)
    seen = sum(lengths)
    assert int(cache.isnan().all(-1).sum()) == 40 * 8 - seen
    assert int(cache.isnan().any(-1).sum()) == 40 * 8 - seen


def test_lengths_hold_none_and_all():
    drawn = draw_lengths((400,), 96, generator(3))
    assert (int(drawn.min()), int(drawn.max())) == (0, 96)
    assert 40 < int((drawn == 0).sum()) < 140
    assert 40 < int((drawn == 96).sum()) < 140


@pytest.mark.parametrize(("entries", "slots"), [(30, 50), (30, 10), (0, 5), (5, 0)])
def test_slots_are_different_places_or_none(entries, slots):
    drawn = draw_slots((entries,), slots, generator(5)).tolist()
    taken = [slot for slot in drawn if slot >= 0]
    assert len(taken) == len(set(taken))
    assert all(slot < slots for slot in taken)
    assert len(drawn) == entries
    assert not entries or -1 in drawn


@pytest.mark.parametrize(("picked", "experts"), [(1, 8), (2, 8), (8, 8), (6, 64)])
def test_a_row_s_experts_are_different_and_some_have_no_row(picked, experts):
    drawn = draw_experts((200, picked), experts, generator(7))
    assert all(len(set(row)) == picked for row in drawn.tolist())
    assert int(drawn.max()) < experts
    assert (set(range(experts)) - set(drawn.flatten().tolist()) != set()) == (
        experts - experts // 4 >= picked < experts
    )


def test_an_even_router_picks_every_expert_as_often_and_none_twice_in_a_row():
    drawn = routed_experts((400, 3), 8, generator(2))
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    counts = drawn.flatten().bincount(minlength=8)
    assert counts.min() > 100
    assert counts.max() < 200


def test_what_cannot_be_drawn_says_why():
    with pytest.raises(
        ValueError, match="sequences of 9 tokens and less need 3 pages of 4 in a row; there are 4, 2 in"
    ):
        draw_pages(torch.tensor([9, 8]), (2, 2), 4, 4, generator(1))
    with pytest.raises(
        ValueError, match="sequences of 9 tokens and less need 3 pages of 4 in a row; there are 0, 3 in"
    ):
        draw_pages(torch.tensor([9, 8]), (2, 3), 0, 4, generator(1))
    with pytest.raises(ValueError, match="each row picks 3 of 2 experts; give as many at least"):
        draw_experts((4, 3), 2, generator(1))


def test_where_pages_are_few_sequences_share_them():
    table = draw_pages(torch.tensor([12, 9, 1]), (3, 4), 2, 4, generator(1))
    held = [row[: -(-length // 4)].tolist() for row, length in zip(table, (12, 9, 1), strict=True)]
    assert {page for row in held for page in row} == {0, 1}
    assert table[1, 3] in (-1, 2)


def test_one_row_may_be_that_of_all_sequences():
    one = draw_pages(torch.tensor([3, 9]), (1, 3), 8, 4, generator(1))
    assert len(set(one[0].tolist())) == 3
    assert reached(one, torch.tensor([3, 9]), 8, 4).sum() == 9
    each = draw_pages(torch.tensor([5]), (2, 3), 8, 4, generator(1))
    assert len(set(each[:, :2].flatten().tolist())) == 4
    assert reached(each, torch.tensor([5]), 8, 4).sum() == 10


def test_what_is_reached_of_a_page_ends_inside_it():
    seen = reached(torch.tensor([[2, -1]]), torch.tensor([3]), 3, 4)
    assert seen.tolist() == [[False] * 4, [False] * 4, [True, True, True, False]]
    assert poisoned(torch.zeros(3, 4, 2), seen).isnan().all(-1).tolist() == (~seen).tolist()


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_size_may_be_an_integer_parameter_s_value(k):
    made = ATTENTION.at({"k": k})
    assert made.outputs[0].shape == ("B", "$k")
    shape, dtype = made.form(made.outputs[0], {"B": 7}, (), {"query": "float32"}, {"k": k})
    assert (shape, dtype) == ((7, k), "float32")
    assert ATTENTION.choosers == ()  # whatever it is, code that was made for calls serves them
    assert math.prod(shape) == 7 * k


def test_an_lse_holds_what_merges_have_to_tell_apart():
    drawn = draw_lse((20, 50), generator(11))
    seen = drawn[drawn > -math.inf]
    assert 100 < 1000 - len(seen) < 300
    assert 100 < int((drawn == 1.0).sum()) < 300
    assert 40 < int((seen > 80).sum()) < 160
    assert 40 < int((seen < -80).sum()) < 160
    assert not bool(drawn.isnan().any())


def test_a_part_is_nan_where_its_lse_is_minus_infinity():
    lse = torch.tensor([[0.0, -math.inf, 3.0], [-math.inf, -math.inf, 1.0]])
    by_query = [[True, False], [False, False], [True, True]]
    assert alive(lse, ("H", "S"), ("S", "H", "E"), (3, 2, 4)).squeeze(-1).tolist() == by_query
    # a part that all queries share is looked at where one of them does
    assert alive(lse, ("H", "S"), ("S", "H", "E"), (1, 2, 4)).squeeze(-1).tolist() == [[True, True]]
    op = contract("merge_attentions")
    case = Case("parts", dims={"R": 3, "S": 11, "H": 5, "E": 4})
    outs, lses = draw_inputs(op, case, {"outs": "bfloat16", "lses": "float32"}, "cpu", generator(13)).tensors
    assert torch.equal(outs.isnan().all(-1), lses.isneginf().transpose(1, 2))
    assert torch.equal(outs.isnan().any(-1), lses.isneginf().transpose(1, 2))
    assert 0 < int(lses.isneginf().sum()) < lses.numel()
