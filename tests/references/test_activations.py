"""Activations are their definitions, element by element in Python's own arithmetic; slopes are difference quotients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from portakernel.references.activations import ACTIVATIONS

CUBIC, ROOT = 0.044715, math.sqrt(2 / math.pi)
DEFINITIONS = {
    "none": lambda z: z,
    "relu": lambda z: max(z, 0.0),
    "gelu": lambda z: z * (1 + math.erf(z / math.sqrt(2))) / 2,
    "gelu_tanh": lambda z: z * (1 + math.tanh(ROOT * (z + CUBIC * z**3))) / 2,
    "silu": lambda z: z / (1 + math.exp(-z)),
}
IN_TORCH = {
    "none": lambda z: z,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
}
NAMES = list(DEFINITIONS)


def drawn(count: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(count) * 3)


def test_all_of_them_are_checked_here():
    assert set(ACTIVATIONS) == set(DEFINITIONS)


@pytest.mark.parametrize("name", NAMES)
def test_value_is_the_definition(name):
    z = torch.cat((drawn(500, seed=1), torch.tensor([0.0, -0.0, 30.0, -30.0], dtype=torch.float64)))
    want = [DEFINITIONS[name](v) for v in z.tolist()]
    np.testing.assert_allclose(ACTIVATIONS[name].value(z).numpy(), want, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_slope_is_the_difference_quotient(name):
    z, step = drawn(500, seed=2), 1e-6
    want = [(DEFINITIONS[name](v + step) - DEFINITIONS[name](v - step)) / (2 * step) for v in z.tolist()]
    np.testing.assert_allclose(ACTIVATIONS[name].slope(z).numpy(), want, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_slope_is_what_autograd_makes_of_torchs_own_function(name):
    z = torch.cat((drawn(100, seed=3), torch.zeros(1, dtype=torch.float64))).requires_grad_()
    (want,) = torch.autograd.grad(IN_TORCH[name](z).sum(), z)
    torch.testing.assert_close(ACTIVATIONS[name].slope(z.detach()), want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_tails_keep_their_digits_in_float32(name):
    z = torch.linspace(-12, -3, 200)
    exact = {"gelu": lambda v: v * math.erfc(-v / math.sqrt(2)) / 2, "silu": DEFINITIONS["silu"]}[name]
    want = [exact(v) for v in z.tolist()]
    # erfc(8.5) is exp(-72): rounding its argument costs 144 relative units
    np.testing.assert_allclose(ACTIVATIONS[name].value(z).double().numpy(), want, rtol=2e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1e3, 1e6, 1e18, 1e30, 3e38])
def test_nothing_overflows_in_float32(name, size):
    z = torch.tensor([size, -size])
    activation = ACTIVATIONS[name]
    assert activation.value(z).tolist() == (z.tolist() if name == "none" else [z[0].item(), 0.0])
    assert activation.slope(z).tolist() == ([1.0, 1.0] if name == "none" else [1.0, 0.0])
    assert activation.slope_magnitude(z.double()).isfinite().all()
    assert activation.value_magnitude(z.double()).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_infinities_and_nan_are_as_in_torch(name):
    z = torch.tensor([math.inf, -math.inf, math.nan], dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS[name].value(z), IN_TORCH[name](z), equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_magnitudes_bound_what_they_are_of_and_are_reached_where_nothing_cancels(name):
    activation, z = ACTIVATIONS[name], drawn(500, seed=4)
    for value, magnitude in (
        (activation.value(z), activation.value_magnitude(z)),
        (activation.slope(z), activation.slope_magnitude(z)),
    ):
        assert bool((value.abs() <= magnitude * (1 + 1e-12)).all())
        torch.testing.assert_close(value[z > 0], magnitude[z > 0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_curvature_bounds_how_fast_the_slope_changes(name):
    z, step = torch.linspace(-8, 8, 20001, dtype=torch.float64), 1e-5
    slope = ACTIVATIONS[name].slope
    z = z[z.abs() > step] if name == "relu" else z
    second = (slope(z + step) - slope(z - step)).abs() / (2 * step)
    assert float(second.max()) <= ACTIVATIONS[name].curvature
    assert float(second.max()) >= 0.99 * ACTIVATIONS[name].curvature
