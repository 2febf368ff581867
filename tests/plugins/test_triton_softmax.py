"""What the Triton kernels of ``softmax`` do beyond the conformance kit's cases, in Triton's interpreter."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch

from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.losses import softmax

LONG = 32768 + 5  # beyond the longest row that is one block, in forward and in backward


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def draw(*shape, dtype=torch.float32, seed=0):
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def close(found, exact, dtype):
    # beyond the subnormal numbers of float16, whose spacing does not shrink
    torch.testing.assert_close(found.double(), exact, rtol=1.01 * TOLERANCE[dtype], atol=2.0**-25)


@dtypes
def test_a_row_too_long_for_registers_is_read_in_blocks(dtype, launched):
    x, grad_y = draw(2, LONG, dtype=dtype), draw(2, LONG, dtype=dtype, seed=1)
    y = softmax.softmax(x)
    close(y, x.double().softmax(-1), dtype)
    grad_x = softmax.backward(grad_y, y, needs=(True,))[0]
    p, g = y.double(), grad_y.double()
    exact, terms = p * (g - (g * p).sum(-1, keepdim=True)), p * (g.abs() + (g * p).abs().sum(-1, keepdim=True))
    assert ((grad_x.double() - exact).abs() <= 1.01 * TOLERANCE[dtype] * terms + 2.0**-25).all()
    assert launched == ["_forward_long", "_backward_long"]


def test_a_long_row_may_be_overwritten_and_lie_in_a_wider_matrix(launched):
    wide = draw(3, LONG + 15)
    x = wide[:, 7:-8]
    beside = wide.clone()
    exact = x.double().softmax(-1)
    assert softmax.softmax(x, out=x) is x
    close(x, exact, torch.float32)
    assert torch.equal(wide[:, :7], beside[:, :7])
    assert torch.equal(wide[:, -8:], beside[:, -8:])
    assert launched == ["_forward_long"]


def test_infinities_of_a_long_row_are_as_in_torch():
    x = draw(6, LONG)
    x[0, : LONG - 1] = float("-inf")  # many lanes, and whole blocks, see nothing else
    x[1, :8192] = float("-inf")
    x[2] = float("-inf")
    x[3, 5] = float("inf")
    x[4, 9000] = float("nan")
    y = softmax.softmax(x)
    assert y[0, -1] == 1
    assert torch.equal(y[0, :-1], torch.zeros(LONG - 1))
    close(y[[1, 5]], x[[1, 5]].double().softmax(-1), torch.float32)
    assert y[2:5].isnan().all()


def test_numbers_of_a_long_row_may_be_as_far_apart_as_float32_is_wide():
    x = torch.full((2, LONG), -3e38)
    x[0, 10000] = 3e38
    y = softmax.softmax(x)
    assert y[0].nonzero().tolist() == [[10000]]
    assert y[0, 10000] == 1
    close(y[1], torch.full((LONG,), 1 / LONG, dtype=torch.float64), torch.float32)


@dtypes
@pytest.mark.parametrize("n", [2049, 4097, 9000])
def test_a_gradient_of_several_blocks_is_that_of_one_row(n, dtype, launched):
    y, grad_y = draw(2, n).softmax(-1).to(dtype), draw(2, n, dtype=dtype, seed=1)
    grad_x = softmax.backward(grad_y, y, needs=(True,))[0]
    p, g = y.double(), grad_y.double()
    exact, terms = p * (g - (g * p).sum(-1, keepdim=True)), p * (g.abs() + (g * p).abs().sum(-1, keepdim=True))
    assert ((grad_x.double() - exact).abs() <= 1.01 * TOLERANCE[dtype] * terms + 2.0**-25).all()
    assert launched == ["_backward"]


@pytest.mark.parametrize("n", [40, 700, 4097, LONG])
def test_a_row_has_the_same_bits_in_any_batch(n):
    x, grad_y = draw(7, n), draw(7, n, seed=1)
    y = softmax.softmax(x)
    grad_x = softmax.backward(grad_y, y, needs=(True,))[0]
    for rows in (slice(0, 1), slice(6, 7), slice(2, 5)):
        assert torch.equal(softmax.softmax(x[rows]), y[rows])
        assert torch.equal(softmax.backward(grad_y[rows], y[rows], needs=(True,))[0], grad_x[rows])


@pytest.mark.parametrize("n", [40, LONG])
def test_rows_may_lie_more_than_2_to_the_31_elements_apart(n):
    apart = 2**31 + 16
    x = torch.empty(apart + n, dtype=torch.bfloat16).as_strided((2, n), (apart, 1))
    x.copy_(draw(2, n))
    expected = softmax.softmax(x.clone())
    grad_y = draw(2, n, dtype=torch.bfloat16, seed=1)
    assert softmax.softmax(x, out=x) is x
    assert torch.equal(x, expected)
    grad_x = softmax.backward(grad_y, x, needs=(True,))[0]
    assert torch.equal(grad_x, softmax.backward(grad_y, expected, needs=(True,))[0])


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
def test_nothing_is_launched_for_nothing(shape, launched):
    y = softmax.softmax(torch.empty(shape))
    assert y.shape == shape
    assert softmax.backward(y, y, needs=(True,))[0].shape == shape
    assert launched == []
