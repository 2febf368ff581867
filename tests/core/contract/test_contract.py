"""Contracts: what is true of an op whichever kernel runs it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from portakernel.contract import alternatives
from portakernel.contract.field_values import value_faults
from portakernel.contract.signature_text import signature as signature_of
from portakernel.contract.soundness import contract_faults
from portakernel.contracts import contract, own_contracts
from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError
from portakernel.words.dtypes import DTYPES
from portakernel_kit.conformance.inputs import case_shape, is_present


def test_there_is_a_contract_for_each_module_named_as_it():
    assert {"add", "rms_norm"} <= set(own_contracts())
    assert all(described.op == name for name, described in own_contracts().items())
    assert [described.op for described in own_contracts().values()] == list(own_contracts())


def test_portakernel_s_own_contracts_are_sound():
    assert [fault for own in own_contracts().values() for fault in (*contract_faults(own), *value_faults(own))] == []


def test_an_unknown_op_offers_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        contract("rmsnorm")
    assert str(caught.value) == "unknown op 'rmsnorm'; did you mean 'rms_norm' or 'add_rms_norm'?"


def test_contracts_cannot_be_changed():
    with pytest.raises(TypeError):
        own_contracts()["sub"] = contract("add")
    with pytest.raises(FrozenInstanceError):
        contract("add").op = "sub"


@pytest.mark.parametrize(
    ("op", "signature"),
    [
        ("add", "add(x, y, *, out=None, kernel=None)"),
        ("rms_norm", "rms_norm(x, weight, *, eps=1e-06, weight_offset=0.0, out=None, kernel=None)"),
    ],
)
def test_a_signature_is_the_op_as_people_call_it(op, signature):
    assert signature_of(contract(op)) == signature


def test_dimensions_features_and_what_may_be_limited():
    norm = contract("rms_norm")
    assert norm.dims == ("M", "N")
    assert [feature.name for feature in norm.features] == ["weight_offset"]
    facts = ("contiguous", "flat_rows", "stride_last", "alignment")
    assert norm.limitable() == ("M", "N", *(f"{name}.{fact}" for name in ("x", "weight") for fact in facts))
    assert contract("add").dims == ("M",)
    assert norm.tensor("x").described == "(..., N)"
    assert norm.tensor("weight").described == "(N,)"


def test_leading_dimensions_are_told_apart_from_fixed_ones():
    x, weight = contract("rms_norm").tensors
    assert (x.leading, x.fixed) == ("M", ("N",))
    assert (weight.leading, weight.fixed) == (None, ("N",))


def test_shapes_bind_dimensions_and_the_leading_shape():
    assert contract("rms_norm").bind_shapes({"x": (2, 3, 8), "weight": (8,)}) == ({"M": 6, "N": 8}, (2, 3))
    assert contract("rms_norm").bind_shapes({"weight": (8,)}) == ({"N": 8}, None)


def test_shapes_that_disagree_name_both_arguments():
    with pytest.raises(ArgumentValueError) as caught:
        contract("rms_norm").bind_shapes({"x": (2, 8), "weight": (9,)})
    assert str(caught.value) == "rms_norm: weight has shape (9,), so N = 9, but x has N = 8"


def test_dtypes_that_do_not_go_together_name_what_goes():
    described = contract("rms_norm")
    described.check_dtypes({"x": "bfloat16", "weight": "float32"})
    with pytest.raises(ArgumentTypeError) as caught:
        described.check_dtypes({"x": "bfloat16", "weight": "float16"})
    assert str(caught.value) == "rms_norm: weight is float16; it must be bfloat16 or float32"


@pytest.mark.parametrize("op", list(own_contracts()))
def test_a_contract_is_whole(op):
    described = contract(op)
    parameters = {parameter.name: parameter for parameter in described.parameters}
    results = [*described.outputs, *described.saved]
    names = [*described.names, *parameters, *(result.name for result in results)]
    assert len(set(names)) == len(names)
    assert {dtype for t in described.tensors for d in alternatives(t.dtypes) for dtype in d} <= {
        *DTYPES,
        *described.names,
    }
    assert all(result.like in described.names for result in results)
    assert all(result.when is None or result.when[0] in parameters for result in results)
    assert all(name in parameters for name in described.choosers)
    given = [parameter for parameter in parameters.values() if not parameter.is_required]
    assert all(parameter.canonical(op, parameter.default) == parameter.default for parameter in given)
    assert set(described.inplace) <= set(described.names)
    assert described.summary.endswith(".")
    assert described.formula
    assert described.source
    # an argument that may be left away comes behind those that may not
    optional = [tensor.optional for tensor in described.tensors]
    assert optional == sorted(optional)
    assert all(tensor.optional for tensor in described.tensors if tensor.feature)


@pytest.mark.parametrize("op", [op for op in own_contracts() if contract(op).gradient == "kernel"])
def test_backward_is_given_every_argument_or_something_of_its_form(op):
    described = contract(op)
    outputs = {output.name for output in described.outputs}
    given = {*described.backward_inputs, *(f"grad_{output.name}" for output in described.outputs)}
    assert set(described.backward_inputs) <= {*described.names, *outputs}
    assert set(described.stands_for.values()) <= given
    missing = [t.name for t in described.tensors if t.name not in described.backward_inputs and not t.optional]
    assert set(missing) <= described.stands_for.keys()


@pytest.mark.parametrize("op", list(own_contracts()))
def test_every_case_fits_its_op(op):
    described = contract(op)
    names = [case.name for case in described.cases]
    assert len(set(names)) == len(names)
    for case in described.cases:
        values = {name: described.value(name, value) for name, value in case.parameters.items()}
        made = described.at(values)
        present = [t for t in made.tensors if is_present(t, case)]
        dims, _ = made.bind_shapes({tensor.name: case_shape(tensor, case) for tensor in present})
        cost = made.cost(dims, dict.fromkeys(made.names, 2), made.values(values))
        assert (cost.bytes > 0 and cost.flops > 0) or 0 in dims.values(), case.name


def test_the_cost_of_an_op_counts_each_tensor_once():
    assert contract("add").cost({"M": 10}, {"x": 2, "y": 2}, {}).bytes == 60
    norm = contract("rms_norm").cost({"M": 10, "N": 4}, {"x": 2, "weight": 4}, {})
    assert (norm.bytes, norm.flops) == (2 * 40 * 2 + 4 * 4, 160)


def test_a_contract_is_changed_by_copying_it():
    assert replace(contract("add"), op="sub").op == "sub"
