"""Sizes that only the run of a graph can tell: rows that a mask picks, say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from portakernel import runtime
from portakernel.claims.capability import Limit
from portakernel.claims.request import PLAIN_FACTS, Request
from portakernel.ops import add, layer_norm, linear_act, rms_norm, silu_and_mul, softmax
from portakernel.tensors.layout import layout_facts
from portakernel.words.target import Target

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),  # torch's own
]
WEIGHT = torch.randn(8)
MATRIX = torch.randn(4, 8)
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "rms_norm": lambda x: rms_norm(x, WEIGHT),
    "layer_norm": lambda x: layer_norm(x, WEIGHT, WEIGHT),
    "silu_and_mul": silu_and_mul,
    "linear_act": lambda x: linear_act(x, MATRIX),
    "softmax": softmax,
    "softmax over it": lambda x: softmax(x.t().contiguous()),
    "add": lambda x: add(x, x.clone()),
    "rms_norm of columns": lambda x: rms_norm(x.t().contiguous().t(), WEIGHT),
}


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield
    torch._dynamo.reset()


class Picked(torch.nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x[x[:, 0] > 0])


@pytest.mark.turns(3)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_rows_that_a_mask_picks_are_compiled_exported_and_trained_in_one_graph(call):
    module, inputs = Picked(call), [torch.randn(rows, 8) for rows in (16, 32)]
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    exported = torch.export.export(module, (inputs[0],), strict=False).run_decompositions().module()
    torch.testing.assert_close(exported(inputs[0]), module(inputs[0]))
    for x in inputs:
        torch.testing.assert_close(compiled(x), module(x))
    one, other = (inputs[0].clone().requires_grad_() for _ in range(2))
    compiled(one).square().sum().backward()
    module(other).square().sum().backward()
    torch.testing.assert_close(one.grad, other.grad)


def test_sizes_that_prove_unequal_fail_when_the_graph_runs():
    def unequal(x: Tensor) -> Tensor:
        return add(x[x[:, 0] > 0], x[x[:, 1] > 0])

    compiled = torch.compile(unequal, fullgraph=True, backend="aot_eager")
    x = torch.ones(4, 8)
    torch.testing.assert_close(compiled(x), x + x)
    x[0, 0] = -1
    with pytest.raises(RuntimeError, match=r"Runtime assertion failed for expression Eq\(u\d, u\d\)"):
        compiled(x)


def test_a_limit_on_such_a_size_is_met_only_where_it_is_sure():
    size = ShapeEnv().create_unbacked_symint()
    torch._check(size >= 0)
    assert Limit("M", min=0).admits(size)
    assert Limit("M", multiple_of=16).admits(16 * size)
    for limit in (Limit("M", min=32), Limit("M", max=64), Limit("M", one_of=(1, 2)), Limit("M", power_of_two=True)):
        assert not limit.admits(size)
    rejection = Limit("M", max=64).rejection(size)
    assert rejection is not None
    assert rejection.text == "needs M <= 64; this is u0, known only when the graph runs"


def test_the_layout_of_such_rows_is_what_is_sure_of_it():
    mode = torch._subclasses.FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        rows = mode.shape_env.create_unbacked_symint()
        x = torch.empty(rows, 8)
    wanted = {"x.contiguous": True, "x.flat_rows": True, "x.stride_last": 1, "x.alignment": 4}
    assert layout_facts("x", x) == wanted
    assert layout_facts("x", x[:, :4]) == {**wanted, "x.contiguous": False}
    assert layout_facts("x", x[:, ::2]) == {**wanted, "x.contiguous": False, "x.stride_last": 2}


class Open:
    """A size that a graph leaves open, which notes what it is compared with."""

    def __init__(self, compared: list[int]) -> None:
        self.compared = compared

    def __ge__(self, bound: int) -> bool:
        self.compared.append(bound)
        return True

    __le__ = __ge__

    def __mod__(self, divisor: int) -> int:
        self.compared.append(divisor)
        return 0


def test_only_bounds_of_the_kernel_that_goes_first_are_compared_with_open_sizes():
    dispatcher, compared = runtime.dispatcher(), list[int]()
    contiguous = {f"{name}.{fact}": value for name in ("x", "weight") for fact, value in PLAIN_FACTS.items()}
    dtypes = {"x": "bfloat16", "weight": "bfloat16"}
    request = Request("rms_norm", Target("nvidia", "sm_90"), dtypes, {"M": 64, "N": 4096}, contiguous)
    symbolic: Any = {"M": Open(compared), "N": Open(compared)}
    decision = dispatcher.decide(replace(request, dims=symbolic))
    chosen = decision.candidates[0]
    limits = [limit for _, claim in chosen.kernel.variants for limit in claim.limits if limit.parameter in symbolic]
    bounds = {bound for limit in limits for bound in (limit.min, limit.max, limit.multiple_of) if bound is not None}
    others = [c.kernel for c in decision.candidates[1:] if any(claim.limits for _, claim in c.kernel.variants)]
    assert compared
    assert set(compared) <= bounds
    assert len(others) > 3
    assert decision.chosen is dispatcher.decide(replace(request, dims={})).chosen
