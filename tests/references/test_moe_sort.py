"""``moe_sort``'s reference against sorting in Python, what it refuses, and its checks of experts."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from portakernel import ops
from portakernel.errors import ArgumentValueError, IndexOutOfRangeError
from portakernel.references.moe_sort import forward


def sorted_in_python(experts: list[int], count: int, capacity: int, block: int) -> tuple[list[int], ...]:
    order, offsets, inverse, blocks = list[int](), [0], [-1] * len(experts), list[int]()
    for expert in range(count):
        for place, picked in enumerate(experts):
            if picked == expert:
                inverse[place] = len(order)
                order.append(place)
        while block and len(order) % block:
            order.append(len(experts))
        blocks += [expert] * ((len(order) - offsets[-1]) // block if block else 0)
        offsets.append(len(order))
    order += [len(experts)] * (capacity - len(order))
    if not block:
        return order, offsets, inverse
    blocks += [-1] * (-(-capacity // block) - len(blocks))
    return order, offsets, inverse, blocks, offsets[-1:]


@pytest.mark.parametrize("block", [0, 1, 4, 16])
@pytest.mark.parametrize("seed", range(3))
def test_assignments_stand_by_expert_and_token(block, seed):
    experts = torch.randint(-1, 7, (23, 3), generator=torch.Generator().manual_seed(seed))
    capacity = 69 + 7 * max(block - 1, 0) + 5 * seed
    found = forward(experts, num_experts=7, capacity=capacity, block=block)
    wanted = sorted_in_python(experts.flatten().tolist(), 7, capacity, block)
    assert [one.flatten().tolist() for one in found] == list(wanted)
    assert {one.dtype for one in found} == {torch.int32}
    assert found[2].shape == experts.shape


def test_rows_come_together_by_order_and_go_back_by_inverse():
    x = torch.randn(11, 4)
    experts = torch.randint(5, (11, 2))
    order, offsets, inverse = ops.moe_sort(experts, num_experts=5, capacity=22)
    rows = x[order // 2]
    assert torch.equal(rows[inverse], x.unsqueeze(1).expand(11, 2, 4))
    assert offsets.tolist()[-1] == 22


def call(experts: Tensor, **values: int) -> object:
    return ops.moe_sort(experts, **values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"capacity": 5}, "needs capacity >= T * K; this is K = 2, T = 3, capacity = 5"),
        ({"capacity": -1}, "capacity must be an integer from 0 up; this is -1"),
        (
            {"capacity": 14, "block": 4},
            (
                "needs block == 0 or capacity >= T * K * block or capacity >= T * K + num_experts * (block - 1);"
                " this is K = 2, T = 3, block = 4, capacity = 14, num_experts = 3"
            ),
        ),
        ({"capacity": 6, "block": -2}, "block must be an integer from 0 up; this is -2"),
    ],
)
def test_what_would_not_hold_every_routing_is_refused(values, text):
    with pytest.raises(ArgumentValueError, match=re.escape(f"moe_sort: {text}")):
        call(torch.zeros(3, 2, dtype=torch.int32), num_experts=3, **values)


def test_experts_out_of_range_are_refused_where_values_are_looked_at(monkeypatch):
    from portakernel.calling.value_checks import check_values
    from portakernel.contracts import contract

    given = {"experts": torch.tensor([[0, 1], [-1, 3]]), "num_experts": 3, "capacity": 4, "block": 0}
    text = "moe_sort: experts[1, 1] is 3; it must be in [0, num_experts) with num_experts = 3, or -1 for one that is"
    with pytest.raises(IndexOutOfRangeError, match=re.escape(text)):
        check_values(contract("moe_sort"), given)
    check_values(contract("moe_sort"), {**given, "num_experts": 4})
