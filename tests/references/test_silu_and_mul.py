"""``silu_and_mul`` is its definition, element by element in Python's own arithmetic; its gradient is autograd's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from portakernel.references import silu_and_mul

SHAPES = [(1, 2), (3, 14), (2, 3, 10), (66,)]


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def defined(x: torch.Tensor) -> np.ndarray:
    """Each element by the definition, in float64."""
    half = x.shape[-1] // 2
    rows = [[row[i] / (1 + math.exp(-row[i])) * row[half + i] for i in range(half)] for row in x.reshape(-1, 2 * half)]
    return np.array(rows).reshape(*x.shape[:-1], half)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_its_definition(shape):
    x = drawn(*shape, seed=1) * 2
    np.testing.assert_allclose(silu_and_mul.forward(x).numpy(), defined(x), rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_dtypes_are_float32_inside_and_rounded_once(dtype):
    x = drawn(7, 66, seed=2).to(dtype)
    y = silu_and_mul.forward(x)
    step = {torch.float32: 5e-7, torch.float16: 2.0**-11 * 1.001, torch.bfloat16: 2.0**-8 * 1.001}[dtype]
    assert y.dtype == dtype
    np.testing.assert_allclose(y.double().numpy(), defined(x.double()), rtol=step, atol=3.1e-8)


def test_layouts_change_nothing_and_out_is_written_and_returned():
    x = drawn(6, 32, seed=3).half()
    want = silu_and_mul.forward(x)
    wide = torch.zeros(6, 64, dtype=torch.float16)
    wide[:, ::2] = x
    for laid in (x.T.contiguous().T, wide[:, ::2]):
        y = silu_and_mul.forward(laid)
        assert y.is_contiguous()
        assert torch.equal(y, want)
    assert torch.equal(silu_and_mul.forward(x[:1].expand(4, -1)), want[:1].expand(4, -1))
    out = torch.full((16, 6), math.nan, dtype=torch.float16).T
    assert silu_and_mul.forward(x, out=out) is out
    assert torch.equal(out, want)


def test_no_rows_and_no_columns_give_none():
    assert silu_and_mul.forward(torch.empty(2, 0, 6)).shape == (2, 0, 3)
    assert silu_and_mul.forward(torch.empty(3, 0)).shape == (3, 0)
    assert silu_and_mul.backward(torch.empty(0, 3), torch.empty(0, 6))[0].shape == (0, 6)


def test_special_values_are_as_torch_has_them():
    values = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -1.5, 1e38, -1e38])
    gate, up = (part.reshape(-1) for part in torch.meshgrid(values, values, indexing="ij"))
    y = silu_and_mul.forward(torch.cat((gate, up)))
    want = F.silu(gate) * up
    torch.testing.assert_close(y, want, rtol=1e-6, atol=0, equal_nan=True)


def test_gates_of_any_size_give_finite_results_and_slopes_in_float32():
    gate = torch.tensor([1e3, -1e3, 1e18, -1e18, 1e38, -1e38])
    x = torch.cat((gate, torch.ones(6)))
    assert silu_and_mul.forward(x).tolist() == gate.clamp(min=0).tolist()
    (grad,) = silu_and_mul.backward(torch.ones(6), x)
    assert grad.tolist() == [1.0, 0.0] * 3 + gate.clamp(min=0).tolist()


class _SiluAndMul(torch.autograd.Function):
    """The reference's forward with the reference's backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return silu_and_mul.forward(x)

    @staticmethod
    def backward(ctx, grad):
        return silu_and_mul.backward(grad, *ctx.saved_tensors)[0]


def test_gradient_passes_gradcheck_in_float64():
    assert torch.autograd.gradcheck(_SiluAndMul.apply, (drawn(2, 3, 10, seed=4).requires_grad_(),))


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_is_what_autograd_finds_for_torchs_own(shape):
    x, half = drawn(*shape, seed=5) * 2, shape[-1] // 2
    grad = drawn(*shape[:-1], half, seed=6)
    given = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(F.silu(given[..., :half]) * given[..., half:], given, grad)
    (found,) = silu_and_mul.backward(grad, x)
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-14)
    (size,) = silu_and_mul.magnitudes(grad, x)
    assert bool((found.abs() <= size * (1 + 1e-12)).all())
    positive = torch.cat((x[..., :half].abs(), x[..., half:]), -1)
    reached = silu_and_mul.backward(grad, positive)[0].abs()
    torch.testing.assert_close(reached, silu_and_mul.magnitudes(grad, positive)[0])


def test_gradient_has_the_arguments_dtype_lies_contiguous_and_is_made_only_where_needed():
    x, grad = drawn(4, 10, seed=7).half(), drawn(4, 5, seed=8).half()
    (found,) = silu_and_mul.backward(grad.T.contiguous().T, x.T.contiguous().T)
    assert (found.dtype, found.is_contiguous()) == (torch.float16, True)
    want = silu_and_mul.backward(grad.double(), x.double())[0]
    np.testing.assert_allclose(found.double().numpy(), want.numpy(), rtol=2.0**-11 * 1.001, atol=3.1e-8)
    assert silu_and_mul.backward(grad, x, needs=(False,)) == (None,)
