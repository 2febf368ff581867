"""What the conformance kit does not see of ``cross_entropy`` in Triton: tiles, blocks, edges, memory; interpreted."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.references import cross_entropy as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.losses import cross_entropy

# More than a tile of forward, and than a block of backward: whole packs, and an odd number of columns.
LONG = (2 * 8192 + 64, 8192 + 13)

long_rows = pytest.mark.parametrize("v", LONG)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(3).to(dtype)


def forward(logits: Tensor, target: Tensor, *, smoothing: float = 0.0, ignore: int = -100) -> tuple[Tensor, ...]:
    found = cross_entropy.cross_entropy(
        logits, target, ignore_index=ignore, label_smoothing=smoothing, return_lse=True, save=True
    )
    assert isinstance(found, tuple)
    return found


def backward(
    grad_loss: Tensor, logits: Tensor, target: Tensor, *, smoothing: float = 0.0, over: bool = False
) -> Tensor:
    *_, lse = forward(logits, target, smoothing=smoothing)
    grad, none = cross_entropy.backward(
        grad_loss, logits, target, lse, ignore_index=-100, label_smoothing=smoothing, overwrite_logits=over
    )
    assert none is None
    assert grad is not None
    return grad


def exact_gradient(grad_loss: Tensor, logits: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    x = logits.double().detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(x, target.long(), reduction="none", label_smoothing=smoothing)
    (grad,) = torch.autograd.grad(loss, x, grad_loss.double())
    return grad


def assert_gradient(grad: Tensor, exact: Tensor) -> None:
    rounded = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}[grad.dtype]
    torch.testing.assert_close(grad.double(), exact, rtol=rounded, atol=1e-7)


@long_rows
@dtypes
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_rows_of_many_tiles_have_the_loss_of_the_formula(v, dtype, smoothing):
    logits, target = draw(3, v, dtype=dtype), torch.tensor([v - 1, -100, 8191])
    loss, lse, saved = forward(logits, target, smoothing=smoothing)
    exact, exact_lse = reference.forward(logits.double(), target, label_smoothing=smoothing, return_lse=True)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-6, atol=0)
    assert torch.equal(lse, saved)


def test_a_maximum_that_rises_in_the_last_tile_rescales_what_was_summed():
    logits = torch.full((1, LONG[1]), -200.0)
    logits[0, -1], logits[0, 5] = 300.0, 299.0
    loss, *_ = forward(logits, torch.tensor([5]))
    assert loss.item() == pytest.approx(torch.logsumexp(torch.tensor([300.0, 299.0]), 0).item() - 299.0, rel=1e-6)


def test_tiles_of_minus_infinity_add_nothing():
    logits = torch.full((1, LONG[0]), float("-inf"))
    logits[0, -3:] = torch.tensor([1.0, 2.0, 3.0])
    loss, lse, _ = forward(logits, torch.tensor([LONG[0] - 1]))
    assert lse.item() == pytest.approx(torch.logsumexp(torch.tensor([1.0, 2.0, 3.0]), 0).item(), rel=1e-6)
    assert loss.item() == pytest.approx(lse.item() - 3.0, rel=1e-6)


@pytest.mark.parametrize("v", [*LONG, 33, 1000])
def test_a_row_has_the_same_bits_at_any_place_in_any_batch(v):
    logits, target = draw(9, v, dtype=torch.bfloat16), torch.arange(9)
    together = forward(logits, target)
    for rows in (slice(0, 1), slice(5, 6), slice(3, 8)):
        apart = forward(logits[rows], target[rows])
        assert all(torch.equal(one, all_[rows]) for one, all_ in zip(apart, together, strict=True))


@long_rows
@dtypes
def test_rows_of_many_blocks_have_the_gradient_of_the_formula(v, dtype):
    logits, target, grad_loss = draw(3, v, dtype=dtype), torch.tensor([v - 1, -100, 8191]), draw(3, seed=1)
    grad = backward(grad_loss, logits, target, smoothing=0.1)
    assert_gradient(grad, exact_gradient(grad_loss, logits, target, 0.1))


EDGES = {
    "fewer columns than one access": (5, 3, 3),
    "rows that begin at every alignment": (17, 37, 37),
    "rows of a wider matrix as far from alignment": (9, 37, 45),
    "rows of a wider matrix not so": (9, 37, 40),
}


@dtypes
@pytest.mark.parametrize("layout", EDGES)
def test_every_element_of_unaligned_rows_has_its_gradient(layout, dtype):
    m, v, width = EDGES[layout]
    logits, target, grad_loss = draw(m, width, dtype=dtype)[:, :v], torch.arange(m) % v, draw(m, seed=1)
    assert_gradient(backward(grad_loss, logits, target), exact_gradient(grad_loss, logits, target))


@pytest.mark.parametrize("v", [*LONG, 33])
def test_the_gradient_may_take_the_place_of_contiguous_logits(v):
    logits, target, grad_loss = draw(3, v), torch.tensor([v - 1, -100, 0]), draw(3, seed=1)
    expected = backward(grad_loss, logits.clone(), target)
    assert backward(grad_loss, logits, target, over=True) is logits
    assert torch.equal(logits, expected)


def test_logits_that_are_not_contiguous_are_left_as_they_were():
    wide = draw(4, 48)
    before = wide.clone()
    grad = backward(draw(4, seed=1), wide[:, :40], torch.arange(4), over=True)
    assert grad.is_contiguous()
    assert torch.equal(wide, before)


def test_an_ignored_row_of_nan_has_a_gradient_of_zeros():
    logits, target = draw(2, LONG[1]), torch.tensor([3, -100])
    logits[1, 1:] = float("nan")
    lse = torch.tensor([torch.logsumexp(logits[0], 0).item(), float("nan")])
    grad, _ = cross_entropy.backward(torch.ones(2), logits, target, lse, ignore_index=-100)
    assert grad is not None
    assert torch.equal(grad[1], torch.zeros(LONG[1]))
    assert grad[0].isfinite().all()


@pytest.mark.parametrize("ignore", [-(2**40), 2**40])
def test_an_ignored_class_beyond_32_bits_matches_no_narrow_target(ignore):
    logits, target = draw(2, 40), torch.tensor([0, 5], dtype=torch.int32)
    loss, *_ = forward(logits, target, ignore=ignore)
    torch.testing.assert_close(loss, reference.forward(logits, target))


def test_rows_may_lie_further_apart_than_32_bits_reach():
    logits = torch.empty_strided((2, 40), (2**31 + 8, 1), dtype=torch.bfloat16)  # untouched memory is not there
    logits.copy_(draw(2, 40))
    target, grad_loss = torch.tensor([3, 39]), torch.ones(2)
    loss, *_ = forward(logits, target)
    torch.testing.assert_close(loss, reference.forward(logits.contiguous(), target))
    assert_gradient(backward(grad_loss, logits, target), exact_gradient(grad_loss, logits.contiguous(), target))


def test_a_rows_sum_does_not_depend_on_the_matrix_that_it_lies_in(monkeypatch):
    wide = torch.randn(2, 4097, generator=torch.Generator().manual_seed(3)).bfloat16()
    target, seen = torch.tensor([1, 2]), []
    real = cross_entropy.launch

    def watched(kernel, grid, *args, **meta):
        seen.append({name: meta[name] for name in ("STEPS", "PACKS", "PACK")})
        real(kernel, grid, *args, **meta)

    monkeypatch.setattr(cross_entropy, "launch", watched)
    with interpreting():
        together = cross_entropy.cross_entropy(wide[:, :4096], target, ignore_index=-100)
        alone = cross_entropy.cross_entropy(wide[1:, :4096], target[1:], ignore_index=-100)
    assert seen[0] == seen[1]
    assert torch.equal(together[1:], alone)
