"""DTensors through the ops: the whole tensors' numbers, and what docs/sharding.md says of each op and mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from portakernel_pages.sharding_page import MODES, splits

from portakernel.contracts import contract, own_contracts

# `ask(part, ranks, device)` is what each rank found (conftest.py)
Ask = Callable[[str, int, str], list[Any]]
RANKS = 2
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason="needs two GPUs")),
]
MESHES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(torch.cuda.device_count() < 4, reason="needs four GPUs")),
]
pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

REFUSALS = {
    "torch.func": (
        "rms_norm: DTensors do not go through torch.func's transforms; transform a function of the local tensors"
        " (to_local()), or use autograd"
    ),
    "DTensors beside plain tensors": (
        "rms_norm: x is a DTensor, and weight is not; pass all tensors as DTensors (a tensor that every rank holds"
        " whole: DTensor.from_local(weight, mesh, [Replicate()])), or none (to_local())"
    ),
    "Partial float8": (
        "dequantize: q is torch.float8_e4m3fn and Partial, and that dtype has no sum;"
        " redistribute what it was made from"
    ),
    "explain": "rms_norm: each rank decides on its own part of a DTensor; ask about the part (to_local())",
    "bind": "rms_norm: each rank decides on its own part of a DTensor; ask about the part (to_local())",
}


GATHERED = (
    "layer_norm: x is placed (Shard(dim=0), Shard(dim=1)), and each such call redistributes it to"
    " (Shard(dim=0), Replicate()): here x can be split along dimension 0; place it so before the call, where"
    " that costs least"
)


def records(ask: Ask, device: str, op: str) -> list[dict[str, Any]]:
    found = [one for rank in ask("parallel", RANKS, device) for one in rank["splits"] if one["op"] == op]
    assert len(found) > 10 * RANKS
    return found


def is_split(record: dict[str, Any]) -> bool:
    """Whether docs/sharding.md says that such a call is split along the dimension that its arguments are sharded in."""
    described = contract(record["op"])
    values = described.values(record["parameters"])
    for split in splits(described):
        names = split.axis.name.split(" and ")
        if record["label"] not in names or not split.admits(values):
            continue
        if split.axis.even and any(record["dims"][name] % RANKS for name in names):
            continue
        leading_is_absent = any(
            tensor.name in record["absent"] and place is not None and place >= 0
            for tensor, place in zip(described.tensors, split.axis.arguments, strict=True)
        )
        if not (leading_is_absent and record["place"] == record["leading"] - 1):
            return True
    return False


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", [op for op, described in own_contracts().items() if described.mutated])
def test_an_op_that_writes_into_its_arguments_refuses_distributed_ones(ask: Ask, op: str, device: str) -> None:
    text = f"ArgumentTypeError: {op} writes into its arguments; each rank calls it on its own part (to_local())"
    assert {(*one["problems"],) for one in records(ask, device, op)} == {(text,)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", [op for op, described in own_contracts().items() if not described.mutated])
class TestEachOp:
    def test_gives_the_numbers_of_the_whole_tensors_forward_and_backward(self, ask: Ask, op: str, device: str) -> None:
        wrong = [
            (one["case"], one["label"], one["place"], one["problems"])
            for one in records(ask, device, op)
            if one["problems"]
        ]
        assert wrong == []

    def test_is_split_along_what_its_page_says_and_along_nothing_else(self, ask: Ask, op: str, device: str) -> None:
        asked = [one for one in records(ask, device, op) if one["label"] not in ("Partial", "sharded weights")]
        for one in asked:
            whole = all(placed == "Replicate()" for placed in one["results"])
            apart = all(placed.startswith("Shard") for placed in one["results"])
            assert (apart, whole) == (is_split(one), not is_split(one)), one

    def test_warns_of_shards_that_move_and_of_nothing_else(self, ask: Ask, op: str, device: str) -> None:
        found = records(ask, device, op)
        free = [one for one in found if one["label"] == "Partial" or is_split(one)]
        moved = [one for one in found if one["label"] == "sharded weights" or one not in free]
        assert [one for one in free if one["warned"]] == []
        assert any(one["warned"] for one in moved) == bool(moved)

    def test_an_empty_or_uneven_part_is_among_the_cases(self, ask: Ask, op: str, device: str) -> None:
        parts = [one for one in records(ask, device, op) if is_split(one)]
        possible = splits(contract(op))
        even_only = all(split.axis.even for split in possible)
        sizes = [size for one in parts for size in one["dims"].values()]
        assert bool(parts) == bool(possible)
        assert even_only or any(size % RANKS for size in sizes)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_the_contract_leaves_open_are_not_compared_and_others_are(ask: Ask, device: str) -> None:
    for rank in ask("parallel", RANKS, device):
        assert rank["undefined rows"] == {"an expert's": ["y: off by nan where 0 is largest"], "none's": []}


@pytest.mark.parametrize("device", DEVICES)
class TestEachMode:
    @pytest.mark.parametrize("mode", MODES)
    def test_has_the_outcome_that_the_page_says(self, ask: Ask, mode: str, device: str) -> None:
        expected = MODES[mode][0]
        if mode == "second derivatives" and torch.__version__ < "2.13":
            expected = "refuses with DerivativeError"
        for rank in ask("parallel", RANKS, device):
            found = rank["modes"][_method(mode)]
            assert found["outcome"] == expected, found["text"]
            if mode in REFUSALS:
                assert found["text"] == REFUSALS[mode]

    def test_is_on_the_page(self, ask: Ask, device: str) -> None:
        for rank in ask("parallel", RANKS, device):
            assert sorted(rank["modes"]) == sorted(map(_method, MODES))

    def test_a_norm_over_sequence_parts_and_a_gated_mlp_over_columns_give_the_plain_numbers(
        self, ask: Ask, device: str
    ) -> None:
        assert [rank["tensor parallel"] for rank in ask("parallel", RANKS, device)] == [[]] * RANKS


@pytest.mark.parametrize("device", MESHES)
def test_over_a_mesh_of_two_dimensions_each_splits_along_its_own(ask: Ask, device: str) -> None:
    expected = {
        "rows over both": ["Shard(dim=0), Shard(dim=1)"],
        "one dimension of rows over both": ["Shard(dim=0), Shard(dim=0)"],
        "rows, and a last dimension to gather": ["Shard(dim=0), Replicate()"],
        "rows, and partial sums": ["Shard(dim=0), Replicate()"],
        "batch and heads": ["Shard(dim=0), Shard(dim=2)"],
        "more ranks than key heads": ["Shard(dim=2), Replicate()"],
        "rows and columns": ["Shard(dim=0), Shard(dim=1)"],
    }
    for rank in ask("mesh", 4, device):
        assert {name: one["problems"] for name, one in rank.items() if one["problems"]} == {}
        assert {name: one["results"] for name, one in rank.items()} == expected
        assert rank["rows, and a last dimension to gather"]["warned"] == [GATHERED]
        gradients = rank["rows and columns"]["gradients"]
        assert gradients == {
            "x": "(Shard(dim=0), Partial(sum))",
            "weight": "(Partial(sum), Shard(dim=0))",
            "bias": "(Partial(sum), Shard(dim=0))",
        }


def _method(mode: str) -> str:
    return mode.lower().replace(" ", "_").replace(".", "_").replace("=", "")
