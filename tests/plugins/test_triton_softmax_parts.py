"""What the kernels of ``softmax`` over parts of rows do beyond the conformance kit's cases, in Triton's interpreter."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch

import portakernel
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.losses import softmax_parts

PART = 8192
LONG = 2 * PART + 5  # a row of three parts, the last of which is short


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def draw(*shape, dtype=torch.float32, seed=0):
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


TOLERANCE = {torch.float32: 2e-6, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("n", [1, PART, LONG])
def test_parts_of_a_row_are_one_row(dtype, n, launched):
    x, grad_y = draw(2, n, dtype=dtype), draw(2, n, dtype=dtype, seed=1)
    y = softmax_parts.softmax(x)
    torch.testing.assert_close(y.double(), x.double().softmax(-1), rtol=1.01 * TOLERANCE[dtype], atol=2.0**-25)
    grad_x = softmax_parts.backward(grad_y, y, needs=(True,))[0]
    p, g = y.double(), grad_y.double()
    exact, terms = p * (g - (g * p).sum(-1, keepdim=True)), p * (g.abs() + (g * p).abs().sum(-1, keepdim=True))
    assert ((grad_x.double() - exact).abs() <= 1.01 * TOLERANCE[dtype] * terms + 2.0**-25).all()
    assert launched == ["_forward_sums", "_forward_results", "_backward_sums", "_backward_results"]


def test_a_row_may_be_overwritten_and_lie_in_a_wider_matrix():
    wide = draw(3, LONG + 15)
    x = wide[:, 7:-8]
    beside = wide.clone()
    exact = x.double().softmax(-1)
    assert softmax_parts.softmax(x, out=x) is x
    torch.testing.assert_close(x.double(), exact, rtol=2e-6, atol=2.0**-25)
    assert torch.equal(wide[:, :7], beside[:, :7])
    assert torch.equal(wide[:, -8:], beside[:, -8:])


def test_infinities_are_as_in_torch():
    x = draw(6, LONG)
    x[0, : LONG - 1] = float("-inf")  # whole parts see nothing else
    x[1, :PART] = float("-inf")
    x[2] = float("-inf")
    x[3, 5] = float("inf")
    x[4, 9000] = float("nan")
    y = softmax_parts.softmax(x)
    assert y[0, -1] == 1
    assert torch.equal(y[0, :-1], torch.zeros(LONG - 1))
    torch.testing.assert_close(y[[1, 5]].double(), x[[1, 5]].double().softmax(-1), rtol=2e-6, atol=2.0**-25)
    assert y[2:5].isnan().all()


def test_a_row_has_the_same_bits_in_any_batch():
    x, grad_y = draw(5, LONG), draw(5, LONG, seed=1)
    y = softmax_parts.softmax(x)
    grad_x = softmax_parts.backward(grad_y, y, needs=(True,))[0]
    for rows in (slice(0, 1), slice(4, 5), slice(1, 3)):
        assert torch.equal(softmax_parts.softmax(x[rows]), y[rows])
        assert torch.equal(softmax_parts.backward(grad_y[rows], y[rows], needs=(True,))[0], grad_x[rows])


def test_rows_may_lie_more_than_2_to_the_31_elements_apart():
    apart = 2**31 + 16
    x = torch.empty(apart + LONG, dtype=torch.bfloat16).as_strided((2, LONG), (apart, 1))
    x.copy_(draw(2, LONG))
    expected = softmax_parts.softmax(x.clone())
    grad_y = draw(2, LONG, dtype=torch.bfloat16, seed=1)
    assert softmax_parts.softmax(x, out=x) is x
    assert torch.equal(x, expected)
    grad_x = softmax_parts.backward(grad_y, x, needs=(True,))[0]
    assert torch.equal(grad_x, softmax_parts.backward(grad_y, expected, needs=(True,))[0])


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
def test_nothing_is_launched_for_nothing(shape, launched):
    y = softmax_parts.softmax(torch.empty(shape))
    assert y.shape == shape
    assert softmax_parts.backward(y, y, needs=(True,))[0].shape == shape
    assert launched == []


@pytest.mark.parametrize(
    ("rows", "columns", "required", "name"),
    [
        (48, 50257, (), "triton.softmax_parts"),
        (49, 50257, (), "triton.softmax"),
        (1, 49151, (), "triton.softmax"),
        (1, 50257, ("batch_invariant",), "triton.softmax"),  # of more rows it is another's
    ],
)
def test_few_long_rows_are_dealt_out_in_parts(rows, columns, required, name):
    shape = {"x": (rows, columns)}
    with portakernel.policy(require=required):
        found = portakernel.explain("softmax", target="nvidia:sm_90", dtype="bfloat16", shape=shape)
    assert found.chosen is not None
    assert found.chosen.name == name
