"""What the gated activations' Triton kernels do beyond the conformance kit's cases, in Triton's interpreter."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch

from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.gates import gelu_and_mul, silu_and_mul


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


CALLS = {
    "silu": (silu_and_mul, {}),
    "gelu": (gelu_and_mul, {"approximate": "none"}),
    "gelu, tanh": (gelu_and_mul, {"approximate": "tanh"}),
}
activations = pytest.mark.parametrize("activation", CALLS)


def forward(activation, x, **more):
    module, values = CALLS[activation]
    return getattr(module, module.__name__.rpartition(".")[2])(x, **values, **more)


def backward(activation, grad_y, x):
    module, values = CALLS[activation]
    return module.backward(grad_y, x, **values, needs=(True,))[0]


def half_and_half(gate, up):
    return torch.tensor([*gate, *up]).reshape(1, -1)


@activations
@pytest.mark.parametrize("far", [200.0, 1e4, 1e20, 3e38])
def test_far_from_zero_the_gate_is_open_or_closed_and_so_is_its_gradient(activation, far):
    x = half_and_half([far, -far], [1.0, 1.0])
    assert torch.equal(forward(activation, x).abs(), torch.tensor([[far, 0.0]]))
    grad_x = backward(activation, torch.ones(1, 2), x)
    assert torch.equal(grad_x.abs(), torch.tensor([[1.0, 0.0, far, 0.0]]))


@activations
def test_nan_stays_in_its_pair(activation):
    x = torch.randn(4, 12, generator=torch.Generator().manual_seed(0))
    grad_y = torch.ones(4, 6)
    clean, clean_grad = forward(activation, x), backward(activation, grad_y, x)
    x[1, 2] = x[2, 9] = float("nan")
    y, grad_x = forward(activation, x), backward(activation, grad_y, x)
    assert y.isnan().nonzero().tolist() == [[1, 2], [2, 3]]
    assert torch.equal(y[~y.isnan()], clean[~y.isnan()])
    # the gradient for a NaN's other half is NaN; that for a NaN `up` is the gate's
    assert grad_x.isnan().nonzero().tolist() == [[1, 2], [1, 8], [2, 3]]
    assert torch.equal(grad_x[~grad_x.isnan()], clean_grad[~grad_x.isnan()])


@activations
@pytest.mark.parametrize("n", [40, 3000])
def test_a_row_has_the_same_bits_in_any_batch(activation, n):
    x = torch.randn(70, 2 * n, generator=torch.Generator().manual_seed(0))
    grad_y = torch.randn(70, n, generator=torch.Generator().manual_seed(1))
    y, grad_x = forward(activation, x), backward(activation, grad_y, x)
    for rows in (slice(0, 1), slice(69, 70), slice(3, 37)):
        assert torch.equal(forward(activation, x[rows]), y[rows])
        assert torch.equal(backward(activation, grad_y[rows], x[rows]), grad_x[rows])


def test_rows_may_lie_more_than_2_to_the_31_elements_apart():
    apart = 2**31 + 16
    x = torch.empty(apart + 80, dtype=torch.bfloat16).as_strided((2, 80), (apart, 1))
    out = torch.empty(apart + 40, dtype=torch.bfloat16).as_strided((2, 40), (apart, 1))
    x.copy_(torch.randn(2, 80, generator=torch.Generator().manual_seed(0)))
    assert silu_and_mul.silu_and_mul(x, out=out) is out
    assert torch.equal(out, silu_and_mul.silu_and_mul(x.clone()))
    grad_x = silu_and_mul.backward(out, x, needs=(True,))[0]
    assert torch.equal(grad_x, silu_and_mul.backward(out.clone(), x.clone(), needs=(True,))[0])


@activations
@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (2, 0, 8)])
def test_nothing_is_launched_for_nothing(activation, shape, monkeypatch):
    def launched(*_args, **_meta):
        raise AssertionError

    monkeypatch.setattr("portakernel.triton_launch.interpreter.run", launched)
    y = forward(activation, torch.empty(shape))
    assert y.shape == (*shape[:-1], shape[-1] // 2)
    assert backward(activation, y, torch.empty(shape)).shape == shape
