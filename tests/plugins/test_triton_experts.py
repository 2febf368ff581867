"""What no case of ``moe_route`` and ``moe_sort`` shows of their Triton kernels, interpreted."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.authoring import CannotRun
from portakernel.references import moe_route as route_reference
from portakernel.references import moe_sort as sort_reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.experts import moe_sort as sorting
from portakernel_plugins.triton.experts.moe_route import backward, moe_route
from portakernel_plugins.triton.experts.moe_sort import moe_sort
from portakernel_plugins.triton.launching.configurations import Configuration

VALUES = {"scoring": "softmax", "renormalize": True, "factor": 1.0}


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def any_logits(rows: int, experts: int) -> Tensor:
    some = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 3e38, -3e38, 1.0])
    logits = some[torch.randint(8, (rows, experts), generator=torch.Generator().manual_seed(experts))]
    logits[:8] = some[:, None]
    return logits


@pytest.mark.parametrize("experts", [6, 16, 40])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "softmax_of_chosen"])
@pytest.mark.parametrize(("groups", "kept"), [(1, 1), (2, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_any_logits_give_the_experts_and_weights_of_the_reference(experts, scoring, groups, kept, biased):
    logits = any_logits(40, experts)
    bias = torch.linspace(-1.0, 1.0, experts) if biased else None
    values = {**VALUES, "scoring": scoring, "k": 3, "groups": groups, "groups_kept": kept}
    found = moe_route(logits, bias=bias, **values)
    ordered = found[1].sort(-1).values
    assert (ordered[:, 1:] > ordered[:, :-1]).all()
    assert ordered.min() >= 0
    assert ordered.max() < experts
    want = route_reference.forward(logits, bias=bias, **values)
    assert torch.equal(found[1], want[1])
    torch.testing.assert_close(found[0], want[0])


def test_a_bias_of_nan_or_infinities_still_gives_different_experts():
    bias = any_logits(9, 16)[8]
    weights, experts = moe_route(any_logits(40, 16), bias=bias, k=16, **{**VALUES, "scoring": "sigmoid"})
    assert torch.equal(experts.sort(-1).values, torch.arange(16, dtype=torch.int32).expand(40, 16))
    assert not weights.isnan().any()


def test_gradients_of_any_logits_are_numbers():
    logits = any_logits(40, 16)
    for scoring in ("softmax", "sigmoid"):
        for renormalize in (True, False):
            values = {"k": 4, "scoring": scoring, "renormalize": renormalize, "factor": 1.0}
            _, experts = moe_route(logits, **values)
            (found, _), (want, _) = (
                of(torch.ones(40, 4), logits, experts, **values) for of in (backward, route_reference.backward)
            )
            assert found is not None
            assert want is not None
            assert not found.isnan().any()
            torch.testing.assert_close(found, want)


def same_as_reference(experts: Tensor, count: int, block: int, more: int = 0) -> None:
    capacity = experts.numel() + min(count, experts.numel()) * max(block - 1, 0) + more
    values = {"num_experts": count, "capacity": capacity, "block": block}
    for found, want in zip(moe_sort(experts, **values), sort_reference.forward(experts, **values), strict=True):
        assert torch.equal(found, want)


# one program sorts 1024; of more, each has pieces of 512
@pytest.mark.parametrize("tokens", [1, 64, 127, 128, 129, 512, 513, 1100])
@pytest.mark.parametrize("block", [0, 1, 16])
def test_assignments_of_every_number_stand_in_their_order(tokens, block):
    source = torch.Generator().manual_seed(tokens)
    same_as_reference(torch.randint(-1, 5, (tokens, 8), generator=source), 5, block, more=tokens)


def sorted_in(monkeypatch: pytest.MonkeyPatch, piece: int, chunks: int) -> None:
    """From now on up to so many programs sort ``piece`` assignments at once."""
    how = Configuration(1, 1, 1, piece, 1, options={"num_warps": 1, "CHUNKS": chunks})
    monkeypatch.setattr(sorting, "configuration", lambda *_: how)
    monkeypatch.setattr(sorting, "_plan", sorting._plan.__wrapped__)


@pytest.mark.parametrize("chunks", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 32, 33, 64, 65, 160, 161, 700])
@pytest.mark.parametrize("block", [0, 7])
def test_chunks_of_several_pieces_follow_one_another(monkeypatch, chunks, count, block):
    sorted_in(monkeypatch, 1024 if chunks == 1 else 32, chunks)
    source = torch.Generator().manual_seed(count)
    experts = torch.randint(-1, 12, (count, 1), generator=source)
    same_as_reference(experts, 11, block, more=count)  # 11 is none


def test_a_table_is_added_up_in_parts(monkeypatch):
    sorted_in(monkeypatch, 32, 8)
    monkeypatch.setattr(sorting, "_ENTRIES", 32)
    same_as_reference(torch.randint(-1, 13, (250, 1), generator=torch.Generator().manual_seed(0)), 13, 4)


def test_more_experts_than_a_program_has_registers_for_are_left_to_others():
    with pytest.raises(CannotRun, match="limit: num_experts is 1025; a program has registers for 1024 at most"):
        moe_sort(torch.zeros(3, 2, dtype=torch.int32), num_experts=1025, capacity=6)


@pytest.mark.parametrize("picked", [-1, 0, 6])
@pytest.mark.parametrize("block", [0, 32])
def test_one_expert_has_all_or_nobody_has_any(picked, block):
    same_as_reference(torch.full((70, 2), picked), 7, block)


@pytest.mark.parametrize("block", [0, 8])
def test_numbers_that_are_no_experts_are_left_out_and_write_nowhere(block):
    experts = torch.tensor([[5, -2], [2**31 - 1, 1], [-(2**31), 4]])
    guarded = torch.full((64,), 77, dtype=torch.int32)
    values = {"num_experts": 5, "capacity": 48, "block": block}
    given = [guarded[8:56], *(torch.empty(n, dtype=torch.int32) for n in (6,)), torch.empty(3, 2, dtype=torch.int32)]
    given += [torch.empty(n, dtype=torch.int32) for n in (6, 1)] if block else []
    found = moe_sort(experts, **values, out=tuple(given))
    assert found[2].tolist() == [[-1, -1], [-1, 0], [-1, found[1][4]]]
    assert (guarded[:8] == 77).all()
    assert (guarded[56:] == 77).all()


def test_numbers_of_64_bits_are_not_cut():
    same_as_reference(torch.tensor([[2**32, 1], [2**32 + 2, 0]]), 3, 0)
