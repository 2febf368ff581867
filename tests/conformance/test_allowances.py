"""What rounding alone explains passes, and what it does not fails: in requests that right kernels failed on GPUs.

Stand-ins round as libraries do there: sums in parts, products before a bias, scores term by term, no subnormal numbers.
"""

from __future__ import annotations

import functools
import json
import math

import pytest
import torch
from torch.nn import functional

from portakernel.contract.case import Case
from portakernel.contracts import contract
from portakernel.references import attention, linear_act
from portakernel_kit.conformance.allowances import grown, growth
from portakernel_kit.conformance.comparison import Match, Mismatch, compare_rows
from portakernel_kit.conformance.drawn.spelling import parse_request
from portakernel_kit.conformance.gradients import Backward
from portakernel_kit.conformance.inputs import draw_inputs, generator
from portakernel_kit.conformance.trial import Trial

SIXTEEN_BIT = ("float16", "bfloat16")


@pytest.fixture
def failed(make_suite, registry):
    """The aspects that fail of requests, which differ from a drawn one in their seeds, put to a stand-in."""

    def ask(kernel, request, *, seeds=(2101,), **wraps):
        suite, found = make_suite(kernel, **wraps), []
        for seed in seeds:
            asked = parse_request(json.dumps({"kernel": kernel, "seed": seed, **request}), registry.kernels)
            suite.seed = seed
            results = list(suite.run(asked.unit(suite.kernel.op)))
            assert any(result.status == "passed" for result in results)
            found += [result.aspect for result in results if result.status == "failed"]
        return found

    return ask


# --- parts of long sums ----------------------------------------------------------------------------------------------


def linear(dtype, k, n, **more):
    return {
        "dtypes": dict.fromkeys(("x", "weight", "bias"), dtype),
        "dims": {"K": k, "N": n},
        "backward": False,
        **more,
    }


LONG = {
    "one row of weights": linear(
        "bfloat16", 7240, 21, leading=[5], layouts={"weight": "expanded"}, present=["bias"], draw=360,
        parameters={"activation": "gelu"},
    ),
    "mixed": linear("bfloat16", 17879, 24, leading=[3, 2, 1, 3], values="mixed", present=["bias"], draw=136),
    "float16": linear("float16", 4096, 40, leading=[9], draw=3),
}  # fmt: skip


def in_parts(terms):
    """A linear layer whose products are summed in float32 by so many terms, and from there on in 16 bits."""

    def wrap(kernel):
        del kernel

        def forward(x, weight, bias=None, *, activation, out=None):
            z = x.new_zeros((*x.shape[:-1], weight.shape[0]))
            for part, others in zip(x.split(terms, -1), weight.split(terms, -1), strict=True):
                z = z + (part.float() @ others.float().T).to(x.dtype)
            y = linear_act.ACTIVATIONS[activation].value((z if bias is None else z + bias).float()).to(x.dtype)
            return y if out is None else out.copy_(y)

        return forward

    return wrap


@pytest.mark.parametrize("name", LONG)
def test_parts_of_a_long_sum_may_be_rounded_and_short_ones_may_not(failed, name):
    seeds = range(2101, 2107)
    assert failed("torch.linear_act_unfused", LONG[name], seeds=seeds, forward=in_parts(1024)) == []
    assert set(failed("torch.linear_act_unfused", LONG[name], seeds=seeds, forward=in_parts(8))) >= {"forward", "out"}


def overflowing(value):
    """A linear layer that gives ``value`` where the sum does not fit into its dtype."""

    def wrap(kernel):
        def forward(x, weight, bias=None, *, activation, out=None):
            y = kernel(x, weight, bias, activation=activation)
            y = y.masked_fill(y.isinf(), value)
            return y if out is None else out.copy_(y)

        return forward

    return wrap


def test_a_part_that_overflows_may_leave_nan_and_no_number(failed):
    request = linear("float16", 13850, 2, leading=[1, 1, 2], values="mixed", draw=74)
    seeds = range(2101, 2107)
    assert failed("torch.linear_act_unfused", request, seeds=seeds, forward=overflowing(math.nan)) == []
    assert "forward" in failed("torch.linear_act_unfused", request, seeds=seeds, forward=overflowing(65504.0))


def test_a_sum_that_is_not_split_leaves_no_nan(failed):
    short = linear("float16", 12, 2, leading=[9], values="large")
    assert "forward" in failed("torch.linear_act_unfused", short, forward=overflowing(math.nan))


# --- slopes that rounding decides about ------------------------------------------------------------------------------


RELU = Case(
    "drawn 19", (1, 14, 1, 4), {"K": 2, "N": 11}, {"bias": "stepped"}, {"activation": "relu"}, present=("bias",)
)


def rounded_before(product, bias):
    """A linear layer whose product is rounded before the bias is added, as on GPUs."""
    return functional.relu(product + bias)


def too_early(product, bias):
    """The same, with slope 1 from a little below 0 on."""
    z = product + bias
    near = z.masked_fill((z < -0.1) | (z > 0), 0.0)
    return functional.relu(z) + (near - near.detach())


