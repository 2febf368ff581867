"""``add_rms_norm`` is a sum rounded to its dtype and the norm of it: against numpy's arithmetic and autograd."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from portakernel.references import add_rms_norm

EPS = 1e-6
PARAMETERS = [(1e-6, 0.0), (0.5, 0.0), (1e-6, 1.0), (1e-3, -0.5)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def formula(summed: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    """The norm of ``summed`` by torch's own operators, for autograd."""
    return summed / (summed.pow(2).mean(-1, keepdim=True) + eps).sqrt() * (weight + offset)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sum_is_added_in_float32_and_rounded_once(dtype):
    x, residual = (drawn(40, 50, seed=1) * 3).to(dtype), (drawn(40, 50, seed=2) * 1e-2).to(dtype)
    _, summed = add_rms_norm.forward(x, residual, torch.ones(50), eps=EPS)
    want = torch.from_numpy(x.float().numpy() + residual.float().numpy()).to(dtype)
    assert summed.dtype == dtype
    assert torch.equal(summed, want)
    assert torch.equal(summed, x + residual)


@pytest.mark.parametrize(("eps", "offset"), PARAMETERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_is_that_of_the_rounded_sum(dtype, eps, offset):
    x, residual, weight = drawn(5, 33, seed=3).to(dtype), drawn(5, 33, seed=4).to(dtype), drawn(33, seed=5).to(dtype)
    y, summed, rstd = add_rms_norm.forward(x, residual, weight, eps=eps, weight_offset=offset, save=True)
    want = formula(summed.double(), weight.double(), eps, offset)
    step = {torch.float32: 2.0**-21, torch.float16: 2.0**-11 * 1.001, torch.bfloat16: 2.0**-8 * 1.001}[dtype]
    np.testing.assert_allclose(y.double().numpy(), want.numpy(), rtol=step, atol=1e-7)
    np.testing.assert_allclose(rstd.numpy(), summed.double().square().mean(-1).add(eps).rsqrt().numpy(), rtol=1e-6)
    assert (y.dtype, rstd.dtype, rstd.shape) == (dtype, torch.float32, (5,))


@pytest.mark.parametrize(("eps", "offset"), PARAMETERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_truth_is_the_formula_at_the_rounded_sum_in_float64(dtype, eps, offset):
    x, residual, weight = drawn(2, 3, 33, seed=6).to(dtype), drawn(2, 3, 33, seed=7).to(dtype), drawn(33, seed=8)
    y, summed, rstd = add_rms_norm.truth(x, residual, weight.float(), eps=eps, weight_offset=offset)
    assert torch.equal(summed, (x + residual).double())
    torch.testing.assert_close(y, formula(summed, weight.float().double(), eps, offset), rtol=1e-13, atol=0)
    want = summed.square().mean(-1).add(eps).rsqrt().reshape(-1)
    torch.testing.assert_close(rstd, want, rtol=1e-13, atol=0)


def test_layouts_change_nothing_and_results_are_contiguous():
    x, residual, weight = drawn(6, 32, seed=9).half(), drawn(6, 32, seed=10).half(), drawn(64, seed=11).half()
    want = add_rms_norm.forward(x, residual, weight[::2].contiguous(), eps=EPS)
    found = add_rms_norm.forward(x.T.contiguous().T, residual.T.contiguous().T, weight[::2], eps=EPS)
    assert all(tensor.is_contiguous() for tensor in found)
    assert torch.equal(found[1], want[1])
    torch.testing.assert_close(found[0], want[0], rtol=2e-3, atol=0)
    expanded = add_rms_norm.forward(x, residual[:1].expand(6, -1), weight[::2], eps=EPS)
    assert torch.equal(expanded[1], x + residual[:1])


def test_outputs_go_where_they_shall_over_the_inputs_too():
    x, residual, weight = drawn(3, 8, seed=12).half(), drawn(3, 8, seed=13).half(), drawn(8, seed=14).half()
    want = add_rms_norm.forward(x, residual, weight, eps=EPS, save=True)
    out = torch.full((8, 3), math.nan, dtype=torch.float16).T, torch.full((3, 8), math.nan, dtype=torch.float16)
    for target in (out, (x, residual)):
        found = add_rms_norm.forward(x, residual, weight, eps=EPS, out=target, save=True)
        assert found[0] is target[0]
        assert found[1] is target[1]
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


def test_no_rows_give_no_rows():
    empty, weight = torch.empty(2, 0, 5), torch.ones(5)
    y, summed, rstd = add_rms_norm.forward(empty, empty, weight, eps=EPS, save=True)
    assert (y.shape, summed.shape, rstd.shape) == ((2, 0, 5), (2, 0, 5), (0,))
    grads = add_rms_norm.backward(y, summed, weight, summed, rstd, eps=EPS)
    assert [tuple(grad.shape) for grad in grads] == [(2, 0, 5), (2, 0, 5), (5,)]
    assert grads[2].tolist() == [0.0] * 5


def test_special_values_stay_in_their_rows():
    x, residual = drawn(4, 9, seed=15), drawn(4, 9, seed=16)
    want, _ = add_rms_norm.forward(x, residual, torch.ones(9), eps=EPS)
    x[0, 1], residual[0, 1] = math.inf, -math.inf
    x[1, 2], residual[2, 3] = math.nan, math.inf
    y, summed = add_rms_norm.forward(x, residual, torch.ones(9), eps=EPS)
    assert summed[0, 1].isnan()
    assert y[:2].isnan().all()
    assert y[2].isnan().tolist() == [place == 3 for place in range(9)]
    assert torch.equal(y[3], want[3])


class _AddRmsNorm(torch.autograd.Function):
    """The reference's forward with the reference's backward."""

    @staticmethod
    def forward(ctx, x, residual, weight):
        y, summed, rstd = add_rms_norm.forward(x, residual, weight, eps=EPS, weight_offset=0.25, save=True)
        ctx.save_for_backward(weight, summed, rstd)
        return y, summed

    @staticmethod
    def backward(ctx, *grads):
        needs = tuple(ctx.needs_input_grad)
        return add_rms_norm.backward(*grads, *ctx.saved_tensors, eps=EPS, weight_offset=0.25, needs=needs)


def test_gradients_pass_gradcheck_in_float64():
    given = tuple(t.requires_grad_() for t in (drawn(2, 3, 5, seed=17), drawn(2, 3, 5, seed=18), drawn(5, seed=19)))
    assert torch.autograd.gradcheck(_AddRmsNorm.apply, given)


@pytest.mark.parametrize(("with_y", "with_summed"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize(("eps", "offset"), PARAMETERS)
def test_gradients_are_those_that_autograd_finds_and_none_counts_as_zero(eps, offset, with_y, with_summed):
    x, residual, weight = drawn(3, 7, seed=20), drawn(3, 7, seed=21), drawn(7, seed=22)
    grad_y = drawn(3, 7, seed=23) if with_y else None
    grad_summed = drawn(3, 7, seed=24) if with_summed else None
    given = tuple(t.clone().requires_grad_() for t in (x, residual, weight))
    total = given[0] + given[1]
    zeros = torch.zeros(3, 7, dtype=torch.float64)
    flowing = [zeros if grad is None else grad for grad in (grad_y, grad_summed)]
    want = torch.autograd.grad((formula(total, given[2], eps, offset), total * 1), given, flowing)
    _, summed, rstd = add_rms_norm.forward(x, residual, weight, eps=eps, weight_offset=offset, save=True)
    kept = (grad_y, grad_summed, weight, summed, rstd)
    found = add_rms_norm.backward(*kept, eps=eps, weight_offset=offset)
    sizes = add_rms_norm.magnitudes(*kept, eps=eps, weight_offset=offset)
    for a, b, size in zip(found, want, sizes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
        assert bool((a.abs() <= size * (1 + 1e-12)).all())


def test_gradients_of_narrow_dtypes_are_rounded_once():
    x, residual = drawn(5, 33, seed=25).bfloat16(), drawn(5, 33, seed=26).bfloat16()
    weight = drawn(33, seed=27).float()
    grads = drawn(5, 33, seed=28).bfloat16(), (drawn(5, 33, seed=29) * 30).bfloat16()
    _, summed, rstd = add_rms_norm.forward(x, residual, weight, eps=EPS, save=True)
    found = add_rms_norm.backward(*grads, weight, summed, rstd, eps=EPS)
    exact = [tensor.double() for tensor in (*grads, weight, summed, rstd)]
    want = add_rms_norm.backward(*exact, eps=EPS)
    assert [grad.dtype for grad in found] == [torch.bfloat16, torch.bfloat16, torch.float32]
    np.testing.assert_allclose(found[0].double().numpy(), want[0].numpy(), rtol=2.0**-8 * 1.001, atol=1e-5)


@pytest.mark.parametrize("needs", list(itertools.product((True, False), repeat=3)))
def test_gradients_that_are_not_needed_are_none_and_those_of_x_and_residual_lie_apart(needs):
    x, weight, grad = drawn(3, 4, seed=30).half(), drawn(4, seed=31).half(), drawn(3, 4, seed=32).half()
    _, summed, rstd = add_rms_norm.forward(x, x, weight, eps=EPS, save=True)
    everything = add_rms_norm.backward(grad, grad, weight, summed, rstd, eps=EPS)
    found = add_rms_norm.backward(grad.T.contiguous().T, grad, weight, summed, rstd, eps=EPS, needs=needs)
    for gradient, needed, same in zip(found, needs, everything, strict=True):
        assert (gradient is not None) == needed
        assert not needed or (torch.equal(gradient, same) and gradient.is_contiguous())
    assert torch.equal(everything[0], everything[1])
    assert everything[0].data_ptr() != everything[1].data_ptr()
    assert all(t is None or t.data_ptr() != grad.data_ptr() for t in found)
