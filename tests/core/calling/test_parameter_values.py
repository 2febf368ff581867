"""Values that no formula is meant for are refused, in the first call of a kind and in every later one."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import portakernel
from portakernel import ops
from portakernel.contract.parameter import Parameter
from portakernel.contracts import contract, own_contracts
from portakernel.errors import ArgumentValueError
from portakernel_kit.conformance.inputs import draw_inputs, generator

FLOATS = [(op, p) for op, described in own_contracts().items() for p in described.parameters if p.kind == "float"]
INTEGERS = [
    (op, p)
    for op, its in own_contracts().items()
    for p in its.parameters
    if p.kind in ("int", "window") and not p.choices
]
# a window's least and a length's are not negative numbers of 64 bits, see Parameter.canonical
LEAST = {"window": "-1", "max_seqlen_q": "0", "max_seqlen_k": "0", "ignore_index": "-2**63"}
pytestmark = pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")


def call_of(op: str) -> tuple[list[Tensor | None], dict[str, Any]]:
    """Arguments of a small call of ``op``, as its public function takes them: those that have to be given."""
    described = contract(op)
    needed = {parameter.name for parameter in described.parameters if parameter.is_required}
    cases = (case for case in described.cases if case.parameters.keys() == needed)
    case = next(case for case in cases if math.prod(case.dims.values()) > 1)
    made, dtypes = described.at(), dict[str, str]()
    for name in described.typed:
        dtypes[name] = str(made.accepted_dtypes(name, dtypes)[0])
    inputs = draw_inputs(described, case, dtypes, "cpu", generator(0, op))
    tensors, keywords = inputs.keywords(inputs.tensors)
    return tensors, {**keywords, **case.parameters}


def outside(parameter: Parameter) -> list[float]:
    beyond = [value for value in (parameter.least - 1.0, parameter.most + 1.0) if math.isfinite(value)]
    return [math.nan, math.inf, -math.inf, *beyond]


def inside(parameter: Parameter) -> float:
    return 0.25 if math.isinf(parameter.most) else parameter.most / 2


@pytest.mark.parametrize(("op", "parameter"), FLOATS, ids=lambda value: getattr(value, "name", value))
def test_a_number_out_of_range_is_refused_whatever_was_called_before(op, parameter):
    tensors, needed = call_of(op)
    function, described = getattr(ops, op), contract(op)
    accepted = parameter.accepted().replace("a number", "a finite number")
    for warm in (False, True):
        with torch.no_grad():
            handle = portakernel.bind(op, *tensors, **needed | {parameter.name: inside(parameter)}) if warm else None
        if warm:
            function(*tensors, **needed | {parameter.name: inside(parameter)})
            function(*tensors, **needed | {parameter.name: inside(parameter)})
        for value in outside(parameter):
            message = f"{op}: {parameter.name} must be {accepted}; this is {value!r}"
            functions = [function, partial(portakernel.explain, op), partial(portakernel.bind, op), handle]
            calls = [partial(one, *tensors, **needed | {parameter.name: value}) for one in functions if one is not None]
            if not any(tensor.keyword for tensor in described.tensors):
                row = [*tensors, *described.values({**needed, parameter.name: value}).values()]
                calls.append(partial(getattr(torch.ops.portakernel, op), *row))
            for call in calls:
                with pytest.raises(ArgumentValueError) as caught:
                    call()
                assert str(caught.value) == message


@pytest.mark.parametrize(("op", "parameter"), FLOATS, ids=lambda value: getattr(value, "name", value))
def test_the_ends_of_a_range_are_inside(op, parameter):
    for value in (parameter.least, parameter.most):
        if math.isfinite(value):
            assert parameter.canonical(op, value) == value


@pytest.mark.parametrize("name", ["max_seqlen_q", "max_seqlen_k"])
def test_lengths_are_not_negative(name):
    tensors, _ = call_of("attention_varlen")
    for _ in range(2):
        with pytest.raises(ArgumentValueError) as caught:
            ops.attention_varlen(*tensors, **{name: -1})
        assert str(caught.value) == f"attention_varlen: {name} counts positions, from 0; this is -1"
        ops.attention_varlen(*tensors, **{name: 4096})


def test_there_are_integers_and_windows():
    assert {(op, parameter.name) for op, parameter in INTEGERS} >= {
        ("attention", "window"),
        ("attention_varlen", "window"),
        ("attention_varlen", "max_seqlen_q"),
        ("cross_entropy", "ignore_index"),
    }


@pytest.mark.parametrize(("op", "parameter"), INTEGERS, ids=lambda value: getattr(value, "name", value))
def test_an_integer_beyond_64_bits_is_refused_whatever_was_called_before(op, parameter):
    tensors, keywords = call_of(op)
    function, name = getattr(ops, op), parameter.name
    least = LEAST.get(name, f"{parameter.least:g}")
    another = (3, 0) if parameter.kind == "window" else next(iter(parameter.usual), 4096)
    # the last one has more digits than Python writes
    beyond = {
        2**63: "2**63 or more",
        10**30: "2**99 or more",
        -(10**30): "-2**99 or less",
        1 << 20000: "2**20000 or more",
    }
    for warm in (False, True):
        handle = None
        if warm:
            with torch.no_grad():
                handle = portakernel.bind(op, *tensors, **keywords)
            for _ in range(2):
                function(*tensors, **keywords)
                function(*tensors, **keywords | {name: another})
        functions = [function, partial(portakernel.explain, op), partial(portakernel.bind, op), handle]
        for number, shown in beyond.items():
            for value in [(number, 0), (0, number)] if parameter.kind == "window" else [number]:
                for call in filter(None, functions):
                    with pytest.raises(ArgumentValueError) as caught:
                        call(*tensors, **keywords | {name: value})
                    assert str(caught.value) == (
                        f"{op}: {name} is beyond what 64 bits hold; this is {shown}; accepted: {least} to 2**63 - 1"
                    )


@pytest.mark.parametrize("op", ["attention", "attention_varlen"])
def test_the_largest_window_of_64_bits_sees_every_key(op):
    tensors, keywords = call_of(op)
    function = getattr(ops, op)
    every = function(*tensors, **keywords | {"window": (-1, -1)})
    for _ in range(2):
        found = function(*tensors, **keywords | {"window": (2**63 - 1, 2**63 - 1)})
        torch.testing.assert_close(found, every)
