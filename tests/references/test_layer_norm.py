"""``layer_norm`` computes its formula: against rational arithmetic, torch's own, and autograd of the formula."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from portakernel.references import layer_norm

EPS = 1e-5
SHAPES = [(1, 1), (4, 1), (3, 7), (2, 3, 5), (33,)]


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def exact_row(x: list[float], weight: list[float], bias: list[float], eps: float) -> tuple[list[float], float, float]:
    """One row by the definition: sums in rational arithmetic, one root in float64."""
    mean = sum(map(Fraction, x), Fraction(0)) / len(x)
    var = sum(((Fraction(v) - mean) ** 2 for v in x), Fraction(0)) / len(x)
    root = math.sqrt(var + Fraction(eps))
    y = [
        float((Fraction(v) - mean) * Fraction(w) / Fraction(root) + Fraction(b))
        for v, w, b in zip(x, weight, bias, strict=True)
    ]
    return y, float(mean), 1 / root


def exact(x, weight, bias, eps):
    """Every row of ``x``: outputs, means, reciprocal roots."""
    columns = x.shape[-1]
    biases = [0.0] * columns if bias is None else bias.tolist()
    rows = [exact_row(row, weight.tolist(), biases, eps) for row in x.reshape(-1, columns).tolist()]
    return tuple(np.array(part) for part in zip(*rows, strict=True))


@pytest.mark.parametrize("eps", [EPS, 0.5])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_its_definition(shape, with_bias, eps):
    x, weight = drawn(*shape, seed=1), drawn(shape[-1], seed=2)
    bias = drawn(shape[-1], seed=3) if with_bias else None
    y, mean, rstd = layer_norm.forward(x, weight, bias, eps=eps, save=True)
    want_y, want_mean, want_rstd = exact(x, weight, bias, eps)
    assert (y.shape, mean.shape, rstd.shape) == (x.shape, want_mean.shape, want_rstd.shape)
    np.testing.assert_allclose(y.reshape(-1, shape[-1]).numpy(), want_y, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(mean.numpy(), want_mean, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(rstd.numpy(), want_rstd, rtol=1e-13)
    assert torch.equal(layer_norm.forward(x, weight, bias, eps=eps), y)


@pytest.mark.parametrize("weights", ["own", "float32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_dtypes_are_float32_inside_and_rounded_once(dtype, weights):
    other = dtype if weights == "own" else torch.float32
    x, weight, bias = drawn(4, 33, seed=4).to(dtype), drawn(33, seed=5).to(other), drawn(33, seed=6).to(other)
    y, mean, rstd = layer_norm.forward(x, weight, bias, eps=EPS, save=True)
    assert (y.dtype, mean.dtype, rstd.dtype) == (dtype, torch.float32, torch.float32)
    want, _, _ = exact(x, weight, bias, EPS)
    step = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    np.testing.assert_allclose(y.double().numpy(), want, rtol=step * 1.001, atol=3e-6)


def test_a_mean_far_from_zero_leaves_the_root_its_digits():
    """The mean of squared deviations, not the difference of two means of squares."""
    x = (drawn(5, 1000, seed=7) + 1e4).float()
    _, _, rstd = layer_norm.forward(x, torch.ones(1000), eps=EPS, save=True)
    np.testing.assert_allclose(rstd.numpy(), exact(x, torch.ones(1000), None, EPS)[2], rtol=1e-6)


def test_layouts_change_nothing_and_results_are_contiguous():
    x, weight, bias = drawn(6, 33, seed=8).float(), drawn(33, seed=9).float(), drawn(33, seed=10).float()
    want = layer_norm.forward(x, weight, bias, eps=EPS)
    wide = torch.zeros(6, 66)
    wide[:, ::2] = x
    for laid in (x.T.contiguous().T, wide[:, ::2]):
        y = layer_norm.forward(laid, weight, bias, eps=EPS)
        assert y.is_contiguous()
        torch.testing.assert_close(y, want, rtol=1e-6, atol=1e-6)
    expanded = layer_norm.forward(x[:1].expand(4, -1), weight, bias, eps=EPS)
    torch.testing.assert_close(expanded, want[:1].expand(4, -1), rtol=1e-6, atol=1e-6)


def test_out_is_written_and_returned_and_may_be_the_input():
    x, weight = drawn(3, 8, seed=11).half(), drawn(8, seed=12).half()
    want, mean, rstd = layer_norm.forward(x, weight, eps=EPS, save=True)
    out = torch.full((8, 3), math.nan, dtype=torch.float16).T
    found = layer_norm.forward(x, weight, eps=EPS, out=out, save=True)
    assert found[0] is out
    assert all(torch.equal(a, b) for a, b in zip(found, (want, mean, rstd), strict=True))
    over = x.clone()
    assert layer_norm.forward(over, weight, eps=EPS, out=over) is over
    assert torch.equal(over, want)


def test_no_rows_give_no_rows_and_gradients_of_zero_for_what_they_share():
    x, weight = torch.empty(0, 5), torch.ones(5)
    y, mean, rstd = layer_norm.forward(x, weight, torch.ones(5), eps=EPS, save=True)
    assert (y.shape, mean.shape, rstd.shape) == ((0, 5), (0,), (0,))
    grad_x, grad_weight, grad_bias = layer_norm.backward(y, x, weight, mean, rstd, eps=EPS)
    assert grad_x.shape == (0, 5)
    assert (grad_weight.tolist(), grad_bias.tolist()) == ([0.0] * 5, [0.0] * 5)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_a_row_with_a_special_value_is_nan_throughout_and_alone(special):
    x, weight = drawn(3, 9, seed=13), drawn(9, seed=14)
    want = layer_norm.forward(x, weight, eps=EPS)
    x[1, 4] = special
    y = layer_norm.forward(x, weight, eps=EPS)
    assert y[1].isnan().all()
    assert torch.equal(y[::2], want[::2])
    torch.testing.assert_close(y, F.layer_norm(x, (9,), weight, None, EPS), equal_nan=True)


def test_large_numbers_stay_finite_in_float32():
    x, weight = (drawn(2, 50, seed=15) * 1e16).float(), torch.ones(50)
    torch.testing.assert_close(
        layer_norm.forward(x, weight, eps=EPS).double(),
        F.layer_norm(x.double(), (50,), None, None, EPS),
        rtol=1e-5,
        atol=1e-5,
    )


class _LayerNorm(torch.autograd.Function):
    """The reference's forward with the reference's backward."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        y, mean, rstd = layer_norm.forward(x, weight, bias, eps=eps, save=True)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx, grad):
        needs = tuple(ctx.needs_input_grad[:3])
        return (*layer_norm.backward(grad, *ctx.saved_tensors, eps=ctx.eps, needs=needs), None)