@pytest.fixture
def wrong_gradients(make_suite):
    """What is wrong with the gradients of a layer that autograd differentiates, in several draws."""
    suite = make_suite("torch.linear_act_unfused")

    def of(layer, dtype):
        problems = []
        for seed in range(2101, 2141):
            dtypes = dict.fromkeys(("x", "weight", "bias"), dtype)
            inputs = draw_inputs(contract("linear_act"), RELU, dtypes, "cpu", generator(seed, "linear_act[drawn 19]"))
            trial = Trial(suite.caller, suite.kernel, suite.venue, inputs, frozenset(), is_drawn=True)
            backward = Backward(trial, generator(seed, "gradients"))
            (grad,) = backward.draw("contiguous")
            truth = trial.truth.gradients((grad,))
            x, weight, bias = (tensor.detach().requires_grad_() for tensor in inputs.tensors)
            found = torch.autograd.grad(layer(functional.linear(x, weight), bias), (x, weight, bias), grad)
            problems += backward.compare(found, (True,) * 3, truth, {})
        return problems

    return of


@pytest.mark.parametrize("dtype", SIXTEEN_BIT)
def test_either_slope_of_relu_is_right_where_rounding_decides(wrong_gradients, dtype):
    assert wrong_gradients(rounded_before, dtype) == []
    assert len(wrong_gradients(too_early, dtype)) > 40


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_are_in_doubt_by_what_such_a_slope_changes_them(dtype):
    x, weight = torch.tensor([[1.0, 1.0]], dtype=dtype), torch.tensor([[1.0, 0.5], [1.0, 0.5]], dtype=dtype)
    # one preactivation within half a unit in the last place of the product from 0, and one beyond
    bias = torch.tensor([-1.5, -1.5 * (1 + 4 * torch.finfo(dtype).eps)], dtype=dtype)
    grad = torch.tensor([[-2.0, 3.0]], dtype=dtype)
    found = linear_act.gradient_doubts(grad, x, weight, bias, activation="relu")
    assert [doubt.tolist() for doubt in found] == [[[2.0, 1.0]], [[2.0, 2.0], [0.0, 0.0]], [2.0, 0.0]]
    assert linear_act.gradient_doubts(grad, x, weight, bias, activation="gelu") == (None, None, None)


# --- scores far from 0 -----------------------------------------------------------------------------------------------

SCORES = {
    "dtypes": dict.fromkeys(("q", "k", "v", "alibi_slopes", "bias", "sinks"), "float32"),
    "dims": {"B": 2, "S": 2, "H": 24, "D": 4105, "T": 5, "G": 4, "E": 1},
    "parameters": {"scale": -0.66, "window": [0, 1048576]},
    "backward": False,
    "present": ["alibi_slopes", "bias", "sinks"],
    "draw": 446,
}


def scored(product):
    """Attention whose scores are sums as ``product`` makes them of ``q`` and the keys of its heads."""

    def wrap(kernel):
        del kernel

        def forward(q, k, v, *, out=None, bias=None, scale=None, **more):
            keys = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
            scores = product(q.transpose(1, 2).unsqueeze(3), keys.transpose(1, 2).unsqueeze(2)) * scale
            # added to scores that are 0
            y = attention.forward(torch.zeros_like(q), k, v, bias=scores + bias, scale=scale, **more)
            return y if out is None else out.copy_(y)

        return forward

    return wrap


def term_by_term(q, k):
    total = torch.zeros(torch.broadcast_shapes(q.shape, k.shape)[:-1])
    for left, right in zip(q.unbind(-1), k.unbind(-1), strict=True):
        total += left * right
    return total


def in_ten_bits(q, k):
    return ((q * k).sum(-1) / 2).half().float() * 2


def test_scores_far_from_0_may_be_off_as_float32_sums_are_and_not_as_sixteen_bits_are(failed):
    assert failed("torch.attention_math", SCORES, seeds=range(2101, 2104), forward=scored(term_by_term)) == []
    assert "forward" in failed("torch.attention_math", SCORES, forward=scored(in_ten_bits))


def test_a_plain_formula_that_hits_the_truth_bounds_no_errors_of_scores(make_suite, registry):
    suite = make_suite("torch.attention_math")
    asked = parse_request(json.dumps({"kernel": "torch.attention_math", "seed": 2101, **SCORES}), registry.kernels)
    inputs = draw_inputs(contract("attention"), asked.case, asked.dtypes, "cpu", generator(2101, "attention"))
    trial = Trial(suite.caller, suite.kernel, suite.venue, inputs, frozenset(), is_drawn=True)
    positional, keywords = inputs.keywords(inputs.tensors)
    shown = {name: value for name, value in keywords.items() if name != "return_lse"}
    y = scored(term_by_term)(None)(*positional, **shown)
    want, magnitude = trial.truth.outputs["out"], trial.truth.magnitudes["out"]
    given = (y, "out", y.shape, y.dtype, want, {})
    assert trial.compare(*given, plain=want) != []
    assert trial.compare(*given, magnitude, plain=want) == []


