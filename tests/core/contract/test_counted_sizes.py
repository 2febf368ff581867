"""Integers that say how large results are, and what an op requires of them: their least values, requirements, sizes."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
import torch

import portakernel
from portakernel import ops
from portakernel.contract import Contract, Cost, Parameter, Result, TensorArgument, Tolerance
from portakernel.contract.case import Case
from portakernel.contract.signature_text import document
from portakernel.contract.sizes import names_in, size_of_values
from portakernel.contract.soundness import contract_faults
from portakernel.contracts import contract
from portakernel.errors import ArgumentValueError
from portakernel_kit.conformance.claims import possible
from portakernel_kit.conformance.comparison import Match, Mismatch, compare_integers
from portakernel_kit.conformance.drawn.levels import draw_value, parameter_factors
from portakernel_kit.conformance.drawn.request import draw_request

COUNT = Parameter("n", None, kind="int", least=1, usual=(2, 4), summary="how many")
TOP = Contract(
    op="top",
    summary="",
    formula="",
    tensors=(TensorArgument("x", ("M", "N"), ("float32",)),),
    parameters=(COUNT,),
    outputs=(Result("y", ("M", "$n"), like="x"), Result("z", ("$n+1",), like="x", when=("n", range(3, 9)))),
    requirements=("$n <= N",),
    cases=(Case("one", dims={"M": 1, "N": 4}, parameters={"n": 2}),),
    tolerance=Tolerance(),
    cost=lambda dims, itemsizes, values: Cost(0, 0),
    source="",
)


@pytest.mark.parametrize(("text", "size"), [("$a", 7), ("$a+1", 8), ("$a/$b", 3), ("$b/$a", 1)])
def test_sizes_of_results_are_made_of_values(text, size):
    assert size_of_values(text, {"a": 7, "b": 3}) == size
    assert names_in(text) == tuple(sorted(names_in(text) or (), key=text.index))


@pytest.mark.parametrize("text", ["M", "2N", "M+1", "ceil(M/4)", "*M", "4"])
def test_other_sizes_name_no_values(text):
    assert names_in(text) is None


def test_a_value_that_is_too_small_is_refused():
    assert COUNT.canonical("op", 1) == 1
    with pytest.raises(ArgumentValueError, match=r"^op: n must be an integer from 1 up; this is 0$"):
        COUNT.canonical("op", 0)


def test_a_requirement_is_about_dimensions_and_values_and_open_where_one_is_unknown():
    dims, _ = TOP.bind_shapes({"x": (3, 4)}, {"n": 4})
    assert dims == {"M": 3, "N": 4}
    TOP.bind_shapes({"x": (3, 4)})
    TOP.bind_shapes({"x": (3, 4)}, {"n": None})
    with pytest.raises(ArgumentValueError, match=re.escape("top: needs n <= N; this is N = 4, n = 5")):
        TOP.bind_shapes({"x": (3, 4)}, {"n": 5})
    assert not possible(TOP, replace(TOP.cases[0], parameters={"n": 5}))


def test_results_have_such_sizes_and_exist_where_a_value_is_in_a_range():
    for n, names in ((2, ["y"]), (3, ["y", "z"]), (8, ["y", "z"])):
        made = TOP.at({"n": n})
        assert [result.name for result in made.outputs] == names
        forms = [made.form(r, {"M": 3, "N": 9}, (), {"x": "float32"}, {"n": n})[0] for r in made.outputs]
        assert forms == [(3, n), (n + 1,)][: len(names)]
    assert "z: ($n+1,), when n is at least 3." in document(TOP)


def test_names_that_there_are_not_are_faults():
    assert list(contract_faults(TOP)) == []
    wrong = replace(TOP, requirements=("$k <= N",), outputs=(Result("y", ("$n/$k",), like="x"),))
    texts = list(contract_faults(wrong))
    assert any(text.startswith("result y: size '$n/$k' is no int parameter's value") for text in texts)
    assert any(text.startswith("requirement '$k <= N': unknown 'k'") for text in texts)


def test_the_kit_draws_usual_values_and_dimensions_that_go_with_them():
    assert parameter_factors(COUNT) == {"n": ("2", "4")}
    assert draw_value(COUNT, {}, random.Random(0)) == 2
    route = contract("moe_route")
    for number in range(30):
        drawn = draw_request(route, 1, number)
        assert possible(route, drawn.case)


def test_calls_that_differ_in_values_alone_are_judged_each():
    logits = torch.randn(3, 8)
    for k in (2, 8):
        assert ops.moe_route(logits, k=k)[1].shape == (3, k)
    for _ in range(2):
        with pytest.raises(ArgumentValueError, match="needs k <= E; this is E = 8, k = 9"):
            ops.moe_route(logits, k=9)


def test_bound_handles_hold_to_them():
    logits = torch.randn(3, 8)
    handle = portakernel.bind("moe_route", logits, k=4)
    assert handle(torch.randn(5, 8))[1].shape == (5, 4)


def test_compiled_graphs_have_such_sizes():
    def step(experts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ops.moe_sort(experts, num_experts=4, capacity=40, block=4)

    experts = torch.randint(-1, 4, (6, 2))
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    assert all(map(torch.equal, compiled(experts), step(experts)))


def test_integers_are_compared_exactly():
    want = torch.tensor([[1, 2], [3, 2**31]])
    assert compare_integers(want.clone(), want) == Match()
    found = compare_integers(torch.tensor([[1, 2], [4, 2**31]]), want)
    assert isinstance(found, Mismatch)
    assert (found.index, found.got, found.want, found.wrong) == ((1, 0), 4, 3, 1)
