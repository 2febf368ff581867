"""``softmax`` is its definition, in Python's own arithmetic; its gradient is autograd's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from portakernel.references import softmax

SHAPES = [(1, 1), (4, 1), (3, 7), (2, 3, 5), (33,)]


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def defined(x: torch.Tensor) -> np.ndarray:
    """Each row by the definition: exact sums of float64 exponentials, no maximum subtracted."""
    rows = [[math.exp(v) for v in row] for row in x.reshape(-1, x.shape[-1]).tolist()]
    return np.array([[v / math.fsum(row) for v in row] for row in rows]).reshape(x.shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_its_definition(shape):
    x = drawn(*shape, seed=1) * 5
    y = softmax.forward(x)
    np.testing.assert_allclose(y.numpy(), defined(x), rtol=1e-13)
    np.testing.assert_allclose(y.sum(-1).numpy(), np.ones(shape[:-1]), rtol=1e-14)
    torch.testing.assert_close(y, torch.softmax(x, -1), rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_dtypes_are_float32_inside_and_rounded_once(dtype):
    x = drawn(7, 33, seed=2).to(dtype)
    y = softmax.forward(x)
    step = {torch.float32: 1e-6, torch.float16: 2.0**-11 * 1.002, torch.bfloat16: 2.0**-8 * 1.001}[dtype]
    assert y.dtype == dtype
    np.testing.assert_allclose(y.double().numpy(), defined(x.double()), rtol=step, atol=3.1e-8)


def test_layouts_change_nothing_and_out_is_written_and_returned_and_may_be_the_input():
    x = drawn(6, 16, seed=3).half()
    want = softmax.forward(x)
    wide = torch.zeros(6, 32, dtype=torch.float16)
    wide[:, ::2] = x
    for laid in (x.T.contiguous().T, wide[:, ::2]):
        y = softmax.forward(laid)
        assert y.is_contiguous()
        assert torch.equal(y, want)
    assert torch.equal(softmax.forward(x[:1].expand(4, -1)), want[:1].expand(4, -1))
    for out in (torch.full((16, 6), math.nan, dtype=torch.float16).T, x):
        assert softmax.forward(x, out=out) is out
        assert torch.equal(out, want)


def test_no_rows_and_no_columns_give_none():
    for shape in ((0, 5), (2, 0, 5), (3, 0)):
        y = softmax.forward(torch.empty(shape))
        assert y.shape == shape
        assert softmax.backward(y, y)[0].shape == shape


def test_infinities_and_nan_are_as_in_torch():
    inf, nan = math.inf, math.nan
    rows = [[1, 2, 3], [-inf, 2, 3], [-inf, -inf, 3], [-inf, -inf, -inf], [inf, 2, 3], [inf, -inf, 3], [nan, 2, 3]]
    x = torch.tensor(rows, dtype=torch.float64)
    y = softmax.forward(x)
    torch.testing.assert_close(y, torch.softmax(x, -1), rtol=1e-15, atol=0, equal_nan=True)
    assert y.isnan().all(-1).tolist() == [False, False, False, True, True, True, True]
    assert y[2].tolist() == [0.0, 0.0, 1.0]
    narrow = softmax.forward(x.half())
    assert torch.equal(narrow.isnan(), y.isnan())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_nothing_overflows(dtype):
    top = torch.finfo(dtype).max
    y = softmax.forward(torch.tensor([[top, top, -top], [-top, -top / 2, -top]], dtype=dtype))
    assert y.tolist() == [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]


def test_adding_a_number_to_a_row_changes_nothing():
    x = drawn(3, 9, seed=4)
    torch.testing.assert_close(softmax.forward(x + 1000), softmax.forward(x), rtol=1e-11, atol=0)


class _Softmax(torch.autograd.Function):
    """The reference's forward with the reference's backward."""

    @staticmethod
    def forward(ctx, x):
        y = softmax.forward(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return softmax.backward(grad, *ctx.saved_tensors)[0]


def test_gradient_passes_gradcheck_in_float64():
    assert torch.autograd.gradcheck(_Softmax.apply, (drawn(2, 3, 5, seed=5).requires_grad_(),))


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_is_what_autograd_finds_for_torchs_own(shape):
    x, grad = drawn(*shape, seed=6) * 3, drawn(*shape, seed=7)
    given = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(torch.softmax(given, -1), given, grad)
    y = softmax.forward(x)
    (found,) = softmax.backward(grad, y)
    torch.testing.assert_close(found, want, rtol=1e-11, atol=1e-14)
    (size,) = softmax.magnitudes(grad, y)
    assert bool((found.abs() <= size * (1 + 1e-12)).all())


def test_magnitude_is_reached_where_the_two_terms_have_one_sign():
    """One gradient that is not zero: what its own element loses, every other gains."""
    y, grad = softmax.forward(drawn(1, 6, seed=8)), torch.zeros(1, 6, dtype=torch.float64)
    grad[0, 2] = -1.5
    found, size = softmax.backward(grad, y)[0], softmax.magnitudes(grad, y)[0]
    others = [0, 1, 3, 4, 5]
    torch.testing.assert_close(found[0, others], size[0, others])


def test_gradient_of_a_row_of_nan_is_nan_and_others_keep_theirs():
    x, grad = drawn(3, 4, seed=9), drawn(3, 4, seed=10)
    want = softmax.backward(grad, softmax.forward(x))[0]
    x[1] = -math.inf
    found = softmax.backward(grad, softmax.forward(x))[0]
    assert found[1].isnan().all()
    assert torch.equal(found[::2], want[::2])


def test_gradient_has_the_arguments_dtype_lies_contiguous_and_is_made_only_where_needed():
    y, grad = softmax.forward(drawn(4, 10, seed=11).half()), drawn(4, 10, seed=12).half()
    (found,) = softmax.backward(grad.T.contiguous().T, y.T.contiguous().T)
    assert (found.dtype, found.is_contiguous()) == (torch.float16, True)
    want = softmax.backward(grad.double(), y.double())[0]
    np.testing.assert_allclose(found.double().numpy(), want.numpy(), rtol=2.0**-11 * 1.001, atol=1e-7)
    assert softmax.backward(grad, y, needs=(False,)) == (None,)
