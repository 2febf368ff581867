"""What the conformance kit does not try of the Triton kernels of ``layer_norm``: long rows, far means, far rows."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.references import layer_norm as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.launching.row_blocks import is_long, looped_shape
from portakernel_plugins.triton.norms import layer_norm
from portakernel_plugins.triton.norms.weight_gradients import summed_shares

EPS = 1e-5
LONG = 33001
# More blocks than are unrolled.
LOOPED = 16 * 16384 + 4001


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("n", [LONG, LOOPED])
def test_long_rows_are_normalised_block_by_block(n):
    how = configuration("layer_norm.forward", torch.device("cpu"), n)
    assert is_long(how)
    assert (looped_shape(how, n)["BLOCKS"] == 0) == (n == LOOPED)
    x, weight, bias = draw(3, n), draw(n, seed=1), draw(n, seed=2)
    exact = reference.forward(x.double(), weight.double(), bias.double(), eps=EPS, save=True)
    found = layer_norm.layer_norm(x, weight, bias, eps=EPS, save=True)
    for tensor, truth, tolerance in zip(found, exact, (2e-6, 1e-7, 1e-6), strict=True):
        torch.testing.assert_close(tensor.double(), truth, rtol=0, atol=tolerance)
    assert torch.equal(layer_norm.layer_norm(x[1:2], weight, bias, eps=EPS), found[0][1:2])
    assert torch.equal(layer_norm.layer_norm(x, weight, bias, eps=EPS, out=x), found[0])


@pytest.mark.parametrize("columns", [1025, 5000, 9001])
def test_a_row_of_several_blocks_is_read_once(columns):
    how = configuration("layer_norm.forward", torch.device("cpu"), columns)
    assert how.elements < columns <= how.elements * how.blocks
    x, weight, bias = draw(3, columns), draw(columns, seed=1), draw(columns, seed=2)
    exact = reference.forward(x.double(), weight.double(), bias.double(), eps=EPS, save=True)
    found = layer_norm.layer_norm(x, weight, bias, eps=EPS, save=True)
    for tensor, truth, tolerance in zip(found, exact, (2e-6, 1e-7, 1e-6), strict=True):
        torch.testing.assert_close(tensor.double(), truth, rtol=0, atol=tolerance)
    assert torch.equal(layer_norm.layer_norm(x[1:2], weight, bias, eps=EPS), found[0][1:2])
    assert torch.equal(layer_norm.layer_norm(x, weight, bias, eps=EPS, out=x), found[0])


@pytest.mark.parametrize("n", [20001, LONG])  # unrolled, and not
def test_backward_of_long_rows_is_the_gradient(n):
    assert is_long(configuration("layer_norm.backward", torch.device("cpu"), n))
    x, weight, grad = draw(3, n), draw(n, seed=1), draw(3, n, seed=2)
    _, mean, rstd = reference.forward(x, weight, eps=EPS, save=True)
    exact = reference.backward(grad.double(), x.double(), weight.double(), mean.double(), rstd.double(), eps=EPS)
    found = layer_norm.backward(grad, x, weight, mean, rstd, eps=EPS)
    for tensor, truth in zip(found, exact, strict=True):
        torch.testing.assert_close(tensor.double(), truth, rtol=0, atol=5e-6)
    only_bias = layer_norm.backward(grad, x, weight, mean, rstd, eps=EPS, needs=(False, False, True))
    assert only_bias[:2] == (None, None)
    assert torch.equal(only_bias[2], found[2])


@pytest.mark.parametrize("n", [1000, LONG])
def test_the_variance_survives_a_mean_of_ten_thousand_deviations(n):
    # the difference of E[x**2] and E[x]**2 would have no digit left
    x = draw(2, n) + 1e4
    _, mean, rstd = layer_norm.layer_norm(x, torch.ones(n), eps=EPS, save=True)
    wide = x.double()
    torch.testing.assert_close(mean.double(), wide.mean(-1), rtol=1e-6, atol=0)
    exact = torch.rsqrt(wide.var(-1, correction=0) + EPS)
    torch.testing.assert_close(rstd.double(), exact, rtol=1e-5, atol=0)


def test_rows_may_lie_beyond_two_to_the_31_elements():
    n = 40
    memory = torch.empty((1 << 31) + n, dtype=torch.float16)  # untouched pages cost nothing
    x = memory.as_strided((2, n), (1 << 31, 1))
    x.copy_(draw(2, n))
    near, weight = x.clone(), torch.ones(n, dtype=torch.float16)
    y, mean, rstd = layer_norm.layer_norm(x, weight, eps=EPS, save=True)
    assert torch.equal(y, layer_norm.layer_norm(near, weight, eps=EPS))
    for far, expected in zip(
        layer_norm.backward(x, x, weight, mean, rstd, eps=EPS),
        layer_norm.backward(near, near, weight, mean, rstd, eps=EPS),
        strict=True,
    ):
        assert torch.equal(far, expected)


@pytest.mark.parametrize("number", [1, 5, 300])
def test_shares_are_added_in_float32_and_rounded_once(number):
    shares = [draw(number, 37, seed=1), draw(number, 37, seed=2)]
    for tensor, share in zip(summed_shares(shares, torch.bfloat16), shares, strict=True):
        torch.testing.assert_close(tensor.double(), share.double().sum(0), rtol=2**-8, atol=1e-6)
    assert torch.equal(summed_shares(shares[:1], torch.bfloat16)[0], summed_shares(shares, torch.bfloat16)[0])
