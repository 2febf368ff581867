"""``add_layer_norm`` is a rounded sum, its norm and an activation: against torch's own functions and autograd."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from portakernel.references import add_layer_norm

EPS = 1e-5
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ACTIVATIONS = {
    "none": lambda z: z,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
}
NAMES = list(ACTIVATIONS)


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def formula(summed, weight, bias, eps, activation):
    return ACTIVATIONS[activation](F.layer_norm(summed, summed.shape[-1:], weight, bias, eps))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sum_is_added_in_float32_and_rounded_once(dtype):
    x, residual = (drawn(40, 50, seed=1) * 3).to(dtype), (drawn(40, 50, seed=2) * 1e-2).to(dtype)
    _, summed = add_layer_norm.forward(x, residual, torch.ones(50), eps=EPS)
    want = torch.from_numpy(x.float().numpy() + residual.float().numpy()).to(dtype)
    assert torch.equal(summed, want)
    assert torch.equal(summed, x + residual)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("activation", NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, *DTYPES])
def test_the_rest_is_the_activation_of_the_norm_of_the_rounded_sum(dtype, activation, with_bias):
    x, residual, weight = drawn(2, 3, 33, seed=3).to(dtype), drawn(2, 3, 33, seed=4).to(dtype), drawn(33, seed=5)
    weight, bias = weight.to(dtype), drawn(33, seed=6).to(dtype) if with_bias else None
    y, summed, mean, rstd = add_layer_norm.forward(x, residual, weight, bias, eps=EPS, activation=activation, save=True)
    wide = summed.double()
    want = formula(wide, weight.double(), None if bias is None else bias.double(), EPS, activation)
    rtol, atol = {
        torch.float64: (1e-12, 1e-13),
        torch.float32: (1e-5, 5e-6),
        torch.float16: (2.0**-11 * 1.001, 5e-6),
        torch.bfloat16: (2.0**-8 * 1.001, 5e-6),
    }[dtype]
    np.testing.assert_allclose(y.double().numpy(), want.numpy(), rtol=rtol, atol=atol)
    np.testing.assert_allclose(mean.numpy(), wide.mean(-1).reshape(-1).numpy(), rtol=1e-5, atol=1e-7)
    root = (wide.var(-1, correction=0) + EPS).rsqrt().reshape(-1)
    np.testing.assert_allclose(rstd.numpy(), root.numpy(), rtol=1e-6)
    assert y.dtype == summed.dtype == dtype
    assert mean.dtype == rstd.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)


@pytest.mark.parametrize("activation", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_truth_is_the_formula_at_the_rounded_sum_in_float64(dtype, activation):
    x, residual = drawn(4, 33, seed=7).to(dtype), drawn(4, 33, seed=8).to(dtype)
    weight, bias = drawn(33, seed=9).float(), drawn(33, seed=10).float()
    y, summed, mean, rstd = add_layer_norm.truth(x, residual, weight, bias, eps=EPS, activation=activation)
    assert torch.equal(summed, (x + residual).double())
    torch.testing.assert_close(
        y, formula(summed, weight.double(), bias.double(), EPS, activation), rtol=1e-12, atol=1e-14
    )
    torch.testing.assert_close(mean, summed.mean(-1), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(rstd, (summed.var(-1, correction=0) + EPS).rsqrt(), rtol=1e-13, atol=0)


def test_layouts_change_nothing_and_results_are_contiguous():
    x, residual, weight = drawn(6, 32, seed=11).half(), drawn(6, 32, seed=12).half(), drawn(64, seed=13).half()
    want = add_layer_norm.forward(x, residual, weight[::2].contiguous(), weight[1::2].contiguous(), eps=EPS)
    found = add_layer_norm.forward(x.T.contiguous().T, residual, weight[::2], weight[1::2], eps=EPS)
    assert all(tensor.is_contiguous() for tensor in found)
    assert torch.equal(found[1], want[1])
    torch.testing.assert_close(found[0], want[0], rtol=2e-3, atol=1e-5)


def test_outputs_go_where_they_shall_over_the_inputs_too():
    x, residual, weight = drawn(3, 8, seed=14).half(), drawn(3, 8, seed=15).half(), drawn(8, seed=16).half()
    want = add_layer_norm.forward(x, residual, weight, eps=EPS, activation="silu", save=True)
    out = torch.full((8, 3), math.nan, dtype=torch.float16).T, torch.full((3, 8), math.nan, dtype=torch.float16)
    for target in (out, (x, residual)):
        found = add_layer_norm.forward(x, residual, weight, eps=EPS, activation="silu", out=target, save=True)
        assert found[0] is target[0]
        assert found[1] is target[1]
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


def test_no_rows_give_no_rows():
    empty, weight = torch.empty(0, 5), torch.ones(5)
    y, summed, mean, rstd = add_layer_norm.forward(empty, empty, weight, weight, eps=EPS, activation="gelu", save=True)
    assert (y.shape, summed.shape, mean.shape, rstd.shape) == ((0, 5), (0, 5), (0,), (0,))
    kept = (y, summed, weight, weight, summed, mean, rstd)
    grads = add_layer_norm.backward(*kept, eps=EPS, activation="gelu")
    assert [tuple(grad.shape) for grad in grads] == [(0, 5), (0, 5), (5,), (5,)]
    assert grads[2].tolist() == grads[3].tolist() == [0.0] * 5


@pytest.mark.parametrize("activation", NAMES)
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_a_row_with_a_special_value_is_nan_throughout_and_alone(special, activation):
    x, residual = drawn(3, 9, seed=17), drawn(3, 9, seed=18)
    want, _ = add_layer_norm.forward(x, residual, torch.ones(9), eps=EPS, activation=activation)
    residual[1, 4] = special
    y, _ = add_layer_norm.forward(x, residual, torch.ones(9), eps=EPS, activation=activation)
    assert y[1].isnan().all()
    assert torch.equal(y[::2], want[::2])


class _AddLayerNorm(torch.autograd.Function):
    """The reference's forward with the reference's backward."""

    @staticmethod
    def forward(ctx, x, residual, weight, bias, activation):
        y, summed, mean, rstd = add_layer_norm.forward(
            x, residual, weight, bias, eps=EPS, activation=activation, save=True
        )
        ctx.save_for_backward(weight, bias, summed, mean, rstd)
        ctx.activation = activation
        return y, summed

    @staticmethod
    def backward(ctx, *grads):
        needs = tuple(ctx.needs_input_grad[:4])
        kept = (*grads, *ctx.saved_tensors)
        return (*add_layer_norm.backward(*kept, eps=EPS, activation=ctx.activation, needs=needs), None)


@pytest.mark.parametrize("activation", NAMES)
def test_gradients_pass_gradcheck_in_float64(activation):
    shapes = ((2, 3, 5), (2, 3, 5), (5,), (5,))
    given = tuple(drawn(*shape, seed=19 + place).requires_grad_() for place, shape in enumerate(shapes))
    assert torch.autograd.gradcheck(lambda *tensors: _AddLayerNorm.apply(*tensors, activation), given)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("with_y", "with_summed"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("activation", NAMES)
def test_gradients_are_those_that_autograd_finds_and_none_counts_as_zero(activation, with_y, with_summed, with_bias):
    x, residual, weight = drawn(3, 7, seed=23), drawn(3, 7, seed=24), drawn(7, seed=25)
    bias = drawn(7, seed=26) if with_bias else None
    grad_y = drawn(3, 7, seed=27) if with_y else None
    grad_summed = drawn(3, 7, seed=28) if with_summed else None
    given = [t.clone().requires_grad_() for t in (x, residual, weight, bias) if t is not None]
    total = given[0] + given[1]
    zeros = torch.zeros(3, 7, dtype=torch.float64)
    flowing = [zeros if grad is None else grad for grad in (grad_y, grad_summed)]
    y = formula(total, given[2], given[3] if with_bias else None, 0.1, activation)
    want = torch.autograd.grad((y, total * 1), given, flowing)
    saved = add_layer_norm.forward(x, residual, weight, bias, eps=0.1, activation=activation, save=True)[1:]
    kept = (grad_y, grad_summed, weight, bias, *saved)
    found = add_layer_norm.backward(*kept, eps=0.1, activation=activation)
    sizes = add_layer_norm.magnitudes(*kept, eps=0.1, activation=activation)
    assert len(found) == len(sizes) == 4
    assert with_bias or (found[3] is None and sizes[3] is None)
    for a, b, size in zip(found, want, sizes, strict=False):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)
        assert bool((a.abs() <= size * (1 + 1e-12)).all())


def test_relu_has_no_slope_at_zero():
    """One column: each deviation is 0, and so is what relu is applied to."""
    x, weight = drawn(3, 1, seed=29), torch.ones(1, dtype=torch.float64)
    y, summed, mean, rstd = add_layer_norm.forward(x, x, weight, eps=EPS, activation="relu", save=True)
    assert y.tolist() == [[0.0]] * 3
    kept = (torch.ones_like(y), None, weight, torch.zeros_like(weight), summed, mean, rstd)
    assert add_layer_norm.backward(*kept, eps=EPS, activation="relu")[3].tolist() == [0.0]


def test_without_an_activation_the_sum_of_gradients_is_as_large_beside_an_infinite_row():
    x, weight = drawn(3, 8, seed=1), drawn(8, seed=2)
    x[1, 2] = math.inf
    _, summed, mean, rstd = add_layer_norm.forward(x, torch.zeros_like(x), weight, weight, eps=EPS, save=True)
    grad = drawn(3, 8, seed=3)
    *_, of_bias = add_layer_norm.magnitudes(grad, None, weight, weight, summed, mean, rstd, eps=EPS)
    torch.testing.assert_close(of_bias, grad.abs().sum(0))


def test_magnitudes_allow_either_side_where_relu_is_within_rounding_of_zero():
    x = torch.tensor([[-1.0, 1e-7, 1.0], [-1.0, 0.5, 1.0]], dtype=torch.float64)
    weight, ones = torch.ones(3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    saved = add_layer_norm.forward(x, 0 * x, weight, eps=EPS, activation="relu", save=True)[1:]
    sizes = add_layer_norm.magnitudes(ones, None, weight, None, *saved, eps=EPS, activation="relu")
    # 32 units in the last place of float32 there, and half a unit of float16, are more than the gradient
    assert float(sizes[0][0].min()) * 2.0**-19 > 1
    assert float(sizes[0][1].max()) < 10


@pytest.mark.parametrize("needs", list(itertools.product((True, False), repeat=4)))
def test_gradients_that_are_not_needed_are_none_and_those_of_x_and_residual_lie_apart(needs):
    x, grad = drawn(3, 4, seed=30).half(), drawn(3, 4, seed=31).half()
    weight, bias = drawn(4, seed=32).float(), drawn(4, seed=33).float()
    saved = add_layer_norm.forward(x, x, weight, bias, eps=EPS, activation="gelu", save=True)[1:]
    given = {"eps": EPS, "activation": "gelu"}
    everything = add_layer_norm.backward(grad, grad, weight, bias, *saved, **given)
    found = add_layer_norm.backward(grad.T.contiguous().T, grad, weight, bias, *saved, **given, needs=needs)
    for gradient, needed, same in zip(found, needs, everything, strict=True):
        assert (gradient is not None) == needed
        assert not needed or (torch.equal(gradient, same) and gradient.is_contiguous())
    assert [t.dtype for t in everything] == [torch.float16, torch.float16, torch.float32, torch.float32]
    assert torch.equal(everything[0], everything[1])
    assert everything[0].data_ptr() != everything[1].data_ptr()


@pytest.mark.parametrize("activation", NAMES)
def test_magnitudes_of_results_bound_them(activation):
    x, residual, weight, bias = drawn(4, 9, seed=34) + 3, drawn(4, 9, seed=35), drawn(9, seed=36), drawn(9, seed=37)
    y, summed, mean, rstd = add_layer_norm.forward(x, residual, weight, bias, eps=EPS, activation=activation, save=True)
    given = {"eps": EPS, "activation": activation}
    size, nothing = add_layer_norm.output_magnitudes(x, residual, weight, bias, **given)
    mean_size, rstd_size = add_layer_norm.saved_magnitudes(x, residual, weight, bias, **given)
    assert nothing is None
    assert bool((y.abs() <= size).all())
    assert bool((mean.abs() <= mean_size * (1 + 1e-12)).all())
    assert (size.shape, mean_size.shape, rstd_size.shape) == (summed.shape, mean.shape, rstd.shape)
    assert bool((rstd <= rstd_size).all())
