"""The rules that say along what a call may be split, and the page that is made from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from portakernel_pages.generate import generated
from portakernel_pages.sharding_page import splits

from portakernel.contracts import contract, own_contracts
from portakernel.torch_bridge.sharding_rules import Axis, axes

PAGE = Path(__file__).parents[2] / "docs" / "sharding.md"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == generated()[PAGE], "docs/sharding.md is stale: run `make generate`"


def test_a_norm_splits_along_each_leading_dimension_and_needs_its_weights_whole() -> None:
    described = contract("layer_norm")
    assert axes(described, 2, described.names) == (
        Axis("*M", (0, None, None), (0,)),
        Axis("*M", (1, None, None), (1,)),
    )
    assert axes(described, 0, described.names) == ()


def test_tokens_that_have_positions_by_their_place_stay_together() -> None:
    described = contract("rotary_embedding")
    with_positions = [axis.arguments[0] for axis in axes(described, 2, described.names)]
    without = [axis.arguments[0] for axis in axes(described, 2, ("q", "k", "cos", "sin"))]
    assert with_positions == [0, 1, -2]
    assert without == [0, -2]


@pytest.mark.parametrize(
    ("granularity", "count"), [("row", 1), ("block_1x128", 1), ("tensor", 0), ("block_128x128", 0)]
)
def test_rows_that_share_a_scale_stay_together(granularity: str, count: int) -> None:
    made = contract("quantize_fp8").at({"granularity": granularity})
    assert len(axes(made, 1, made.names)) == count


@pytest.mark.parametrize("op", own_contracts())
def test_every_result_has_each_dimension_that_an_op_splits_along(op: str) -> None:
    for split in splits(contract(op)):
        for values in split.values:
            made = contract(op).at(values)
            several = axes(made, 1, made.names)
            assert all(len(axis.outputs) == len(made.outputs) for axis in several)
            assert any(axis.name == split.axis.name for axis in several)


def test_a_call_on_plain_tensors_does_not_import_dtensors(python: Callable[..., Any]) -> None:
    program = (
        "import sys, torch\n"
        "from portakernel import ops\n"
        "x = torch.ones(2, 8, requires_grad=True)\n"
        "ops.rms_norm(x, torch.ones(8)).sum().backward()\n"
        "print('torch.distributed.tensor' in sys.modules)\n"
    )
    ended = python("-c", program)
    assert (ended.returncode, ended.stdout) == (0, "False\n"), ended.stderr