def test_nothing_is_allowed_where_all_weight_is_on_one_key():
    q, k, v = (torch.randn(1, 3, 2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) for _ in "qkv")
    sizes, _ = attention.output_magnitudes(q, k[:, :1], v[:, :1], return_lse=True)
    assert sizes.max() < 1e-6
    sizes, _ = attention.output_magnitudes(q, k, v, return_lse=True)
    assert sizes.mean() > 1e-2


# --- numbers that are subnormal in float32 ---------------------------------------------------------------------------

FLUSHED = {
    "dtypes": {"x": "float32", "weight": "float32", "target": "int32"},
    "leading": [1],
    "dims": {"K": 4800, "V": 21},
    "draw": 37,
}


def flushing(below, counts):
    """Gradients with 0 for what is smaller than ``below``; how many that were is appended to ``counts``."""

    def wrap(kernel):
        def backward(*tensors, **keywords):
            right = kernel(*tensors, **keywords)
            small = [None if gradient is None else (gradient.abs() < below) & (gradient != 0) for gradient in right]
            counts.append(sum(int(where.sum()) for where in small if where is not None))
            pairs = zip(right, small, strict=True)
            return tuple(None if where is None else gradient.masked_fill(where, 0.0) for gradient, where in pairs)

        return backward

    return wrap


def test_subnormal_gradients_may_be_zero_and_others_may_not(failed):
    tiny, counts = torch.finfo(torch.float32).tiny, []
    ask = functools.partial(failed, "reference.linear_cross_entropy", FLUSHED)
    assert ask(backward=flushing(tiny, counts)) == []
    assert max(counts) > 100
    assert "backward" in ask(backward=flushing(1e-20, counts))


def test_subnormal_results_may_be_zero_and_others_may_not(make_suite):
    suite = make_suite("reference.softmax")
    inputs = draw_inputs(contract("softmax"), Case("", (2,), {"N": 9}), {"x": "float32"}, "cpu", generator(1, ""))
    inputs.tensors[0][:, 4] -= 95.0
    inputs.tensors[0][:, 5] -= 60.0
    trial = Trial(suite.caller, suite.kernel, suite.venue, inputs, frozenset())
    y = torch.softmax(inputs.tensors[0], -1)
    assert trial.compare_results([y]) == []
    y[:, 4] = 0.0
    assert trial.compare_results([y]) == []
    y[1, 5] = 0.0
    (problem,) = trial.compare_results([y])
    assert problem.startswith("y: 1 of 18 elements differ; the worst, at [1, 5]: got 0.0, want ")


# --- rows ------------------------------------------------------------------------------------------------------------


def test_slack_of_a_row_is_added_to_what_is_allowed():
    want = torch.ones(6, 32, dtype=torch.float64)
    got, slack = want.clone(), torch.zeros_like(want)
    got[2, 3] += 1.0
    slack[2, 5] = 0.9
    assert isinstance(compare_rows(got.half(), want, want), Mismatch)
    assert isinstance(compare_rows(got.half(), want, want, slack=slack), Mismatch)
    assert isinstance(compare_rows(got.half(), want, want, slack=slack * 1.2), Match)
    assert isinstance(compare_rows(got.half(), want, want, slack=torch.tensor(0.2).double()), Match)
    assert isinstance(compare_rows(got.half().roll(1, 0), want, want, slack=slack * 1.2), Mismatch)


def test_a_sum_over_many_keys_is_a_long_row(make_suite):
    suite = make_suite("reference.attention")
    dims = {"B": 1, "S": 4, "H": 2, "D": 8, "T": 5000, "G": 1, "E": 8}
    inputs = draw_inputs(suite.contract, Case("", dims=dims), dict.fromkeys("qkv", "float32"), "cpu", generator(1, ""))
    trial = Trial(suite.caller, suite.kernel, suite.venue, inputs, frozenset(), is_drawn=True)
    assert trial.longest_row == 5000


def test_a_bags_gradient_for_each_of_its_indices_is_rounded_alike_each_time(failed):
    request = {
        "draw": 6,
        "dtypes": {"weight": "float32", "indices": "int64", "offsets": "int64", "per_sample_weights": "float32"},
        "dims": {"V": 1, "N": 192, "I": 10718, "B": 11},
        "parameters": {"mode": "sum"},
        "values": "large",
    }
    assert failed("torch.embedding_bag_cpu", request, seeds=(170570719, 5)) == []


def test_long_rows_of_16_bits_may_be_off_by_what_their_float32_sums_are():
    given = {"float32": 8.0, "float16": 0.51, "bfloat16": 0.51, "summed float16": 0.51, "float8_e4m3fn": 0.51}
    assert grown(given, 1.0) == given
    # 169,002 numbers: torch's softmax of such a row on a CPU was 0.521 units off
    allowed = grown(given, growth(169002))
    assert allowed["float32"] == pytest.approx(660.2, abs=0.1)
    assert allowed["float16"] == pytest.approx(0.5806, abs=1e-4)
    assert allowed["bfloat16"] == pytest.approx(0.5101, abs=1e-4)
    assert (allowed["summed float16"], allowed["float8_e4m3fn"]) == (0.51, 0.51)
