"""``embedding_bag``'s reference against loops over bags, against torch's own, and by differences."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch
import torch.nn.functional as F

from portakernel.errors import ArgumentValueError
from portakernel.references import embedding_bag

INF, NAN = math.inf, math.nan
# V, N, I, B
SIZES = [
    (1, 1, 1, 1),
    (7, 5, 23, 6),
    (3, 4, 50, 9),
    (40, 3, 11, 30),
    (5, 2, 0, 4),
    (5, 2, 0, 0),
    (4, 0, 6, 3),
    (6, 3, 30, 1),
]


def drawn(*shape, seed, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def places(rows, count, bags, *, seed, dtype=torch.int64):
    """Indices and offsets, with empty bags among them."""
    source = torch.Generator().manual_seed(seed)
    indices = torch.randint(0, rows, (count,), generator=source)
    offsets = torch.randint(0, count + 1, (bags,), generator=source).sort().values
    offsets[:1] = 0
    return indices.to(dtype), offsets.to(dtype)


def pieces(indices, offsets):
    """The places in ``indices`` of each bag."""
    ends = [*offsets.tolist(), indices.numel()]
    return [list(range(start, end)) for start, end in itertools.pairwise(ends)]


def by_hand(weight, indices, offsets, samples, mode):
    """Each bag element by element, in sums that round once."""
    rows, factors = weight.tolist(), [1.0] * indices.numel() if samples is None else samples.tolist()
    found = []
    for bag in pieces(indices, offsets):
        terms = [[v * factors[i] for v in rows[int(indices[i])]] for i in bag]
        size = len(bag) if mode == "mean" and bag else 1
        found.append([math.fsum(column) / size for column in zip(*terms, strict=True)] or [0.0] * weight.shape[1])
    return torch.tensor(found, dtype=torch.float64).reshape(offsets.numel(), weight.shape[1])


def gradients_by_hand(grad, weight, indices, offsets, samples, mode):
    """What each index adds to the gradients, one after the other."""
    of_weight, of_samples = torch.zeros_like(weight), torch.zeros(indices.numel(), dtype=weight.dtype)
    for b, bag in enumerate(pieces(indices, offsets)):
        for i in bag:
            share = grad[b] / (len(bag) if mode == "mean" else 1)
            of_weight[int(indices[i])] += share * (1 if samples is None else samples[i])
            of_samples[i] = (share * weight[int(indices[i])]).sum()
    return of_weight, of_samples


MODES = [("sum", False), ("mean", False), ("sum", True)]


@pytest.mark.parametrize("integer", [torch.int64, torch.int32])
@pytest.mark.parametrize(("mode", "weighted"), MODES)
@pytest.mark.parametrize("sizes", SIZES)
def test_bags_and_gradients_are_their_definition(sizes, mode, weighted, integer):
    v, n, i, b = sizes
    weight, grad = drawn(v, n, seed=1), drawn(b, n, seed=2)
    indices, offsets = places(v, i, b, seed=3, dtype=integer)
    samples = drawn(i, seed=4) if weighted else None
    y = embedding_bag.forward(weight, indices, offsets, samples, mode=mode)
    torch.testing.assert_close(y, by_hand(weight, indices, offsets, samples, mode), rtol=1e-13, atol=1e-13)
    needs = (True, False, False, weighted)
    found = embedding_bag.backward(grad, weight, indices, offsets, samples, mode=mode, needs=needs)
    of_weight, of_samples = gradients_by_hand(grad, weight, indices, offsets, samples, mode)
    torch.testing.assert_close(found[0], of_weight, rtol=1e-12, atol=1e-13)
    assert found[1] is None
    assert found[2] is None
    if weighted:
        torch.testing.assert_close(found[3], of_samples, rtol=1e-12, atol=1e-13)
    else:
        assert found[3] is None


@pytest.mark.parametrize(("mode", "weighted"), MODES)
@pytest.mark.parametrize("sizes", [size for size in SIZES if size[2]])
def test_bags_and_gradients_are_torchs(sizes, mode, weighted):
    v, n, i, b = sizes
    weight, grad = drawn(v, n, seed=5).requires_grad_(), drawn(b, n, seed=6)
    indices, offsets = places(v, i, b, seed=7)
    samples = drawn(i, seed=8).requires_grad_() if weighted else None
    want = F.embedding_bag(indices, weight, offsets, mode=mode, per_sample_weights=samples)
    asked = [weight] if samples is None else [weight, samples]
    gradients = torch.autograd.grad(want, asked, grad)
    with torch.no_grad():
        y = embedding_bag.forward(weight, indices, offsets, samples, mode=mode)
        found = embedding_bag.backward(grad, weight, indices, offsets, samples, mode=mode)
    torch.testing.assert_close(y, want.detach(), rtol=1e-12, atol=1e-13)
    for mine, theirs in zip((found[0], found[3]), gradients, strict=False):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)


class _EmbeddingBag(torch.autograd.Function):
    """The reference's forward with the reference's backward."""

    @staticmethod
    def forward(ctx, weight, indices, offsets, samples, mode):
        ctx.save_for_backward(weight, indices, offsets, samples)
        ctx.mode = mode
        return embedding_bag.forward(weight, indices, offsets, samples, mode=mode)

    @staticmethod
    def backward(ctx, grad):
        return *embedding_bag.backward(grad, *ctx.saved_tensors, mode=ctx.mode, needs=ctx.needs_input_grad[:4]), None


@pytest.mark.parametrize(("mode", "weighted"), MODES)
def test_gradients_pass_gradcheck(mode, weighted):
    weight = drawn(5, 3, seed=9).requires_grad_()
    indices, offsets = places(5, 13, 6, seed=10)
    samples = drawn(13, seed=11).requires_grad_() if weighted else None
    assert torch.autograd.gradcheck(_EmbeddingBag.apply, (weight, indices, offsets, samples, mode))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("mode", "weighted"), MODES)
def test_sums_are_float32_and_rounded_once(mode, weighted, dtype):
    weight, grad = drawn(20, 33, seed=12, dtype=dtype), drawn(7, 33, seed=13, dtype=dtype)
    indices, offsets = places(20, 90, 7, seed=14)
    samples = drawn(90, seed=15, dtype=dtype) if weighted else None
    wide = None if samples is None else samples.double()
    y = embedding_bag.forward(weight, indices, offsets, samples, mode=mode)
    found = embedding_bag.backward(grad, weight, indices, offsets, samples, mode=mode)
    exact = embedding_bag.forward(weight.double(), indices, offsets, wide, mode=mode)
    exacts = embedding_bag.backward(grad.double(), weight.double(), indices, offsets, wide, mode=mode)
    (size,) = embedding_bag.output_magnitudes(weight, indices, offsets, samples, mode=mode)
    sizes = embedding_bag.magnitudes(grad, weight, indices, offsets, samples, mode=mode)
    half_ulp = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    results = [(y, exact, size), *zip((found[0], found[3]), (exacts[0], exacts[3]), (sizes[0], sizes[3]), strict=True)]
    for mine, truth, bound in results[: 3 if weighted else 2]:
        assert mine.dtype is dtype
        assert bool((truth.abs() <= bound * (1 + 1e-12)).all())
        allowed = half_ulp * truth.abs() + 32 * 2.0**-24 * bound
        assert bool(((mine.double() - truth).abs() <= allowed * 1.0001).all())


def test_empty_bags_are_zeros_wherever_they_are():
    weight, indices = torch.full((3, 2), 5.0), torch.tensor([0, 1, 2])
    offsets = torch.tensor([0, 0, 2, 2, 3, 3])
    want = torch.tensor([0.0, 10.0, 0.0, 5.0, 0.0, 0.0])
    assert torch.equal(embedding_bag.forward(weight, indices, offsets), want.unsqueeze(-1).expand(6, 2))
    mean = embedding_bag.forward(weight, indices, offsets, mode="mean")
    assert torch.equal(mean, want.clamp(max=5).unsqueeze(-1).expand(6, 2))


def test_rows_that_no_bag_has_do_not_matter():
    weight = torch.tensor([[1.0, 2.0], [NAN, INF], [3.0, 4.0]])
    indices, offsets = torch.tensor([0, 2]), torch.tensor([0])
    assert torch.equal(embedding_bag.forward(weight, indices, offsets), torch.tensor([[4.0, 6.0]]))
    grad_weight = embedding_bag.backward(torch.tensor([[INF, 1.0]]), weight, indices, offsets)[0]
    assert torch.equal(grad_weight, torch.tensor([[INF, 1.0], [0.0, 0.0], [INF, 1.0]]))


def test_infinities_and_nan_stay_in_their_bags_and_columns():
    weight = torch.tensor([[1.0, INF], [NAN, -INF], [2.0, 3.0]])
    indices, offsets = torch.tensor([0, 1, 2, 2, 0]), torch.tensor([0, 2, 4])
    want = torch.tensor([[NAN, NAN], [4.0, 6.0], [1.0, INF]])
    torch.testing.assert_close(embedding_bag.forward(weight, indices, offsets), want, equal_nan=True)
    samples = torch.tensor([0.0, 1.0, INF, 1.0, 0.0])
    weighted = torch.tensor([[NAN, NAN], [INF, INF], [0.0, NAN]])
    torch.testing.assert_close(embedding_bag.forward(weight, indices, offsets, samples), weighted, equal_nan=True)


def test_arguments_may_lie_anyhow():
    base = drawn(12, 10, seed=16)
    indices, offsets = places(6, 40, 9, seed=17)
    samples, grad = drawn(40, seed=18), drawn(9, 10, seed=19)
    far = [torch.stack([t, torch.full_like(t, 99)], -1)[:, 0] for t in (indices, offsets, samples)]
    for weight in (base[:6], base[::2], base[:1].expand(6, 10), base.T[:10, :6].mT, drawn(10, 6, seed=20).T):
        want = embedding_bag.forward(weight.contiguous(), indices, offsets, samples)
        assert torch.equal(embedding_bag.forward(weight, *far), want)
        gradients = embedding_bag.backward(grad, weight.contiguous(), indices, offsets, samples)
        found = embedding_bag.backward(grad.T.contiguous().T, weight, *far)
        for mine, theirs in ((found[0], gradients[0]), (found[3], gradients[3])):
            assert mine.is_contiguous()
            assert torch.equal(mine, theirs)
    spread = embedding_bag.backward(torch.ones(()).double().expand(9, 10), base[:6], indices, offsets)[0]
    assert torch.equal(spread, embedding_bag.backward(torch.ones(9, 10).double(), base[:6], indices, offsets)[0])


def test_the_result_is_written_into_out_wherever_it_lies():
    weight = drawn(5, 4, seed=21, dtype=torch.bfloat16)
    indices, offsets = places(5, 12, 3, seed=22)
    out = torch.full((4, 3), NAN, dtype=torch.bfloat16).T
    assert embedding_bag.forward(weight, indices, offsets, mode="mean", out=out) is out
    assert torch.equal(out, embedding_bag.forward(weight, indices, offsets, mode="mean"))


def test_only_what_is_needed_is_given():
    weight, grad, samples = drawn(5, 4, seed=23), drawn(3, 4, seed=24), drawn(12, seed=25)
    indices, offsets = places(5, 12, 3, seed=26)
    for first in (True, False):
        for last in (True, False):
            needs = (first, False, False, last)
            found = embedding_bag.backward(grad, weight, indices, offsets, samples, needs=needs)
            assert tuple(gradient is not None for gradient in found) == needs


@pytest.mark.parametrize("index", [-1, 5, 2**31])
def test_an_index_outside_is_an_index_error_on_the_cpu(index):
    message = rf"^embedding_bag: indices holds {index}, which is not in \[0, V\) with V = 5$"
    with pytest.raises(IndexError, match=message):
        embedding_bag.forward(drawn(5, 4, seed=27), torch.tensor([0, index, 1]), torch.tensor([0]))


@pytest.mark.parametrize(
    ("offsets", "found"),
    [
        ([1, 2], "offsets[0] is 1; the first bag begins at 0"),
        ([-1, 2], "offsets[0] is -1; the first bag begins at 0"),
        ([0, 3, 2], "offsets[1] is 3 and offsets[2] is 2; a bag cannot end before it begins"),
        ([0, 2, 5], "offsets[2] is 5 and I is 4; a bag cannot end before it begins"),
    ],
)
def test_offsets_that_are_no_bags_are_refused_on_the_cpu(offsets, found):
    message = re.escape(f"embedding_bag: {found}")
    with pytest.raises(ArgumentValueError, match=f"^{message}$"):
        embedding_bag.forward(drawn(5, 4, seed=28), torch.tensor([0, 1, 2, 3]), torch.tensor(offsets))


def test_weights_of_a_mean_are_refused():
    message = "embedding_bag: per_sample_weights need mode='sum'; this is 'mean'. Divide them by the bags' sizes"
    with pytest.raises(ArgumentValueError, match=f"^{re.escape(message)}$"):
        embedding_bag.forward(drawn(5, 4, seed=29), *places(5, 3, 2, seed=30), drawn(3, seed=31), mode="mean")
