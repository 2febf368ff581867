"""What the conformance kit does not try of the Triton kernels of ``add_layer_norm``: long rows, missing gradients."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.references import add_layer_norm as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.norms import add_layer_norm

EPS = 1e-5
LONG = 33001


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("activation", ["none", "gelu_tanh"])
def test_long_rows_are_added_normalised_and_activated(activation):
    x, residual, weight, bias = draw(2, LONG), draw(2, LONG, seed=1), draw(LONG, seed=2), draw(LONG, seed=3)
    exact = reference.truth(x, residual, weight, bias, eps=EPS, activation=activation)
    found = add_layer_norm.add_layer_norm(x, residual, weight, bias, eps=EPS, activation=activation, save=True)
    for tensor, truth in zip(found, exact, strict=True):
        torch.testing.assert_close(tensor.double(), truth, rtol=0, atol=3e-6)

    grads = draw(2, LONG, seed=4), draw(2, LONG, seed=5)
    kept = (weight, bias, *found[1:])
    exact_grads = reference.backward(*(t.double() for t in (*grads, *kept)), eps=EPS, activation=activation)
    found_grads = add_layer_norm.backward(*grads, *kept, eps=EPS, activation=activation)
    for tensor, truth in zip(found_grads, exact_grads, strict=True):
        torch.testing.assert_close(tensor.double(), truth, rtol=0, atol=1e-5)


def test_long_rows_may_be_written_over_what_is_added():
    x, residual, weight = draw(2, LONG), draw(2, LONG, seed=1), draw(LONG, seed=2)
    expected = add_layer_norm.add_layer_norm(x, residual, weight, eps=EPS)
    y, summed = add_layer_norm.add_layer_norm(x, residual, weight, eps=EPS, out=(x, residual))
    assert (y is x, summed is residual) == (True, True)
    assert torch.equal(y, expected[0])
    assert torch.equal(summed, expected[1])


@pytest.mark.parametrize("given", [True, False])
def test_without_a_gradient_of_y_that_of_the_sum_passes_by_the_norm(given):
    summed, weight, statistic = draw(3, 40), draw(40, seed=1), torch.ones(3)
    grad_summed = draw(1, 40, seed=2).expand(3, 40) if given else None
    found = add_layer_norm.backward(None, grad_summed, weight, weight, summed, statistic, statistic, eps=EPS)
    expected = torch.zeros(3, 40) if grad_summed is None else grad_summed
    for gradient in found[:2]:
        assert gradient.is_contiguous()
        assert torch.equal(gradient, expected)
    for gradient in found[2:]:
        assert torch.equal(gradient, torch.zeros(40))
