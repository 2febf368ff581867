"""The norms of portakernel.nn are torch's in all but what computes them."""

from __future__ import annotations

import copy
import inspect
import io
import re
from typing import Any

import pytest
import torch
from cxx import needs_cxx

import portakernel
from portakernel import nn
from portakernel.errors import ArgumentTypeError, ArgumentValueError

PAIRS = [(nn.RMSNorm, torch.nn.RMSNorm), (nn.LayerNorm, torch.nn.LayerNorm)]
pairs = pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
SHAPES = [(64,), (4, 16), 64]


def drawn(module: torch.nn.Module) -> torch.nn.Module:
    """The module with weights that no constructor gives, so that one that is not read shows."""
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, 1.0, 0.3)
    return module


@pairs
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("affine", [True, False], ids=["weighted", "without weights"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_numbers_are_no_further_from_float64_than_torch_s(
    ours: Any, theirs: Any, shape: Any, affine: bool, dtype: torch.dtype
) -> None:
    reference = drawn(theirs(shape, elementwise_affine=affine)).to(dtype)
    module = ours(shape, elementwise_affine=affine, dtype=dtype)
    module.load_state_dict(reference.state_dict())
    x = torch.randn(7, *((shape,) if isinstance(shape, int) else shape)).to(dtype)
    # None is an epsilon of torch's, which float64's formula has to be told
    exact = theirs(shape, eps=module.eps or torch.finfo(torch.promote_types(dtype, torch.float32)).eps,
                   elementwise_affine=affine, dtype=torch.float64)  # fmt: skip
    exact.load_state_dict({name: weight.double() for name, weight in reference.state_dict().items()})
    wanted = exact(x.double())
    got, theirs_got = module(x), reference(x)
    assert (got.dtype, got.shape) == (dtype, x.shape)
    error, their_error = ((result.double() - wanted).abs().max() for result in (got, theirs_got))
    # other orders of summation differ by units in the last place; rounding to 16 bits hides them
    order = 8 * torch.finfo(dtype).eps * wanted.abs().max() if dtype.itemsize > 2 else 0.0
    assert error <= 1.05 * their_error + order


@pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_the_default_eps_is_torch_s_where_it_decides(ours: Any, theirs: Any, dtype: torch.dtype) -> None:
    x = (torch.randn(3, 8).double() * 1e-4).to(dtype)
    torch.testing.assert_close(ours(8, dtype=dtype)(x), theirs(8, dtype=dtype)(x))


@pairs
@pytest.mark.parametrize("shape", [(16,), (4, 4)], ids=str)
def test_gradients_are_those_of_the_formula(ours: Any, theirs: Any, shape: tuple[int, ...]) -> None:
    module, reference = ours(shape), drawn(theirs(shape, dtype=torch.float64))
    module.load_state_dict(reference.state_dict())
    reference.eps = module.eps or torch.finfo(torch.float32).eps
    reference.load_state_dict({name: weight.double() for name, weight in module.state_dict().items()})
    x = torch.randn(5, *shape)
    given, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    upstream = torch.randn(5, *shape)
    module(given).backward(upstream)
    reference(exact).backward(upstream.double())
    torch.testing.assert_close(given.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)
    for got, wanted in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got.grad.double(), wanted.grad, rtol=1e-5, atol=1e-5)


@needs_cxx
@pairs
@pytest.mark.parametrize("shape", [(16,), (2, 8)], ids=str)
def test_a_whole_graph_compiles_and_names_its_op(ours: Any, theirs: Any, shape: tuple[int, ...]) -> None:
    del theirs
    module, x = drawn(ours(shape)), torch.randn(3, *shape)
    compiled = torch.compile(module, fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x))


