"""The references compute their ops' formulas: checked against others, in rational arithmetic and by differences."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from portakernel.references import add, rms_norm

EPS = 1e-6
PARAMETERS = [(1e-6, 0.0), (0.5, 0.0), (1e-6, 1.0), (1e-3, -0.5)]


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def exact_rms_norm(x: list[float], weight: list[float], eps: float, offset: float) -> tuple[list[float], float]:
    """One row by the definition: sums in rational arithmetic, one root in float64."""
    mean = sum((Fraction(value) ** 2 for value in x), Fraction(0)) / len(x) + Fraction(eps)
    root = math.sqrt(mean)
    return [
        float(Fraction(v) * (Fraction(w) + Fraction(offset)) / Fraction(root)) for v, w in zip(x, weight, strict=True)
    ], 1 / root


def test_add_is_the_sum_rounded_once():
    x, y = drawn(200, seed=1).float(), drawn(200, seed=2).float()
    want = [float(np.float32(float(Fraction(a) + Fraction(b)))) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert add.forward(x, y).tolist() == want


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_add_of_16_bit_floats_is_the_exact_sum_rounded_once(dtype):
    x, y = drawn(500, seed=1).to(dtype), (drawn(500, seed=2) * 1e-2).to(dtype)
    assert torch.equal(add.forward(x, y), (x.double() + y.double()).to(dtype))


@pytest.mark.parametrize(("eps", "offset"), PARAMETERS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 3, 5)])
def test_rms_norm_is_its_definition(shape, eps, offset):
    x, weight = drawn(*shape, seed=3), drawn(shape[-1], seed=4)
    y, rstd = rms_norm.forward(x, weight, eps=eps, weight_offset=offset, save=True)
    rows = [exact_rms_norm(row, weight.tolist(), eps, offset) for row in x.reshape(-1, shape[-1]).tolist()]
    np.testing.assert_allclose(y.reshape(-1, shape[-1]).numpy(), [row for row, _ in rows], rtol=1e-14)
    np.testing.assert_allclose(rstd.numpy(), [root for _, root in rows], rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rms_norm_of_narrow_dtypes_is_float32_inside_and_rounded_once(dtype):
    x, weight = drawn(4, 33, seed=5).to(dtype), drawn(33, seed=6).to(dtype)
    y, rstd = rms_norm.forward(x, weight, eps=EPS, save=True)
    assert (y.dtype, rstd.dtype) == (dtype, torch.float32)
    rows = [exact_rms_norm(row, weight.tolist(), EPS, 0.0)[0] for row in x.tolist()]
    half_ulp = {torch.float32: 2.0**-21, torch.float16: 2.0**-11 * 1.001, torch.bfloat16: 2.0**-8 * 1.001}[dtype]
    np.testing.assert_allclose(y.double().numpy(), rows, rtol=half_ulp)


@pytest.mark.parametrize(("eps", "offset"), PARAMETERS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 3, 5)])
def test_gradient_is_the_difference_quotient_of_the_definition(shape, eps, offset):
    """Central differences of the rational formula: nothing of torch is in them."""
    n = shape[-1]
    x, weight, grad = drawn(*shape, seed=7), drawn(n, seed=8), drawn(*shape, seed=9)
    _, rstd = rms_norm.forward(x, weight, eps=eps, weight_offset=offset, save=True)
    grad_x, grad_weight = rms_norm.backward(grad, x, weight, rstd, eps=eps, weight_offset=offset, needs=(True, True))
    rows, grads, w = x.reshape(-1, n).tolist(), grad.reshape(-1, n).tolist(), weight.tolist()

    def loss(row, g, weights):
        return math.fsum(a * b for a, b in zip(exact_rms_norm(row, weights, eps, offset)[0], g, strict=True))

    def slope(function, values, place, step=1e-7):
        moved = [[v + sign * step * (i == place) for i, v in enumerate(values)] for sign in (1, -1)]
        return (function(moved[0]) - function(moved[1])) / (2 * step)

    want_x = [
        [slope(lambda r, g=g: loss(r, g, w), row, i) for i in range(n)] for row, g in zip(rows, grads, strict=True)
    ]
    want_weight = [
        math.fsum(slope(lambda v, row=row, g=g: loss(row, g, v), w, i) for row, g in zip(rows, grads, strict=True))
        for i in range(n)
    ]
    np.testing.assert_allclose(grad_x.reshape(-1, n).numpy(), want_x, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(grad_weight.numpy(), want_weight, rtol=1e-6, atol=1e-8)


class _RmsNorm(torch.autograd.Function):
    """The reference's forward with the reference's backward."""

    @staticmethod
    def forward(ctx, x, weight):
        y, rstd = rms_norm.forward(x, weight, eps=EPS, weight_offset=0.25, save=True)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    def backward(ctx, grad):
        return rms_norm.backward(
            grad, *ctx.saved_tensors, eps=EPS, weight_offset=0.25, needs=tuple(ctx.needs_input_grad)
        )


def test_gradient_passes_gradcheck_in_float64():
    x, weight = drawn(2, 3, 5, seed=10).requires_grad_(), drawn(5, seed=11).requires_grad_()
    assert torch.autograd.gradcheck(_RmsNorm.apply, (x, weight))


def test_magnitudes_bound_the_gradients_and_are_reached_without_cancellation():
    x, weight, grad = drawn(4, 9, seed=12), drawn(9, seed=13), drawn(4, 9, seed=14)
    _, rstd = rms_norm.forward(x, weight, eps=EPS, save=True)
    grads = rms_norm.backward(grad, x, weight, rstd, eps=EPS, needs=(True, True))
    sizes = rms_norm.magnitudes(grad, x, weight, rstd, eps=EPS)
    for gradient, size in zip(grads, sizes, strict=True):
        assert bool((gradient.abs() <= size * (1 + 1e-12)).all())
    given = (grad.abs(), x.abs(), weight, rstd)
    assert torch.allclose(rms_norm.backward(*given, eps=EPS, needs=(False, True))[1], sizes[1])
