"""``gelu_and_mul`` is its definition, element by element in Python's own arithmetic; its gradient is autograd's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from portakernel.references import gelu_and_mul

SHAPES = [(1, 2), (3, 14), (2, 3, 10), (66,)]
GELUS = {
    "none": lambda z: z * (1 + math.erf(z / math.sqrt(2))) / 2,
    "tanh": lambda z: z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) / 2,
}
FORMS = list(GELUS)


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def defined(x: torch.Tensor, approximate: str) -> np.ndarray:
    """Each element by the definition, in float64."""
    half, gelu = x.shape[-1] // 2, GELUS[approximate]
    rows = [[gelu(row[i]) * row[half + i] for i in range(half)] for row in x.reshape(-1, 2 * half).tolist()]
    return np.array(rows).reshape(*x.shape[:-1], half)


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_its_definition(shape, approximate):
    x = drawn(*shape, seed=1) * 2
    y = gelu_and_mul.forward(x, approximate=approximate)
    np.testing.assert_allclose(y.numpy(), defined(x, approximate), rtol=1e-10, atol=1e-15)


def test_the_two_forms_differ():
    x = drawn(5, 40, seed=2)
    one, other = (gelu_and_mul.forward(x, approximate=form) for form in FORMS)
    assert 1e-5 < float((one - other).abs().max()) < 2e-3


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_dtypes_are_float32_inside_and_rounded_once(dtype, approximate):
    x = drawn(7, 66, seed=3).to(dtype)
    y = gelu_and_mul.forward(x, approximate=approximate)
    step = {torch.float32: 3e-6, torch.float16: 2.0**-11 * 1.001, torch.bfloat16: 2.0**-8 * 1.001}[dtype]
    assert y.dtype == dtype
    np.testing.assert_allclose(y.double().numpy(), defined(x.double(), approximate), rtol=step, atol=3.1e-8)


@pytest.mark.parametrize("approximate", FORMS)
def test_layouts_change_nothing_and_out_is_written_and_returned(approximate):
    x = drawn(6, 32, seed=4).half()
    want = gelu_and_mul.forward(x, approximate=approximate)
    wide = torch.zeros(6, 64, dtype=torch.float16)
    wide[:, ::2] = x
    for laid in (x.T.contiguous().T, wide[:, ::2]):
        y = gelu_and_mul.forward(laid, approximate=approximate)
        assert y.is_contiguous()
        assert torch.equal(y, want)
    expanded = gelu_and_mul.forward(x[:1].expand(4, -1), approximate=approximate)
    assert torch.equal(expanded, want[:1].expand(4, -1))
    out = torch.full((16, 6), math.nan, dtype=torch.float16).T
    assert gelu_and_mul.forward(x, approximate=approximate, out=out) is out
    assert torch.equal(out, want)


def test_no_rows_and_no_columns_give_none():
    assert gelu_and_mul.forward(torch.empty(2, 0, 6), approximate="none").shape == (2, 0, 3)
    assert gelu_and_mul.forward(torch.empty(3, 0), approximate="tanh").shape == (3, 0)
    assert gelu_and_mul.backward(torch.empty(0, 3), torch.empty(0, 6), approximate="none")[0].shape == (0, 6)


@pytest.mark.parametrize("approximate", FORMS)
def test_special_values_are_as_torch_has_them(approximate):
    values = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -1.5, 1e38, -1e38], dtype=torch.float64)
    gate, up = (part.reshape(-1) for part in torch.meshgrid(values, values, indexing="ij"))
    y = gelu_and_mul.forward(torch.cat((gate, up)), approximate=approximate)
    # one at a time: torch's vectorised float64 erf is exact about infinities, its float32 one is not
    want = torch.stack([F.gelu(z, approximate=approximate) for z in gate]) * up
    torch.testing.assert_close(y, want, rtol=1e-13, atol=0, equal_nan=True)
    narrow = gelu_and_mul.forward(torch.cat((gate, up)).float(), approximate=approximate)
    assert torch.equal(narrow.isnan(), want.float().isnan())


@pytest.mark.parametrize("approximate", FORMS)
def test_gates_of_any_size_give_finite_results_and_slopes_in_float32(approximate):
    gate = torch.tensor([1e3, -1e3, 1e18, -1e18, 1e38, -1e38])
    x = torch.cat((gate, torch.ones(6)))
    assert gelu_and_mul.forward(x, approximate=approximate).tolist() == gate.clamp(min=0).tolist()
    (grad,) = gelu_and_mul.backward(torch.ones(6), x, approximate=approximate)
    assert grad.tolist() == [1.0, 0.0] * 3 + gate.clamp(min=0).tolist()


class _GeluAndMul(torch.autograd.Function):
    """The reference's forward with the reference's backward."""

    @staticmethod
    def forward(ctx, x, approximate):
        ctx.save_for_backward(x)
        ctx.approximate = approximate
        return gelu_and_mul.forward(x, approximate=approximate)

    @staticmethod
    def backward(ctx, grad):
        return *gelu_and_mul.backward(grad, *ctx.saved_tensors, approximate=ctx.approximate), None


@pytest.mark.parametrize("approximate", FORMS)
def test_gradient_passes_gradcheck_in_float64(approximate):
    x = drawn(2, 3, 10, seed=5).requires_grad_()
    assert torch.autograd.gradcheck(lambda given: _GeluAndMul.apply(given, approximate), (x,))


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_is_what_autograd_finds_for_torchs_own(shape, approximate):
    x, half = drawn(*shape, seed=6) * 2, shape[-1] // 2
    grad = drawn(*shape[:-1], half, seed=7)
    given = x.clone().requires_grad_()
    y = F.gelu(given[..., :half], approximate=approximate) * given[..., half:]
    (want,) = torch.autograd.grad(y, given, grad)
    (found,) = gelu_and_mul.backward(grad, x, approximate=approximate)
    torch.testing.assert_close(found, want, rtol=1e-11, atol=1e-14)
    (size,) = gelu_and_mul.magnitudes(grad, x, approximate=approximate)
    assert bool((found.abs() <= size * (1 + 1e-12)).all())
    positive = torch.cat((x[..., :half].abs(), x[..., half:]), -1)
    reached = gelu_and_mul.backward(grad, positive, approximate=approximate)[0].abs()
    torch.testing.assert_close(reached, gelu_and_mul.magnitudes(grad, positive, approximate=approximate)[0])


def test_gradient_has_the_arguments_dtype_lies_contiguous_and_is_made_only_where_needed():
    x, grad = drawn(4, 10, seed=8).half(), drawn(4, 5, seed=9).half()
    (found,) = gelu_and_mul.backward(grad.T.contiguous().T, x.T.contiguous().T, approximate="none")
    assert (found.dtype, found.is_contiguous()) == (torch.float16, True)
    want = gelu_and_mul.backward(grad.double(), x.double(), approximate="none")[0]
    np.testing.assert_allclose(found.double().numpy(), want.numpy(), rtol=2.0**-11 * 1.001, atol=3.1e-8)
    assert gelu_and_mul.backward(grad, x, approximate="none", needs=(False,)) == (None,)


@pytest.mark.parametrize("approximate", FORMS)
def test_magnitudes_of_results_bound_them_and_are_reached_by_positive_gates(approximate):
    x = drawn(5, 40, seed=10) * 3
    y, (size,) = (f(x, approximate=approximate) for f in (gelu_and_mul.forward, gelu_and_mul.output_magnitudes))
    assert bool((y.abs() <= size * (1 + 1e-12)).all())
    positive = x[:, :20] > 0
    torch.testing.assert_close(y.abs()[positive], size[positive])
    # 1 - erf is all that is left of a negative gate, and 1 + erf is what it was a sum of
    assert bool((size[~positive] >= 0.5 * (x[:, :20] * x[:, 20:]).abs()[~positive]).all())