@pairs
def test_constructors_state_and_repr_are_torch_s(ours: Any, theirs: Any) -> None:
    assert inspect.signature(ours) == inspect.signature(theirs)
    arguments = {"eps": 1e-3, "elementwise_affine": True}
    assert repr(ours((2, 3), **arguments)) == repr(theirs((2, 3), **arguments))
    assert isinstance(ours(4), theirs)
    for affine in (True, False):
        one, other = drawn(ours(4, elementwise_affine=affine)), drawn(theirs(4, elementwise_affine=affine))
        assert [*one.state_dict()] == [*other.state_dict()]
        other.load_state_dict(one.state_dict())
        for got, wanted in zip(other.parameters(), one.parameters(), strict=True):
            assert torch.equal(got, wanted)


def test_a_layer_norm_without_a_bias_adds_none() -> None:
    module, reference = nn.LayerNorm(8, bias=False), torch.nn.LayerNorm(8, bias=False)
    drawn(module)
    reference.load_state_dict(module.state_dict())
    x = torch.randn(3, 8)
    torch.testing.assert_close(module(x), reference(x))


@pairs
def test_it_goes_through_the_op(ours: Any, theirs: Any) -> None:
    del theirs
    op = {"RMSNorm": "rms_norm", "LayerNorm": "layer_norm"}[ours.__name__]
    module, x = ours(24), torch.randn(2, 24)
    before = calls(op)
    module(x)
    assert calls(op) == before + 1


def calls(op: str) -> int:
    """How many calls of an op were served in this process."""
    return sum(served.calls for served in portakernel.stats() if served.op == op)


@pairs
def test_autocast_leaves_the_result_in_its_input_s_dtype(ours: Any, theirs: Any) -> None:
    module, reference = drawn(ours(16)), theirs(16)
    reference.load_state_dict(module.state_dict())
    x = torch.randn(3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        got, wanted = module(x), reference(x)
    assert got.dtype == wanted.dtype == torch.float32
    torch.testing.assert_close(got, wanted)


@pairs
def test_a_module_made_on_meta_is_filled_later(ours: Any, theirs: Any) -> None:
    with torch.device("meta"):
        module = ours((2, 8))
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    assert module(torch.empty(3, 2, 8, device="meta")).shape == (3, 2, 8)
    reference, x = drawn(theirs((2, 8))), torch.randn(3, 2, 8)
    module.to_empty(device="cpu").load_state_dict(reference.state_dict())
    torch.testing.assert_close(module(x), reference(x))


@pairs
def test_copies_and_pickles_compute_the_same(ours: Any, theirs: Any) -> None:
    del theirs
    module, x = drawn(ours(8)), torch.randn(2, 8)
    kept = io.BytesIO()
    torch.save(module, kept)
    kept.seek(0)
    for copied in (copy.deepcopy(module), torch.load(kept, weights_only=False)):
        assert type(copied) is ours
        assert torch.equal(copied(x), module(x))


@pytest.mark.parametrize(
    ("module", "shape", "told"),
    [
        (nn.RMSNorm(7), (3, 8), "rms_norm: weight has shape (7,), so N = 7, but x has N = 8"),
        (
            nn.LayerNorm((4, 2)),
            (3, 2, 4),
            "x is (3, 2, 4); the module normalises (4, 2): give a tensor whose last 2 dimensions are these",
        ),
        (
            nn.RMSNorm(7, elementwise_affine=False),
            (3, 8),
            "x is (3, 8); the module normalises (7,): give a tensor whose last dimension is that",
        ),
    ],
    ids=["one dimension", "two in another order", "no weight"],
)
def test_another_shape_is_refused(module: torch.nn.Module, shape: tuple[int, ...], told: str) -> None:
    with pytest.raises(ArgumentValueError, match=f"^{re.escape(told)}$"):
        module(torch.ones(shape))


def test_integers_are_refused() -> None:
    told = "rms_norm: x is int32; it must be float32 or float16 or bfloat16, or float64, which the reference serves"
    with pytest.raises(ArgumentTypeError, match=f"^{re.escape(told)}$"):
        nn.RMSNorm(4)(torch.ones(2, 4, dtype=torch.int32))
