"""``linear_cross_entropy``'s reference against torch's linear layer and cross-entropy, and by differences."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from portakernel.errors import ArgumentValueError
from portakernel.references import linear_cross_entropy

SMOOTHINGS = [0.0, 0.1, 1.0]
SHAPES = [((1,), 1, 1), ((), 5, 7), ((7,), 13, 5), ((2, 3), 9, 33), ((0,), 4, 8), ((2, 0), 4, 8), ((3,), 0, 6)]


def drawn(*shape, seed, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def targets(*shape, classes, seed=2, ignore_index=-100):
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(0, classes, shape, generator=generator)
    return found.masked_fill(torch.rand(shape, generator=generator) < 0.2, ignore_index)


def torchs(x, weight, target, **parameters):
    logits = F.linear(x, weight).reshape(target.numel(), weight.shape[0])
    return F.cross_entropy(logits, target.reshape(-1), reduction="none", **parameters).reshape(target.shape)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_lse_are_those_of_torchs_logits(shape, smoothing):
    leading, k, v = shape
    x, weight, target = drawn(*leading, k, seed=0), drawn(v, k, seed=1), targets(*leading, classes=v)
    loss, lse = linear_cross_entropy.forward(x, weight, target, label_smoothing=smoothing, save=True)
    torch.testing.assert_close(loss, torchs(x, weight, target, label_smoothing=smoothing))
    torch.testing.assert_close(lse, torch.logsumexp(x @ weight.T, -1).reshape(-1))


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_autograd(shape, smoothing):
    leading, k, v = shape
    x, weight = drawn(*leading, k, seed=0).requires_grad_(), drawn(v, k, seed=1).requires_grad_()
    target, grad = targets(*leading, classes=v), drawn(*leading, seed=3)
    want = torch.autograd.grad(torchs(x, weight, target, label_smoothing=smoothing), (x, weight), grad)
    x, weight = x.detach(), weight.detach()
    _, lse = linear_cross_entropy.forward(x, weight, target, save=True)
    *found, none = linear_cross_entropy.backward(grad, x, weight, target, lse, label_smoothing=smoothing)
    assert none is None
    torch.testing.assert_close(tuple(found), want)


def test_an_ignored_class_may_be_any_number():
    x, weight, target = drawn(4, 6, seed=0), drawn(5, 6, seed=1), torch.tensor([3, 0, 3, 4])
    torch.testing.assert_close(
        linear_cross_entropy.forward(x, weight, target, ignore_index=3), torchs(x, weight, target, ignore_index=3)
    )


def test_an_ignored_row_has_no_loss_and_no_gradient_whatever_it_holds():
    x, weight, target = drawn(3, 6, seed=0), drawn(5, 6, seed=1), torch.tensor([1, -100, 2])
    x[1] = float("nan")
    loss, lse = linear_cross_entropy.forward(x, weight, target, save=True)
    assert loss[1] == 0
    d = linear_cross_entropy.backward(torch.ones(3), x, weight, target, lse, needs=(True, False, False))
    assert torch.equal(d[0][1], torch.zeros(6, dtype=torch.float64))
    assert d[0][[0, 2]].isfinite().all()


def test_blocks_of_rows_change_nothing(monkeypatch):
    x, weight, target, grad = drawn(11, 4, seed=0), drawn(7, 4, seed=1), targets(11, classes=7), drawn(11, seed=3)
    loss, lse = linear_cross_entropy.forward(x, weight, target, label_smoothing=0.1, save=True)
    gradients = linear_cross_entropy.backward(grad, x, weight, target, lse, label_smoothing=0.1)
    for elements in (1, 7, 20, 76, 77):
        monkeypatch.setattr(linear_cross_entropy, "_BLOCK_ELEMENTS", elements)
        again = linear_cross_entropy.forward(x, weight, target, label_smoothing=0.1, save=True)
        torch.testing.assert_close(again, (loss, lse), rtol=1e-13, atol=1e-14)
        found = linear_cross_entropy.backward(grad, x, weight, target, lse, label_smoothing=0.1)
        torch.testing.assert_close(found[:2], gradients[:2], rtol=1e-12, atol=1e-14)


def test_no_more_logits_than_a_blocks_are_made(monkeypatch):
    made = []
    whole = linear_cross_entropy.cross_entropy.forward

    def counted(logits, *arguments, **parameters):
        made.append(logits.numel())
        return whole(logits, *arguments, **parameters)

    monkeypatch.setattr(linear_cross_entropy.cross_entropy, "forward", counted)
    monkeypatch.setattr(linear_cross_entropy, "_BLOCK_ELEMENTS", 40)
    linear_cross_entropy.forward(drawn(11, 4, seed=0), drawn(9, 4, seed=1), targets(11, classes=9))
    assert made == [36, 36, 27]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_logits_are_not_rounded_to_the_inputs_dtype(dtype):
    x, weight, target = drawn(9, 64, seed=0, dtype=dtype), drawn(50, 64, seed=1, dtype=dtype), targets(9, classes=50)
    loss, lse = linear_cross_entropy.forward(x, weight, target, save=True)
    assert {loss.dtype, lse.dtype} == {torch.float32}
    torch.testing.assert_close(loss.double(), torchs(x.double(), weight.double(), target), rtol=1e-6, atol=2e-5)
    grads = linear_cross_entropy.backward(torch.ones(9), x, weight, target, lse)
    exact = linear_cross_entropy.backward(torch.ones(9).double(), x.double(), weight.double(), target, lse.double())
    half_ulp = {torch.float32: 1e-4, torch.float16: 2.0**-11 * 1.02, torch.bfloat16: 2.0**-8 * 1.02}[dtype]
    for gradient, want in zip(grads[:2], exact[:2], strict=True):
        assert gradient.dtype is dtype
        torch.testing.assert_close(gradient.double(), want, rtol=half_ulp, atol=1e-5)


def test_the_loss_is_written_into_out_wherever_it_lies():
    x, weight, target = drawn(2, 3, 4, seed=0), drawn(7, 4, seed=1), targets(2, 3, classes=7)
    out = torch.full((3, 2), float("nan"), dtype=torch.float64).T
    assert linear_cross_entropy.forward(x, weight, target, out=out) is out
    assert torch.equal(out, linear_cross_entropy.forward(x, weight, target))


def test_a_target_that_is_no_class_is_an_index_error_on_the_cpu():
    message = "linear_cross_entropy: target 5 is neither in [0, V) with V = 5 nor ignore_index = -100"
    with pytest.raises(IndexError, match=f"^{re.escape(message)}$"):
        linear_cross_entropy.forward(drawn(2, 3, seed=0), drawn(5, 3, seed=1), torch.tensor([0, 5]))


@pytest.mark.parametrize("rows", [2, 0])
def test_smoothing_is_a_share(rows):
    message = "cross_entropy: label_smoothing must lie in [0, 1]; this is 1.5"
    target = torch.zeros(rows, dtype=torch.int64)
    with pytest.raises(ArgumentValueError, match=f"^{re.escape(message)}$"):
        linear_cross_entropy.forward(drawn(rows, 3, seed=0), drawn(5, 3, seed=1), target, label_smoothing=1.5)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_magnitudes_bound_results_and_what_float32_makes_of_them(smoothing):
    target, grad = targets(16, classes=50), drawn(16, seed=3).float()
    for scale in (0.1, 1.0, 5.0):
        x, weight = (drawn(16, 40, seed=0) * scale).float(), drawn(50, 40, seed=1).float()
        given = (x.double(), weight.double(), target)
        parameters = {"label_smoothing": smoothing}
        loss, lse = linear_cross_entropy.forward(*given, **parameters, save=True)
        found = linear_cross_entropy.forward(x, weight, target, **parameters, save=True)
        sizes = linear_cross_entropy.output_magnitudes(*given, **parameters)
        sizes += linear_cross_entropy.saved_magnitudes(*given, **parameters)
        for got, want, size in zip(found, (loss, lse), sizes, strict=True):
            assert bool((want.abs() <= size * (1 + 1e-12)).all())
            assert bool(((got.double() - want).abs() <= 16 * 2.0**-24 * size).all())
        exact = linear_cross_entropy.backward(grad.double(), *given, lse, **parameters)
        gradients = linear_cross_entropy.backward(grad, x, weight, target, lse.float(), **parameters)
        limits = linear_cross_entropy.magnitudes(grad.double(), *given, lse, **parameters)
        for got, want, size in zip(gradients[:2], exact[:2], limits[:2], strict=True):
            assert bool((want.abs() <= size * (1 + 1e-12)).all())
            assert bool(((got.double() - want).abs() <= 96 * 2.0**-24 * size).all())


def test_magnitudes_are_numbers_where_a_class_is_masked():
    x, target = torch.ones(1, 1).double(), torch.tensor([2])
    weight = torch.tensor([[1.0], [-float("inf")], [2.0]]).double()
    assert linear_cross_entropy.output_magnitudes(x, weight, target)[0].isfinite().all()
    assert linear_cross_entropy.saved_magnitudes(x, weight, target)[0].isfinite().all()
