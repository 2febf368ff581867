"""Requests drawn from contracts: what they hold, which pairs they ask for, and that they find wrong kernels."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import pytest

from portakernel.claims.capability import Capability, Limit
from portakernel.contract.case import Case
from portakernel.contracts import contract, own_contracts
from portakernel.errors import ArgumentValueError, PortakernelError
from portakernel_kit.conformance.claims import elements, in_tiles, possible
from portakernel_kit.conformance.drawn.levels import SIZES, apart, factors, levels_of, size_level
from portakernel_kit.conformance.drawn.request import draw_request
from portakernel_kit.conformance.drawn.requests import Requests, exact_sizes
from portakernel_kit.conformance.drawn.shrinking import shrunk
from portakernel_kit.conformance.drawn.spelling import Request, parse_request
from portakernel_kit.conformance.inputs import draw_inputs, generator
from portakernel_plugins.torch.attention import flash_cpu as attention_flash_cpu


def requests(op, count):
    return [draw_request(contract(op), 5, number) for number in range(count)]


# --- what is drawn ---------------------------------------------------------------------------------------------------


def test_a_seed_and_a_number_are_a_request():
    first, again = (requests("attention", 20) for _ in range(2))
    assert first == again
    assert len({json.dumps(drawn.to_json()) for drawn in first}) == 20
    assert draw_request(contract("attention"), 6, 3) != first[3]


@pytest.mark.turns(3)
@pytest.mark.parametrize("op", sorted(own_contracts()))
def test_requests_are_ones_that_the_op_takes_and_their_levels_are_known(op):
    known = factors(contract(op))
    for number, drawn in enumerate(requests(op, 25)):
        assert possible(contract(op), drawn.case)
        inputs = draw_inputs(contract(op), drawn.case, drawn.dtypes, "cpu", generator(5, number))
        inputs.contract.check_dtypes({name: str(t.dtype).removeprefix("torch.") for name, t in inputs.given.items()})
        levels = levels_of(contract(op), drawn.case, drawn.dtypes)
        assert {name: level for name, level in levels.items() if name in known and level not in known[name]} == {}


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 7, 8, 9, 24, 31, 32, 33, 40, 4096, 4097, 4104, 131072])
def test_each_size_has_one_level(size):
    wanted = {0: "0", 1: "1", 3: "2**k - 1", 5: "2**k + 1", 7: "2**k - 1", 9: "2**k + 1", 24: "8 * k", 31: "2**k - 1"}
    wanted |= {33: "2**k + 1", 40: "8 * k", 4097: "large other", 4104: "large 8 * k", 131072: "large 8 * k"}
    assert size_level(size) == wanted.get(size, "2**k")


@pytest.mark.parametrize("level", SIZES)
def test_a_size_that_is_wished_for_comes(level):
    drawn = draw_request(contract("softmax"), 1, 2, {"M": level, "rank": "2"})
    assert (size_level(math.prod(drawn.case.leading)), len(drawn.case.leading)) == (level, 2)


def test_every_number_is_drawn_neutral_at_zero_below_next_to_it_and_far_from_it():
    scales = [drawn.case.parameters["scale"] for drawn in requests("attention", 600)]
    assert None in scales
    assert {0.0, 1e-30, -1e-30, 1e30, -1e30} <= set(scales)
    assert {math.copysign(1.0, scale) for scale in scales if scale == 0} == {1.0, -1.0}
    smoothed = {drawn.case.parameters["label_smoothing"] for drawn in requests("cross_entropy", 300)}
    assert {0.0, 1.0, 1e-30} <= smoothed
    assert (min(smoothed), max(smoothed)) == (0.0, 1.0)


def test_sizes_layouts_features_and_dtypes_are_all_drawn():
    drawn = requests("attention", 600)
    for name in ("B", "S", "T"):
        assert {0, 1} <= {request.case.dims[name] for request in drawn}
        assert max(request.case.dims[name] for request in drawn) > 4096
    layouts = {layout for request in drawn for layout in request.case.layouts.values()}
    assert layouts == {"sliced", "transposed", "expanded", "stepped", "offset", "split"}
    assert {name for request in drawn for name in request.case.present} == {"alibi_slopes", "bias", "sinks"}
    assert {request.dtypes["q"] for request in drawn} == {"float32", "float16", "bfloat16"}
    assert {request.case.backward for request in drawn} == {True, False}
    formats = {tuple(r.case.parameters[f"format_{x}"] for x in "ab") for r in requests("scaled_mm", 1500)}
    assert len(formats) == 49
    assert {len(request.case.leading) for request in requests("rms_norm", 400)} == {0, 1, 2, 3, 4, 5}
    assert {request.case.parameters["overwrite_logits"] for request in requests("cross_entropy", 40)} == {True, False}


def test_a_gradient_is_not_asked_for_where_greater_ones_cancel():
    far = [drawn.case for drawn in requests("attention", 600) if abs(drawn.case.parameters["scale"] or 0.0) > 1e6]
    assert far
    assert not any(case.backward for case in far)


def test_what_bounds_pieces_is_no_less_than_the_longest():
    for drawn in requests("attention_varlen", 200):
        for side in "qk":
            ends, bound = drawn.case.given[f"cu_seqlens_{side}"], drawn.case.parameters[f"max_seqlen_{side}"]
            assert list(ends) == sorted(ends)
            assert ends[-1] == drawn.case.dims["S" if side == "q" else "T"]
            assert bound is None or bound >= max((b - a for a, b in pairwise(ends)), default=0)


# --- of one kernel ---------------------------------------------------------------------------------------------------


def test_a_kernels_requests_ask_for_every_pair_that_can_be(make_suite):
    suite = make_suite("torch.softmax_cpu")
    drawn = Requests(suite)
    units = []
    for unit in drawn:
        units.append(unit)
        if not drawn.covering.left:
            break
    described = contract("softmax")
    seen = [levels_of(described, unit.case, dict(unit.dtypes)) for unit in units]
    wide = factors(described)
    for first, second in (("N", "x lies"), ("x dtype", "numbers"), ("rank", "x dtype")):
        pairs = {(levels[first], levels[second]) for levels in seen}
        wished = {tuple(sorted(((first, a), (second, b)))) for a in wide[first] for b in wide[second]}
        refused = set(drawn.covering.refused) | apart(described)
        assert {tuple(sorted(((first, a), (second, b)))) for a, b in pairs} == wished - refused
    assert not any(suite.why_refused(unit) for unit in units)
    assert len(units) < 200


def test_a_kernel_is_asked_for_what_it_claims_alone(make_suite):
    drawn = Requests(make_suite("torch.attention_flash_cpu"))
    assert "softcap" not in drawn.covering.factors
    assert "sinks lies" not in drawn.covering.factors
    assert {unit.case.parameters["softcap"] for unit in islice(drawn, 10)} == {0.0}


def test_units_of_one_seed_are_the_same_whoever_asks_for_them(make_suite):
    suite = make_suite("torch.softmax_cpu")
    first, second = Requests(suite), Requests(suite)
    units = list(islice(first, 4))
    assert [second.at(place) for place in (3, 0)] == [units[3], units[0]]


def test_a_mode_bounds_what_is_drawn():
    for number in range(40):
        drawn = draw_request(contract("softmax"), 2, number, {"N": "large other"}, most=5000)
        assert elements(contract("softmax"), drawn.case) <= 5000


def failures(suite, units):
    return [unit for unit in units for result in suite.run(unit) if result.status == "failed"]


def test_a_kernel_that_is_wrong_for_some_scales_is_found_and_the_right_one_is_not(make_suite, monkeypatch):
    suite = make_suite("torch.attention_flash_cpu")
    wishes = {"causal": "True", "scale": "below 0", "S": "other", "T": "other", "q dtype": "float32"}
    drawn = [draw_request(contract("attention"), 3, number, wishes) for number in range(12)]
    units = [Request("", one.case, one.dtypes, 0).unit("attention") for one in drawn]
    assert failures(suite, units) == []

    def as_given(q, scale):
        return q, q.shape[-1] ** -0.5 if scale is None else scale

    monkeypatch.setattr(attention_flash_cpu, "above_zero", as_given)
    assert failures(suite, units)


def test_backward_may_write_over_what_it_is_permitted_to_and_over_nothing_else(make_suite):
    case = Case("drawn 0", (4,), {"V": 24}, parameters={"overwrite_logits": True})
    unit = Request("", case, {"logits": "float32", "target": "int64"}, 0).unit("cross_entropy")
    suite = make_suite("reference.cross_entropy")
    results = {result.aspect: result.status for result in suite.run(unit)}
    assert (results["backward"], results["purity"], results["view"]) == ("passed", "passed", "passed")

    def spoils_target(real):
        def backward(grad, logits, target, *others, **more):
            found = real(grad, logits, target, *others, **more)
            target.fill_(1)
            return found

        return backward

    spoilt = make_suite("reference.cross_entropy", backward=spoils_target)
    assert {result.aspect: result.status for result in spoilt.run(unit)}["purity"] == "failed"


# --- a request that fails --------------------------------------------------------------------------------------------


def test_a_failing_request_is_made_as_small_as_one_that_fails_alike():
    described = contract("rms_norm")
    case = Case(
        "drawn 1", (3, 1, 5), {"N": 200}, {"x": "sliced", "weight": "stepped"}, {"eps": 1e-3, "weight_offset": 2.0},
        values="large",
    )  # fmt: skip
    asked = []

    def fails(tried):
        asked.append(tried)
        return tried.dims["N"] > 16 and tried.layouts.get("x") == "sliced"

    small = shrunk(described, case, fails, 60.0)
    assert (small.dims["N"], small.leading, dict(small.layouts), small.values) == (17, (1,), {"x": "sliced"}, "normal")
    assert dict(small.parameters) == {"eps": 1e-6, "weight_offset": 0.0}
    assert len(asked) < 100
    assert shrunk(described, case, fails, 0.0) == case


@pytest.mark.parametrize("op", sorted(own_contracts()))
def test_a_request_is_spelled_and_read_again(op, registry):
    for drawn in requests(op, 10):
        case = replace(drawn.case, parameters=contract(op).values(drawn.case.parameters))
        request = Request(f"reference.{op}", case, drawn.dtypes, 7)
        assert parse_request(str(request), registry.kernels) == request
        assert " " not in str(request)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "takes the JSON of a request"),
        ("[1]", "takes a JSON object with kernel, dtypes and seed"),
        ('{"kernel":"x.add","dtypes":{},"seed":1}', "asks kernel 'x.add', which is not installed"),
        ('{"kernel":"torch.add","dtypes":{},"seed":1,"size":3}', "has no key 'size'; its keys are kernel, draw, "),
        ('{"kernel":"torch.add","dtypes":{"z":"int8"},"seed":1}', "add knows no 'z' in \"dtypes\"; it knows x, y"),
        (
            '{"kernel":"torch.add","dtypes":{},"layouts":{"x":"round"},"seed":1}',
            '"layouts.x" takes one of contiguous, .*; this is "round"',
        ),
        (
            '{"kernel":"torch.add","dtypes":{},"values":"odd","seed":1}',
            '"values" takes one of normal, .*; this is "odd"',
        ),
    ],
)
def test_text_that_is_no_request_is_refused_in_words(text, said, registry):
    with pytest.raises(ArgumentValueError, match=said):
        parse_request(text, registry.kernels)


NORM: dict[str, Any] = {
    "kernel": "torch.rms_norm_cpu",
    "dtypes": {"x": "float32", "weight": "float32"},
    "leading": [3],
    "dims": {"N": 8},
    "seed": 1,
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kernel": [1]}, '"kernel" takes the name of a kernel; this is [1]'),
        ({"leading": 3}, '"leading" takes a list of whole numbers, such as [2, 3]; this is 3'),
        ({"leading": [4, -3]}, '"leading[1]" takes a whole number of 64 bits, from 0; this is -3'),
        ({"dims": 5}, '"dims" takes an object with names as its keys; this is 5'),
        ({"dims": {"N": "five"}}, '"dims.N" takes a whole number of 64 bits, from 0; this is "five"'),
        ({"dims": {"N": 5.5}}, '"dims.N" takes a whole number of 64 bits, from 0; this is 5.5'),
        ({"dims": {"N": -5}}, '"dims.N" takes a whole number of 64 bits, from 0; this is -5'),
        ({"dims": {"N": True}}, '"dims.N" takes a whole number of 64 bits, from 0; this is true'),
        ({"dims": {"N": 10**30}}, '"dims.N" takes a whole number of 64 bits, from 0; this is 1000000'),
        ({"dims": {"K": 5}}, "rms_norm knows no 'K' in \"dims\"; it knows M, N"),
        ({"dims": {}}, '"dims" gives no size for N, which x has'),
        ({"seed": "a"}, '"seed" takes a whole number of 64 bits; this is "a"'),
        ({"seed": 1.5}, '"seed" takes a whole number of 64 bits; this is 1.5'),
        ({"draw": "silly"}, '"draw" takes a whole number of 64 bits, from 0; this is "silly"'),
        ({"present": 5}, '"present" takes a list of optional tensors\' names; this is 5'),
        ({"present": ["foo"]}, "rms_norm knows no 'foo' in \"present\"; it knows none, so leave that out"),
        ({"present": [[]]}, "rms_norm knows no [] in"),
        ({"given": 7}, '"given" takes an object with names as its keys; this is 7'),
        ({"given": {"x": 7}}, '"given.x" takes a list of whole numbers'),
        ({"given": {"x": [7]}}, '"given.x" takes 24 whole numbers, for its shape is (3, 8); this is [7]'),
        ({"dtypes": "float32"}, '"dtypes" takes an object with names as its keys; this is "float32"'),
        ({"dtypes": {"x": "float37"}}, '"dtypes.x" takes one of float32, float16, bfloat16; this is "float37"'),
        ({"dtypes": {"x": ["int8"]}}, '"dtypes.x" takes one of float32, float16, bfloat16; this is ["int8"]'),
        ({"dtypes": {"x": "float32"}}, '"dtypes" says none for weight; it may be float32, float16, bfloat16'),
        ({"dtypes": {"x": "int8", "weight": "int8"}}, "rms_norm: x is int8; it must be float32 or float16 or bfloat16"),
        ({"layouts": ["x"]}, '"layouts" takes an object with names as its keys; this is ["x"]'),
        ({"layouts": {"weight": "transposed"}}, 'where its shape is (8,); this is "transposed"'),
        ({"parameters": 3}, '"parameters" takes an object with names as its keys; this is 3'),
        ({"parameters": {"eps": "small"}}, "rms_norm: eps must be a number"),
        ({"parameters": {"scale": 1}}, "rms_norm: unknown parameter 'scale'"),
        ({"backward": 7}, '"backward" takes true or false; this is 7'),
        ({"backward": {"x": True}}, '"backward" takes true or false; this is {"x": true}'),
    ],
)
def test_a_request_with_something_wrong_in_it_is_refused_in_words(changed, said, registry):
    assert parse_request(json.dumps(NORM), registry.kernels).case.dims == {"N": 8}
    with pytest.raises(PortakernelError, match=re.escape(said)):
        parse_request(json.dumps(NORM | changed), registry.kernels)


def test_optional_tensors_that_there_are_are_named(registry):
    asked = {"kernel": "reference.layer_norm", "dtypes": {"x": "float32"}, "seed": 1, "present": ["foo"]}
    with pytest.raises(ArgumentValueError, match=r"layer_norm knows no 'foo' in \"present\"; it knows bias"):
        parse_request(json.dumps(asked), registry.kernels)


@pytest.mark.parametrize("text", ["[" * 100_000, f'{{"seed":{"1" * 5000}}}'])
def test_json_beyond_what_python_reads_is_no_request(text, registry):
    with pytest.raises(ArgumentValueError, match="takes the JSON of a request"):
        parse_request(text, registry.kernels)


def test_equal_wishes_are_not_equal_requests():
    wishes = {"N": "other", "rank": "1"}
    found = {draw_request(contract("softmax"), 4, number, wishes).case.dims["N"] for number in range(60)}
    assert len(found) > 10
    assert random.Random(1).random() != random.Random(2).random()


def test_many_short_pieces_count_as_a_tile_each():
    dims = {"B": 500, "S": 900, "T": 3, "H": 2, "G": 1, "D": 1, "E": 64}
    want = {"B": 500, "S": 8000, "T": 8000, "H": 16, "G": 16, "D": 16, "E": 64}
    assert in_tiles(contract("attention_varlen"), dims, 16) == want
    assert in_tiles(contract("add"), {"N": 5}, 16) == {"N": 16}


def test_sizes_that_a_kernel_lists_are_drawn_and_no_others():
    limits = [Limit("D", one_of=(64, 128)), Limit("E", one_of=(64,)), Limit("S", min=2)]
    variants = [Capability({}, {}, limits=tuple(limits)), Capability({}, {}, limits=(Limit("D", one_of=(32,)),))]
    exact = exact_sizes(contract("attention"), variants)
    assert exact == ({"D": 64, "E": 64}, {"D": 128, "E": 64}, {"D": 32})
    drawn = [draw_request(contract("attention"), 9, number, exact=exact).case.dims for number in range(40)]
    assert {dims["D"] for dims in drawn} == {32, 64, 128}
    assert {dims["E"] for dims in drawn if dims["D"] != 32} == {64}
    assert len({dims["S"] for dims in drawn}) > 5
    assert exact_sizes(contract("attention"), []) == ({},)


def test_wide_heads_are_drawn_where_a_mode_bounds_what_is_computed():
    drawn = draw_request(contract("attention"), 9, 1, most=1 << 18, exact=({"D": 128, "E": 128},))
    assert (drawn.case.dims["D"], drawn.case.dims["E"]) == (128, 128)
