"""Inputs are what a case says: values, memory layout, and nothing but the seed decides them."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from portakernel.contract.case import Case
from portakernel.contracts import contract, own_contracts
from portakernel.tensors.layout import alignment, flat_rows, stride_last
from portakernel_kit.conformance.inputs import draw_inputs, draw_values, generator
from portakernel_kit.conformance.memory import (
    changed_around,
    footprint,
    place_tensor,
    same_bits,
    shares_memory,
    twin,
)

DTYPES = ("float32", "float16", "bfloat16")


def placed(shape, layout, dtype="float32"):
    stored = (1, *shape[1:]) if layout == "expanded" else shape
    values = torch.randn(stored, dtype=torch.float64, generator=generator(5, layout))
    return values, place_tensor(values, shape, layout, dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["contiguous", "sliced", "transposed", "expanded", "stepped", "offset", "split"])
def test_tensor_holds_the_values_wherever_it_lies(layout, dtype):
    values, tensor = placed((3, 4, 6), layout, dtype)
    assert tensor.shape == (3, 4, 6)
    assert torch.equal(tensor, values.to(tensor.dtype).expand(3, 4, 6))


def test_each_layout_is_what_its_name_says():
    shape = (3, 4, 6)
    lies = {layout: placed(shape, layout)[1] for layout in ("contiguous", "sliced", "stepped", "offset", "split")}
    assert lies["contiguous"].is_contiguous()
    assert alignment(lies["contiguous"]) == 16
    assert lies["offset"].is_contiguous()
    assert alignment(lies["offset"]) == 4
    assert (flat_rows(lies["sliced"]), stride_last(lies["sliced"]), lies["sliced"].is_contiguous()) == (True, 1, False)
    even = placed((2, 8), "sliced")[1]
    odd = placed((3, 8), "sliced")[1]
    assert [alignment(even), alignment(even[1:])] == [16, 16]
    assert [alignment(odd), alignment(odd[1:])] == [16, 4]
    assert (flat_rows(lies["split"]), stride_last(lies["split"])) == (False, 1)
    assert stride_last(lies["stepped"]) == 2
    assert placed(shape, "transposed")[1].mT.is_contiguous()
    assert placed(shape, "expanded")[1].stride()[0] == 0


@pytest.mark.parametrize("layout", ["contiguous", "sliced", "transposed", "expanded", "stepped", "offset", "split"])
def test_memory_around_a_tensor_is_nan_and_none_of_it_is_the_tensors(layout):
    values, tensor = placed((3, 4, 6), layout)
    storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    assert int((~storage.isnan()).sum()) == values.numel()
    offset = tensor.storage_offset()
    assert offset >= 64
    assert storage.numel() - offset >= values.numel() + 64


@pytest.mark.parametrize(("layout", "shape"), [("transposed", (4,)), ("split", (3, 4)), ("stepped", ())])
def test_layout_that_a_rank_cannot_have_is_refused(layout, shape):
    needed = {"transposed": 2, "split": 3, "stepped": 1}[layout]
    message = f"layout {layout!r} needs a tensor of at least {needed} dimensions; this has shape {shape}"
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        place_tensor(torch.zeros(shape), shape, layout, "float32", "cpu")
    assert str(caught.value) == message


@pytest.mark.parametrize("shape", [(), (1,), (0, 8), (2, 0, 3)])
def test_scalars_and_empty_tensors_have_memory_around_them_too(shape):
    tensor = place_tensor(torch.zeros(shape), shape, "contiguous", "float16", "cpu")
    assert tensor.shape == shape
    assert tensor.untyped_storage().nbytes() >= 256


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_values_reach_towards_the_top_and_their_squares_sum_in_float32(dtype):
    values = draw_values((64, 64), "large", dtype, generator(1))
    stored = values.to(getattr(torch, dtype))
    assert stored.isfinite().all()
    assert stored.abs().min() > 64
    assert stored.float().square().sum().isfinite()
    assert stored.abs().max() > min(torch.finfo(stored.dtype).max, 2.0**55) / 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiny_values_are_normal_and_subnormal_numbers(dtype):
    stored = draw_values((64, 64), "tiny", dtype, generator(1)).to(getattr(torch, dtype)).double()
    normal = torch.finfo(getattr(torch, dtype)).smallest_normal
    assert 0.2 < float((stored.abs() < normal).double().mean()) < 0.98
    assert stored.abs().max() < 20 * normal
    assert stored.abs().min() > 0


def test_zeros_have_both_signs():
    zeros = draw_values((100,), "zeros", "float32", generator(1))
    assert not zeros.any()
    assert 20 < int(zeros.signbit().sum()) < 80


def test_special_rows_hold_one_kind_each_and_every_pair_meets():
    x, y = (draw_values((6, 72), "special", "float32", generator(place), place) for place in (0, 1))

    def kinds(row):
        return {str(value) for value in row.tolist() if value == 0.0 or not math.isfinite(value)}

    assert [kinds(row) for row in x[1:]] == [set(), {"nan"}, {"inf"}, {"-inf"}, {"0.0", "-0.0"}]
    assert all(row.isfinite().any() for row in x[1:])
    pairs = Counter(
        (str(a) if a == 0 or not math.isfinite(a) else "x", str(b) if b == 0 or not math.isfinite(b) else "x")
        for a, b in zip(x[0].tolist(), y[0].tolist(), strict=True)
    )
    names = ("nan", "inf", "-inf", "0.0", "-0.0", "x")
    assert set(pairs) == set(itertools.product(names, names))


def test_inputs_depend_on_the_seed_and_on_what_is_drawn_alone():
    op = contract("rms_norm")
    case, dtypes = op.cases[4], {"x": "float16", "weight": "float32"}

    def draw(seed, *parts):
        return draw_inputs(op, case, dtypes, "cpu", generator(seed, *parts)).tensors

    torch.manual_seed(1)
    first = draw(7, "a")
    torch.manual_seed(2)
    assert all(same_bits(a, b) for a, b in zip(first, draw(7, "a"), strict=True))
    assert not same_bits(first[0], draw(8, "a")[0])
    assert not same_bits(first[0], draw(7, "b")[0])


@pytest.mark.parametrize("op", sorted(own_contracts()))
def test_every_case_can_be_drawn_in_every_dtype(op):
    described = contract(op)
    for case, dtype in itertools.product(described.cases, DTYPES):
        dtypes = {tensor.name: dtype for tensor in described.tensors}
        inputs = draw_inputs(described, case, dtypes, "cpu", generator(1))
        assert inputs.leading == case.leading
        assert {name: inputs.dims[name] for name in case.dims} == case.dims
        assert [inputs.parameters[name] for name in case.parameters] == list(case.parameters.values())


def test_what_rows_share_stays_ordinary_where_the_rows_vanish():
    case = Case("tiny", (3,), {"N": 8}, values="tiny")
    inputs = draw_inputs(contract("rms_norm"), case, {"x": "float32", "weight": "float32"}, "cpu", generator(1))
    assert inputs.given["x"].abs().max() < 1e-36
    assert inputs.given["weight"].abs().max() > 0.1


def test_footprint_tells_what_changed_around_a_tensor_from_the_tensor_itself():
    _, tensor = placed((3, 4), "sliced")
    before = footprint(tensor)
    tensor.mul_(2.0)
    assert not torch.equal(footprint(tensor), before)
    assert not changed_around(tensor, before)
    tensor.as_strided((1,), (1,), tensor.storage_offset() + 4).zero_()
    assert changed_around(tensor, before)


def test_twin_lies_alike_in_memory_of_its_own():
    _, tensor = placed((3, 4, 5), "transposed")
    other = twin(tensor)
    assert same_bits(other, tensor)
    assert (other.stride(), other.storage_offset()) == (tensor.stride(), tensor.storage_offset())
    assert not shares_memory(other, tensor)


def test_same_bits_tells_zeros_apart_and_nan_from_no_nan():
    assert same_bits(torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 1.0]))
    assert same_bits(torch.tensor([math.nan, 1.0]), torch.tensor([-math.nan, 1.0]))
    assert not same_bits(torch.tensor([math.nan, 1.0]), torch.tensor([1.0, math.nan]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float16))
    assert same_bits(torch.tensor(1.0), torch.tensor(1.0))
    assert same_bits(torch.arange(6.0).reshape(2, 3).t(), torch.arange(6.0).reshape(2, 3).t().contiguous())
