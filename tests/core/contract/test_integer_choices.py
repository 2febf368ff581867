"""Integers of which a few are accepted, sizes that only a later tensor decides, and draws of 4-bit weights."""

from __future__ import annotations

import pytest
import torch

from portakernel.contract import Parameter
from portakernel.contract.case import Draw
from portakernel.contract.parts import TensorArgument
from portakernel.contract.shape_binding import Binding
from portakernel.contracts import contract
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.tensors.group_draws import draw_groups
from portakernel.torch_bridge.signature import Signature

GROUP = Parameter("group", 128, kind="int", choices=(32, 128, -1))


def test_one_of_them_is_taken_and_another_number_is_told():
    assert GROUP.canonical("op", 32) == 32
    assert GROUP.possible() == (32, 128, -1)
    with pytest.raises(ArgumentValueError, match=r"^op: group must be 32 or 128 or -1; this is 64$"):
        GROUP.canonical("op", 64)
    with pytest.raises(ArgumentTypeError, match=r"^op: group must be 32 or 128 or -1; this is bool True$"):
        GROUP.canonical("op", True)


def test_another_number_never_comes_past_a_call_that_was_seen_before():
    from portakernel import ops

    weight, scales, x = torch.zeros(32, 8, dtype=torch.int32), torch.ones(2, 8), torch.ones(1, 256)
    for _ in range(3):
        ops.int4_mm(x, weight, scales, group=128)
        with pytest.raises(ArgumentValueError, match="group must be 32 or 64 or 128 or -1 or 0; this is 1024"):
            ops.int4_mm(x, weight, scales, group=1024)


def test_what_shapes_depend_on_is_no_symbol_in_a_graph():
    public = Signature(contract("int4_mm")).schemas()[0]
    assert "int group=128" in public
    assert "SymInt" not in public


def test_a_size_that_rounds_is_held_to_what_a_later_tensor_says():
    bound = Binding("op")
    bound.add(TensorArgument("weight", ("ceil(K/128)",), ("int32",)), (3,))
    bound.add(TensorArgument("order", ("K",), ("int32",)), (300,))
    bound.settle()
    assert bound.dims == {"K": 300}
    bound.dims["K"] = 256
    text = r"^op: weight has shape \(3,\), 3 where ceil\(K/128\) = 2 is needed, but order has K = 256$"
    with pytest.raises(ArgumentValueError, match=text):
        bound.settle()


@pytest.mark.parametrize("layout", ["gptq", "packed_mma"])
@pytest.mark.parametrize("group", [32, -1, 0])
def test_columns_are_drawn_in_groups_of_as_many(layout, group):
    draw, source = Draw("groups", below="N", lengths="scales", page="layout"), torch.Generator().manual_seed(0)
    groups = {32: 4, -1: 1, 0: 7}[group]
    shape = (2, 100) if group == 0 and layout == "packed_mma" else (100,)
    found = draw_groups(
        draw, shape, "int32", {"N": 8, "K": 100}, {"layout": layout, "group": group},
        {"scales": torch.ones(groups, 8)}, source,
    )  # fmt: skip
    assert tuple(found.shape) == shape
    if layout == "packed_mma":
        assert found.reshape(-1, 100)[0].sort().values.tolist() == list(range(100))
        assert group != 0 or found[1].tolist() == sorted(found[1].tolist())
    elif group == 0:
        assert set(found.tolist()) <= set(range(groups))
    else:
        assert found.bincount().tolist() == {32: [32, 32, 32, 4], -1: [100]}[group]
