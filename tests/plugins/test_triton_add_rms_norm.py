"""What the conformance kit does not try of the Triton kernels of ``add_rms_norm``: long rows, which are read twice."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.references import add_rms_norm as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.launching.row_blocks import is_long
from portakernel_plugins.triton.norms import add_rms_norm

EPS = 1e-6
LONG = 33001


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n", [20001, LONG, 16 * 8192 + 4001])  # unrolled and not, in forward and in backward
def test_long_rows_are_added_and_normalised_block_by_block(n):
    assert n == 20001 or is_long(configuration("add_rms_norm.forward", torch.device("cpu"), n))
    assert is_long(configuration("add_rms_norm.backward", torch.device("cpu"), n))
    x, residual, weight = draw(2, n), draw(2, n, seed=1), draw(n, seed=2)
    exact = reference.truth(x, residual, weight, eps=EPS, weight_offset=1.0)
    found = add_rms_norm.add_rms_norm(x, residual, weight, eps=EPS, weight_offset=1.0, save=True)
    for tensor, truth in zip(found, exact, strict=True):
        torch.testing.assert_close(tensor.double(), truth, rtol=0, atol=3e-6)

    grads = draw(2, n, seed=3), draw(2, n, seed=4)
    kept = (weight, *found[1:])
    exact_grads = reference.backward(*(t.double() for t in (*grads, *kept)), eps=EPS, weight_offset=1.0)
    found_grads = add_rms_norm.backward(*grads, *kept, eps=EPS, weight_offset=1.0)
    for tensor, truth in zip(found_grads, exact_grads, strict=True):
        torch.testing.assert_close(tensor.double(), truth, rtol=0, atol=1e-5)


@pytest.mark.parametrize("n", [40, LONG])
def test_each_result_may_be_written_where_its_rows_have_no_single_stride(n):
    x, residual, weight = draw(2, 2, n), draw(2, 2, n, seed=1), draw(n, seed=2)
    expected = add_rms_norm.add_rms_norm(x, residual, weight, eps=EPS)
    out = torch.zeros(2, 3, n)[:, :2], torch.zeros(2, 2, 2 * n)[..., ::2]
    found = add_rms_norm.add_rms_norm(x, residual, weight, eps=EPS, out=out)
    for tensor, place, truth in zip(found, out, expected, strict=True):
        assert tensor is place
        assert torch.equal(tensor, truth)


def test_the_gradient_of_the_residual_alone_is_that_of_x():
    summed, weight, rstd = draw(5, 40), draw(40, seed=1), torch.ones(5)
    grads = draw(5, 40, seed=2), draw(5, 40, seed=3)
    both = add_rms_norm.backward(*grads, weight, summed, rstd, eps=EPS)
    alone = add_rms_norm.backward(*grads, weight, summed, rstd, eps=EPS, needs=(False, True, False))
    assert (alone[0], alone[2]) == (None, None)
    assert torch.equal(alone[1], both[1])
    assert torch.equal(both[0], both[1])
    assert both[0].data_ptr() != both[1].data_ptr()
