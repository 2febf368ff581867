"""``cross_entropy``'s reference against torch's own, against sums of Python's floats, and by differences."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch.func import hessian, jacrev, vmap

from portakernel import ops
from portakernel.errors import ArgumentValueError, IndexOutOfRangeError
from portakernel.references import cross_entropy

# forward mode, on importing its parts
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
INF, NAN = math.inf, math.nan
SMOOTHINGS = [0.0, 0.1, 1.0]
SHAPES = [(1, 1), (5,), (7, 13), (2, 3, 33), (0, 8), (2, 0, 4)]


def drawn(*shape, seed, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def targets(*shape, classes, seed, ignore_index=-100, dtype=torch.int64):
    source = torch.Generator().manual_seed(seed)
    found = torch.randint(0, classes, shape, generator=source)
    return torch.where(torch.rand(shape, generator=source) < 0.3, ignore_index, found).to(dtype)


def torchs(x, target, **parameters):
    """The loss of each row as torch gives it."""
    rows = x.reshape(target.numel(), x.shape[-1])
    loss = F.cross_entropy(rows, target.reshape(-1).long(), reduction="none", **parameters)
    return loss.reshape(target.shape)


def by_hand(row, target, smoothing):
    """One row's loss, lse and gradient by the definition, in sums that round once."""
    total = math.fsum(math.exp(v) for v in row)
    q = [smoothing / len(row) + (1 - smoothing) * (place == target) for place in range(len(row))]
    loss = -math.fsum(share * math.log(math.exp(v) / total) for share, v in zip(q, row, strict=True))
    return loss, math.log(total), [math.exp(v) / total - share for share, v in zip(q, row, strict=True)]


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("classes", [1, 2, 9, 64])
def test_loss_lse_and_gradient_are_their_definition(classes, smoothing):
    x, grad = drawn(6, classes, seed=1), drawn(6, seed=2)
    target = torch.arange(6) % classes
    loss, lse = cross_entropy.forward(x, target, label_smoothing=smoothing, save=True)
    gradient, _ = cross_entropy.backward(grad, x, target, lse, label_smoothing=smoothing)
    want = [by_hand(row, t, smoothing) for row, t in zip(x.tolist(), target.tolist(), strict=True)]
    like = torch.tensor([a for a, _, _ in want], dtype=torch.float64)
    torch.testing.assert_close(loss, like, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(lse, torch.tensor([b for _, b, _ in want], dtype=torch.float64), rtol=1e-13, atol=1e-14)
    rows = torch.tensor([c for _, _, c in want], dtype=torch.float64) * grad.unsqueeze(-1)
    torch.testing.assert_close(gradient, rows, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("integer", [torch.int64, torch.int32])
@pytest.mark.parametrize("ignore_index", [-100, 0, 2**40])
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_gradient_are_torchs(shape, smoothing, ignore_index, integer):
    x, grad = drawn(*shape, seed=3).requires_grad_(), drawn(*shape[:-1], seed=4)
    ignored = ignore_index if integer is torch.int64 or ignore_index < 2**31 else 0
    target = targets(*shape[:-1], classes=shape[-1], seed=5, ignore_index=ignored, dtype=integer)
    parameters = {"ignore_index": ignore_index, "label_smoothing": smoothing}
    want = torchs(x, target, **parameters)
    (want_gradient,) = torch.autograd.grad(want, x, grad)
    with torch.no_grad():
        loss, lse = cross_entropy.forward(x, target, **parameters, save=True)
        gradient, of_target = cross_entropy.backward(grad, x, target, lse, **parameters, needs=(True, False))
    assert loss.shape == shape[:-1]
    assert lse.shape == (target.numel(),)
    torch.testing.assert_close(loss, want.detach(), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(lse, torch.logsumexp(x.detach(), -1).reshape(-1), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(gradient, want_gradient, rtol=1e-11, atol=1e-13)
    assert of_target is None
    assert bool((loss[target.long() == ignore_index] == 0).all())
    assert bool((gradient[target.long() == ignore_index] == 0).all())


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_torchs_mean_is_the_sum_over_the_rows_that_count(smoothing):
    x, target = drawn(20, 11, seed=6), targets(20, classes=11, seed=7)
    want = F.cross_entropy(x, target, label_smoothing=smoothing)
    loss = cross_entropy.forward(x, target, label_smoothing=smoothing)
    torch.testing.assert_close(loss.sum() / (target != -100).sum(), want, rtol=1e-13, atol=0)


class _CrossEntropy(torch.autograd.Function):
    """The reference's forward with the reference's backward."""

    @staticmethod
    def forward(ctx, x, target, smoothing):
        loss, lse = cross_entropy.forward(x, target, label_smoothing=smoothing, save=True)
        ctx.save_for_backward(x, target, lse)
        ctx.smoothing = smoothing
        return loss

    @staticmethod
    def backward(ctx, grad):
        return *cross_entropy.backward(grad, *ctx.saved_tensors, label_smoothing=ctx.smoothing), None


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_gradient_passes_gradcheck(smoothing):
    x, target = drawn(2, 4, 5, seed=8).requires_grad_(), targets(2, 4, classes=5, seed=9)
    assert torch.autograd.gradcheck(_CrossEntropy.apply, (x, target, smoothing))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_results_are_float32_and_the_gradient_has_the_logits_dtype_rounded_once(dtype):
    x, target, grad = drawn(30, 501, seed=10, dtype=dtype), targets(30, classes=501, seed=11), drawn(30, seed=12)
    loss, lse, saved = cross_entropy.forward(x, target, return_lse=True, save=True)
    assert {loss.dtype, lse.dtype, saved.dtype} == {torch.float32}
    torch.testing.assert_close(loss.double(), torchs(x.double(), target), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse.double(), torch.logsumexp(x.double(), -1), rtol=5e-7, atol=0)
    gradient, _ = cross_entropy.backward(grad.float(), x, target, saved, return_lse=True)
    assert gradient.dtype is dtype
    exact, _ = cross_entropy.backward(grad.float().double(), x.double(), target, torch.logsumexp(x.double(), -1))
    half_ulp = {torch.float32: 4e-6, torch.float16: 2.0**-11 * 1.01, torch.bfloat16: 2.0**-8 * 1.01}[dtype]
    subnormal = 2.0**-25 if dtype is torch.float16 else 0
    torch.testing.assert_close(gradient.double(), exact, rtol=half_ulp, atol=subnormal * 1.01)


def test_lse_is_returned_and_saved_in_memory_of_its_own():
    x, target = drawn(2, 3, 7, seed=13), targets(2, 3, classes=7, seed=14)
    loss, lse, saved = cross_entropy.forward(x, target, return_lse=True, save=True)
    assert (loss.shape, lse.shape, saved.shape) == ((2, 3), (2, 3), (6,))
    assert torch.equal(lse.reshape(-1), saved)
    assert lse.untyped_storage().data_ptr() != saved.untyped_storage().data_ptr()
    alone = cross_entropy.forward(x, target)
    assert isinstance(alone, torch.Tensor)
    assert torch.equal(alone, loss)


def test_results_are_written_into_out_wherever_it_lies():
    x, target = drawn(2, 3, 7, seed=15), targets(2, 3, classes=7, seed=16)
    want = cross_entropy.forward(x, target, return_lse=True)
    loss, lse = torch.full((3, 2), NAN, dtype=torch.float64).T, torch.full((2, 6), NAN, dtype=torch.float64)[:, ::2]
    found = cross_entropy.forward(x, target, return_lse=True, out=(loss, lse))
    assert found[0] is loss
    assert found[1] is lse
    assert torch.equal(loss, want[0])
    assert torch.equal(lse, want[1])
    out = torch.empty(2, 3, dtype=torch.float64)
    assert cross_entropy.forward(x, target, out=out) is out
    assert torch.equal(out, want[0])
    written, saved = cross_entropy.forward(x, target, out=out, save=True)
    assert written is out
    assert torch.equal(saved, want[1].reshape(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_may_lie_anyhow(dtype):
    base = drawn(4, 6, 22, seed=17, dtype=dtype)
    views = [base[:, 1:5, 3:14], base[..., ::2], base.transpose(0, 1), base[:1].expand(4, 6, 22), base.mT]
    for x in views:
        target = targets(*x.shape[:-1], classes=x.shape[-1], seed=18)
        columns = torch.stack([target, target], -1)[..., 0]
        loss, lse = cross_entropy.forward(x, columns, save=True)
        again, same = cross_entropy.forward(x.contiguous(), target, save=True)
        assert torch.equal(loss, again)
        assert torch.equal(lse, same)
        grad = torch.ones(()).expand(target.shape)
        found, _ = cross_entropy.backward(grad, x, columns, lse)
        want, _ = cross_entropy.backward(grad.contiguous(), x.contiguous(), target, lse)
        assert found.is_contiguous()
        assert torch.equal(found, want)


def test_blocks_of_rows_change_nothing(monkeypatch):
    x, target, grad = drawn(11, 7, seed=19), targets(11, classes=7, seed=20), drawn(11, seed=21)
    loss, lse = cross_entropy.forward(x, target, label_smoothing=0.1, save=True)
    gradient, _ = cross_entropy.backward(grad, x, target, lse, label_smoothing=0.1)
    for elements in (1, 7, 20, 76, 77):
        monkeypatch.setattr(cross_entropy, "_BLOCK_ELEMENTS", elements)
        again, same = cross_entropy.forward(x, target, label_smoothing=0.1, save=True)
        torch.testing.assert_close((again, same), (loss, lse), rtol=1e-14, atol=1e-15)
        found, _ = cross_entropy.backward(grad, x, target, lse, label_smoothing=0.1)
        torch.testing.assert_close(found, gradient, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_gradient_is_written_over_contiguous_logits_where_that_is_permitted(dtype):
    x, target, grad = drawn(3, 4, 9, seed=22, dtype=dtype), targets(3, 4, classes=9, seed=23), drawn(3, 4, seed=24)
    loss, lse = cross_entropy.forward(x, target, save=True)
    before = x.clone()
    assert torch.equal(cross_entropy.forward(x, target, overwrite_logits=True), loss)
    want, _ = cross_entropy.backward(grad.float(), x, target, lse)
    assert want is not x
    assert torch.equal(x, before)
    assert cross_entropy.backward(grad, x, target, lse, overwrite_logits=True, needs=(False, False)) == (None, None)
    assert torch.equal(x, before)
    version = x._version
    found, _ = cross_entropy.backward(grad.float(), x, target, lse, overwrite_logits=True)
    assert found is x
    assert torch.equal(x, want)
    assert x._version > version  # so that autograd refuses whoever else saved the logits


def test_logits_that_are_not_contiguous_stay_as_they_are():
    base, target = drawn(9, 4, seed=25), targets(4, classes=9, seed=26)
    for x in (base.T, base.T[:1].expand(4, 9)):
        before = x.clone()
        _, lse = cross_entropy.forward(x, target, save=True)
        found, _ = cross_entropy.backward(torch.ones(4), x, target, lse, overwrite_logits=True)
        assert torch.equal(x, before)
        assert found.is_contiguous()
        assert torch.equal(found, cross_entropy.backward(torch.ones(4), x, target, lse)[0])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_infinities_and_nan_are_as_in_torch(smoothing):
    x = torch.tensor(
        [
            [1.0, 2.0, -INF, 0.5],
            [-INF, -INF, 3.0, -INF],
            [-INF, -INF, -INF, -INF],
            [1.0, INF, 2.0, 3.0],
            [1.0, NAN, 2.0, 3.0],
            [-INF, INF, 2.0, 3.0],
        ]
    )
    for column in range(4):
        target = torch.full((6,), column)
        loss, lse = cross_entropy.forward(x, target, label_smoothing=smoothing, return_lse=True)
        torch.testing.assert_close(loss, torchs(x, target, label_smoothing=smoothing), equal_nan=True)
        torch.testing.assert_close(lse[:2], torch.logsumexp(x[:2], -1))
        assert bool(lse[3:].isnan().all())
        x.requires_grad_()
        (want,) = torch.autograd.grad(torchs(x, target, label_smoothing=smoothing).sum(), x)
        x.requires_grad_(False)
        gradient, _ = cross_entropy.backward(torch.ones(6), x, target, lse, label_smoothing=smoothing)
        torch.testing.assert_close(gradient, want, equal_nan=True)


def test_a_masked_vocabulary_costs_nothing_where_the_target_is_not_masked():
    x = torch.tensor([[1.0, 2.0, 0.5]])
    masked = torch.cat([x, torch.full((1, 50), -INF)], -1)
    assert torch.equal(cross_entropy.forward(masked, torch.tensor([1])), cross_entropy.forward(x, torch.tensor([1])))


def test_an_ignored_row_has_no_loss_and_no_gradient_whatever_it_holds():
    x = torch.tensor([[1.0, NAN], [INF, 0.0], [-INF, -INF], [1.0, 2.0]])
    target = torch.full((4,), -100)
    loss, lse = cross_entropy.forward(x, target, label_smoothing=0.1, save=True)
    gradient, _ = cross_entropy.backward(torch.tensor([1.0, NAN, INF, 1.0]), x, target, lse, label_smoothing=0.1)
    assert torch.equal(loss, torch.zeros(4))
    assert torch.equal(gradient, torch.zeros(4, 2))
    torch.testing.assert_close(lse[3], torch.logsumexp(x[3], -1))


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_huge_logits_neither_overflow_nor_cancel(smoothing):
    x = torch.tensor([[1e38, -1e38, 1.0], [1e4, 1e4 + 0.5, 1e4 - 2.0], [-1e4, -1e4 - 1.0, -3e4]])
    target = torch.tensor([0, 2, 1])
    loss, lse = cross_entropy.forward(x, target, label_smoothing=smoothing, save=True)
    want = torchs(x.double(), target, label_smoothing=smoothing)
    torch.testing.assert_close(loss.double(), want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse.double(), torch.logsumexp(x.double(), -1), rtol=1e-7, atol=0)


@pytest.mark.parametrize("found", [-1, 5, 2**31, -101])
def test_a_target_that_is_no_class_is_an_index_error_on_the_cpu(found):
    target = torch.tensor([0, -100, found, 4])
    message = f"cross_entropy: target {found} is neither in [0, V) with V = 5 nor ignore_index = -100"
    with pytest.raises(IndexError, match=f"^{re.escape(message)}$"):
        cross_entropy.forward(drawn(4, 5, seed=27), target)
    assert cross_entropy.forward(drawn(4, 5, seed=27), target.clamp(0, 4), ignore_index=found).shape == (4,)


@pytest.mark.parametrize("smoothing", [-0.1, 1.5, NAN])
def test_smoothing_is_a_share(smoothing):
    message = f"cross_entropy: label_smoothing must lie in [0, 1]; this is {smoothing}"
    with pytest.raises(ArgumentValueError, match=f"^{re.escape(message)}$"):
        cross_entropy.forward(drawn(2, 5, seed=28), torch.tensor([0, 1]), label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_magnitudes_bound_gradients_and_what_float32_makes_of_them(smoothing):
    target = targets(16, classes=50, seed=29)
    for shift in (0.0, 100.0, -3000.0):
        x, grad = (drawn(16, 50, seed=30) * 3 + shift).float(), drawn(16, seed=31).float()
        parameters = {"label_smoothing": smoothing}
        _, lse = cross_entropy.forward(x.double(), target, **parameters, save=True)
        given = (grad.double(), x.double(), target, lse)
        exact, _ = cross_entropy.backward(*given, **parameters)
        sizes, none = cross_entropy.magnitudes(*given, **parameters)
        assert none is None
        assert bool((exact.abs() <= sizes * (1 + 1e-12)).all())
        found, _ = cross_entropy.backward(grad, x, target, lse.float(), **parameters)
        assert bool(((found.double() - exact).abs() <= 96 * 2.0**-24 * sizes).all())


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_output_magnitudes_bound_what_float32_makes_of_the_outputs(smoothing):
    target = targets(16, classes=50, seed=32)
    for scale, shift in ((1.0, 0.0), (20.0, 0.0), (1.0, -1e5), (0.0, -math.log(50))):
        x = (drawn(16, 50, seed=33) * scale + shift).float()
        parameters = {"label_smoothing": smoothing, "return_lse": True}
        sizes = cross_entropy.output_magnitudes(x, target, **parameters)
        want = cross_entropy.forward(x.double(), target, **parameters)
        # straight from the definition, with its cancellation
        lse = torch.logsumexp(x, -1)
        inside = target.clamp(min=0).unsqueeze(-1)
        loss = (1 - smoothing) * (lse - x.gather(-1, inside).squeeze(-1)) + smoothing * (lse - x.mean(-1))
        for found, exact, size in zip((loss.masked_fill(target == -100, 0), lse), want, sizes, strict=True):
            assert bool((exact.abs() <= size * (1 + 1e-12)).all())
            assert bool(((found.double() - exact).abs() <= 8 * 2.0**-24 * size).all())
    alone = cross_entropy.output_magnitudes(x, target, label_smoothing=smoothing)
    assert len(alone) == 1
    assert torch.equal(alone[0], sizes[0])


def test_magnitudes_are_numbers_where_a_class_is_masked():
    x, target = torch.tensor([[1.0, -INF, 2.0]]).double(), torch.tensor([2])
    _, lse = cross_entropy.forward(x, target, save=True)
    sizes, _ = cross_entropy.magnitudes(torch.ones(1).double(), x, target, lse)
    assert bool(sizes.isfinite().all())
    assert bool(cross_entropy.output_magnitudes(x, target)[0].isfinite().all())


LOSSES = {
    "cross_entropy": (ops.cross_entropy, lambda x, target: F.cross_entropy(x, target, reduction="none")),
    "linear_cross_entropy": (
        lambda x, target: ops.linear_cross_entropy(x, WEIGHT, target),
        lambda x, target: F.cross_entropy(x @ WEIGHT.T, target, reduction="none"),
    ),
}
WEIGHT = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("of", [hessian, lambda loss: jacrev(jacrev(loss))])
@pytest.mark.parametrize("op", LOSSES)
def test_second_derivatives_of_a_batch_of_losses(op, of):
    x, target = drawn(3, 4, 5, seed=1, dtype=torch.float32), targets(3, 4, classes=5, seed=2)
    found, wanted = (vmap(of(lambda x, t, by=by: by(x, t).sum()))(x, target) for by in LOSSES[op])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", LOSSES)
def test_a_target_outside_is_named_in_a_batch_too(op):
    x, target = drawn(3, 4, 5, seed=1, dtype=torch.float32), torch.full((3, 4), 5)
    with pytest.raises(IndexOutOfRangeError, match="target 5 is neither in"):
        vmap(hessian(lambda x, t: LOSSES[op][0](x, t).sum()))(x, target)


@pytest.mark.parametrize("kernel", [None, "reference"])
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
@pytest.mark.parametrize("op", LOSSES)
def test_a_trained_loss_may_be_changed_in_place(op, shape, kernel):
    call = getattr(ops, op)
    x, target = drawn(*shape, 5, seed=1, dtype=torch.float32).requires_grad_(), targets(*shape, classes=5, seed=2)
    weight = () if op == "cross_entropy" else (WEIGHT,)
    (wanted,) = torch.autograd.grad((call(x, *weight, target) * 2).sum(), x)
    (found,) = torch.autograd.grad(call(x, *weight, target, kernel=kernel).mul_(2).sum(), x)
    torch.testing.assert_close(found, wanted)