def test_gradients_pass_gradcheck_in_float64():
    x, weight, bias = (t.requires_grad_() for t in (drawn(2, 3, 5, seed=16), drawn(5, seed=17), drawn(5, seed=18)))
    assert torch.autograd.gradcheck(lambda *given: _LayerNorm.apply(*given, 0.1), (x, weight, bias))


@pytest.mark.parametrize("eps", [EPS, 0.5])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_that_autograd_finds_for_torchs_own(shape, eps):
    x, weight, bias = drawn(*shape, seed=19), drawn(shape[-1], seed=20), drawn(shape[-1], seed=21)
    grad = drawn(*shape, seed=22)
    given = tuple(t.clone().requires_grad_() for t in (x, weight, bias))
    want = torch.autograd.grad(F.layer_norm(given[0], (shape[-1],), given[1], given[2], eps), given, grad)
    _, mean, rstd = layer_norm.forward(x, weight, bias, eps=eps, save=True)
    found = layer_norm.backward(grad, x, weight, mean, rstd, eps=eps)
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True), (False,) * 3])
def test_gradients_that_are_not_needed_are_none(needs):
    x, weight, grad = drawn(3, 4, seed=23).half(), drawn(4, seed=24), drawn(3, 4, seed=25).half()
    _, mean, rstd = layer_norm.forward(x, weight, eps=EPS, save=True)
    everything = layer_norm.backward(grad.T.contiguous().T, x, weight, mean, rstd, eps=EPS)
    found = layer_norm.backward(grad, x, weight, mean, rstd, eps=EPS, needs=needs)
    assert [gradient is not None for gradient in found] == list(needs)
    for gradient, needed, same in zip(found, needs, everything, strict=True):
        assert not needed or (torch.equal(gradient, same) and same.is_contiguous())
    assert [gradient.dtype for gradient in everything] == [torch.float16, torch.float64, torch.float64]


def test_magnitudes_bound_the_gradients_and_are_reached_without_cancellation():
    x, weight, grad = drawn(4, 9, seed=26), drawn(9, seed=27), drawn(4, 9, seed=28)
    _, mean, rstd = layer_norm.forward(x, weight, eps=EPS, save=True)
    grads = layer_norm.backward(grad, x, weight, mean, rstd, eps=EPS)
    sizes = layer_norm.magnitudes(grad, x, weight, mean, rstd, eps=EPS)
    for gradient, size in zip(grads, sizes, strict=True):
        assert bool((gradient.abs() <= size * (1 + 1e-12)).all())
    # each term positive: those of x and, subtracted, of its mean, and the gradient
    reached = layer_norm.backward(grad.abs(), x.abs(), weight, -x.abs().mean(-1), rstd, eps=EPS)
    torch.testing.assert_close(reached[1], sizes[1])
    torch.testing.assert_close(reached[2], sizes[2])


@pytest.mark.parametrize("with_bias", [True, False])
def test_magnitudes_of_results_bound_them(with_bias):
    x, weight = drawn(4, 9, seed=29) + 3, drawn(9, seed=30)
    bias = drawn(9, seed=31) if with_bias else None
    y, mean, rstd = layer_norm.forward(x, weight, bias, eps=EPS, save=True)
    (size,) = layer_norm.output_magnitudes(x, weight, bias, eps=EPS)
    mean_size, rstd_size = layer_norm.saved_magnitudes(x, weight, bias, eps=EPS)
    assert bool((y.abs() <= size).all())
    assert (size.shape, mean_size.shape, rstd_size.shape) == (y.shape, mean.shape, rstd.shape)
    assert bool((mean.abs() <= mean_size * (1 + 1e-12)).all())
    # a row that moves by a rounding of its mean: the deviations, and with them rstd, lose digits in that proportion
    step = 1e-7 * x.abs().mean(-1, keepdim=True) * torch.tensor([-1.0, 1.0] * 4 + [0.0], dtype=x.dtype)
    moved = layer_norm.forward(x + step, weight, bias, eps=EPS, save=True)[2]
    assert bool(((moved - rstd).abs() <= 1e-7 * rstd_size).all())
