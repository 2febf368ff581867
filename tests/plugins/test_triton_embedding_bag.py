"""What the conformance kit does not see of ``embedding_bag`` in Triton: column blocks, long runs, bits, interpreted."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.references import embedding_bag as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.embeddings import embedding_bag, embedding_bag_backward

PIECE = 64


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def numbers(below: int, count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, below, (count,), generator=torch.Generator().manual_seed(seed))


def gradients(grad_y: Tensor, *arguments: Tensor | None, mode: str) -> tuple[Tensor | None, ...]:
    weight, indices, offsets, samples = arguments
    assert weight is not None
    assert indices is not None
    assert offsets is not None
    needs = (True, False, False, samples is not None)
    return embedding_bag_backward.backward(grad_y, weight, indices, offsets, samples, mode=mode, needs=needs)


def assert_gradients(
    grad_y: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, samples: Tensor | None = None, mode: str = "sum"
) -> None:
    found = gradients(grad_y, weight, indices, offsets, samples, mode=mode)
    doubles = None if samples is None else samples.double()
    exact = reference.backward(grad_y.double(), weight.double(), indices, offsets, doubles, mode=mode)
    for gradient, expected in zip(found, exact, strict=True):
        assert (gradient is None) == (expected is None)
        if gradient is not None and expected is not None:
            torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("n", [1, 96, 300, 600])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_rows_of_any_width_are_added(n, mode):
    weight, indices, offsets = draw(12, n), numbers(12, 40), torch.tensor([0, 3, 3, 30, 31])
    y = embedding_bag.embedding_bag(weight, indices, offsets, mode=mode)
    exact = reference.forward(weight.double(), indices, offsets, mode=mode)
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)


def test_a_bag_has_the_same_bits_among_any_others():
    weight, indices, offsets = draw(30, 40), numbers(30, 60), torch.tensor([0, 9, 10, 40])
    together = embedding_bag.embedding_bag(weight, indices, offsets, mode="mean")
    for bag, (first, last) in enumerate(((0, 9), (9, 10), (10, 40), (40, 60))):
        alone = embedding_bag.embedding_bag(weight, indices[first:last], torch.tensor([0]), mode="mean")
        assert torch.equal(alone[0], together[bag])


def test_indices_of_no_row_read_nothing():
    weight, offsets = draw(4, 24), torch.tensor([0, 2])
    y = embedding_bag.embedding_bag(weight, torch.tensor([1, 4, -1, 2]), offsets, mode="sum")
    assert torch.equal(y, weight[[1, 2]])


@pytest.fixture(params=["sorted", "looked through"])
def way(request, monkeypatch):
    """How backward finds what belongs to a row, whatever their number."""
    monkeypatch.setattr(embedding_bag_backward, "_FEW", 0 if request.param == "sorted" else 1 << 30)


RUNS = {
    # sizes of the runs of rows 0, 1, 2, ...
    "one run of whole pieces": (3 * PIECE,),
    "one run that ends within a piece": (2 * PIECE + 5,),
    "pieces between a head and a tail": (10, 3 * PIECE, 30),
    "runs that end where pieces do": (PIECE, 0, PIECE),
    "no run as long as a piece": (40, 40, 40, 40, 40),
    "fewer indices than a piece": (3, 0, 9),
}


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("samples", [False, True], ids=["plain", "weighted"])
@pytest.mark.usefixtures("way")
def test_runs_of_one_index_are_summed_however_pieces_cut_them(runs, samples):
    sizes = torch.tensor(RUNS[runs])
    indices = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    indices = indices[torch.randperm(len(indices), generator=torch.Generator().manual_seed(1))]
    offsets = torch.arange(0, len(indices), 7)
    weight, grad_y = draw(len(sizes) + 1, 40), draw(len(offsets), 40, seed=1)
    assert_gradients(grad_y, weight, indices, offsets, draw(len(indices), seed=2) if samples else None)


@pytest.mark.parametrize("rows", [3, 100, 1000], ids=["few rows", "as many rows", "many rows"])
@pytest.mark.parametrize("n", [20, 300])
@pytest.mark.usefixtures("way")
def test_the_gradient_of_a_mean_reaches_every_row_that_was_looked_up(rows, n):
    indices, offsets = numbers(rows, 100), torch.tensor([0, 0, 9, 50, 100])
    assert_gradients(draw(5, n, seed=1), draw(rows, n), indices, offsets, mode="mean")


@pytest.mark.usefixtures("way")
def test_indices_of_no_row_write_no_gradient():
    indices = torch.tensor([1, 4, -1, 2])
    for rows in (4, 40):
        weight = draw(rows, 24)
        indices[1] = rows
        grad, *_ = gradients(torch.ones(1, 24), weight, indices, torch.tensor([0]), None, mode="sum")
        expected = torch.zeros(rows, 24)
        expected[[1, 2]] = 1.0
        assert torch.equal(grad, expected)


@pytest.mark.usefixtures("way")
def test_equal_calls_give_equal_bits():
    indices, offsets = numbers(3, 300), torch.arange(0, 300, 11)
    weight, grad_y, samples = draw(3, 40), draw(len(offsets), 40, seed=1), draw(300, seed=2)
    first, second = (gradients(grad_y, weight, indices, offsets, samples, mode="sum") for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[3], second[3])


def test_rows_may_lie_further_apart_than_32_bits_reach():
    weight = torch.empty_strided((2, 40), (2**31 + 8, 1), dtype=torch.bfloat16)  # untouched memory is not there
    weight.copy_(draw(2, 40))
    indices, offsets = torch.tensor([1, 0, 1], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    y = embedding_bag.embedding_bag(weight, indices, offsets, mode="sum")
    assert torch.equal(y, reference.forward(weight.contiguous(), indices, offsets))
