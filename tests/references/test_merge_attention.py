"""Merges are their definition, in Python's own arithmetic; merging attention over split keys is attention over all."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from portakernel import ops
from portakernel.references import merge_attention, merge_attentions

INF, NAN = math.inf, math.nan
SHAPES = [(1, 1, 1), (5, 3, 7), (2, 4, 16)]


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def defined(outs: torch.Tensor, lses: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Each row by the definition: exact sums of exponentials, no maximum subtracted; dead parts are not read."""
    count, queries, heads, columns = outs.shape
    out, lse = np.zeros((queries, heads, columns)), np.full((heads, queries), -INF)
    for s, h in np.ndindex(queries, heads):
        weights = {r: math.exp(lses[r, h, s]) for r in range(count) if lses[r, h, s] > -INF}
        if weights:
            total = math.fsum(weights.values())
            lse[h, s] = math.log(total)
            for e in range(columns):
                out[s, h, e] = math.fsum(w * float(outs[r, s, h, e]) for r, w in weights.items()) / total
    return out, lse


def parts(count: int, queries: int, heads: int, columns: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Parts and their lse, one in four of which is -inf, the part then NaN."""
    outs, lses = drawn(count, queries, heads, columns, seed=seed), 3 * drawn(count, heads, queries, seed=seed + 1)
    dead = drawn(count, heads, queries, seed=seed + 2) > 0.7
    lses[dead] = -INF
    outs[dead.transpose(1, 2)] = NAN
    return outs, lses


@pytest.mark.parametrize("shape", SHAPES)
def test_of_two_it_is_its_definition(shape):
    outs, lses = parts(2, *shape, seed=1)
    out, lse = merge_attention.forward(outs[0], lses[0], outs[1], lses[1])
    want, want_lse = defined(outs, lses)
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(lse.numpy(), want_lse, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_of_several_it_is_its_definition(count, shape):
    outs, lses = parts(count, *shape, seed=4)
    out, lse = merge_attentions.forward(outs, lses)
    want, want_lse = defined(outs, lses)
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(lse.numpy(), want_lse, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_dtypes_are_float32_inside_and_rounded_once(dtype):
    outs, lses = parts(2, 9, 4, 33, seed=7)
    outs, lses = outs.to(dtype), lses.float()
    want, want_lse = defined(outs.double(), lses.double())
    step = {torch.float32: 1e-6, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    both = merge_attention.forward(outs[0], lses[0], outs[1], lses[1]), merge_attentions.forward(outs, lses)
    for out, lse in both:
        assert (out.dtype, lse.dtype) == (dtype, torch.float32)
        # terms may cancel, in float32: their absolute error is that of terms of size 4
        np.testing.assert_allclose(out.double().numpy(), want, rtol=1.002 * step, atol=1e-6)
        np.testing.assert_allclose(lse.double().numpy(), want_lse, rtol=1e-6, atol=1e-6)


def test_a_part_that_saw_no_key_leaves_the_other_as_it_is():
    a, b = drawn(4, 2, 8, seed=10).half(), torch.full((4, 2, 8), NAN, dtype=torch.float16)
    lse_a, dead = drawn(2, 4, seed=11).float(), torch.full((2, 4), -INF)
    for given in ((a, lse_a, b, dead), (b, dead, a, lse_a)):
        out, lse = merge_attention.forward(*given)
        assert torch.equal(out, a)
        assert torch.equal(lse, lse_a)
    b[:] = INF
    out, lse = merge_attention.forward(b, dead, b, dead)
    assert out.tolist() == torch.zeros(4, 2, 8).tolist()
    assert torch.equal(lse, dead)


def test_no_part_is_zeros_and_one_part_is_itself():
    out, lse = merge_attentions.forward(torch.empty(0, 3, 2, 4), torch.empty(0, 2, 3))
    assert torch.equal(out, torch.zeros(3, 2, 4))
    assert torch.equal(lse, torch.full((2, 3), -INF))
    outs, lses = drawn(1, 3, 2, 4, seed=12).float(), drawn(1, 2, 3, seed=13).float()
    lses[0, 1, 2], outs[0, 2, 1] = -INF, NAN
    out, lse = merge_attentions.forward(outs, lses)
    assert torch.equal(lse, lses[0])
    assert out[2, 1].tolist() == [0.0] * 4
    assert torch.equal(out[:2], outs[0, :2])


def test_lse_may_be_as_far_apart_and_as_large_as_float32_is():
    a, b = torch.ones(1, 3, 2), torch.full((1, 3, 2), 3.0)
    lse_a, lse_b = torch.tensor([[100.0], [3e38], [-3e38]]), torch.tensor([[-100.0], [3e38], [-3e38]])
    out, lse = merge_attention.forward(a, lse_a, b, lse_b)
    assert out[0, :, 0].tolist() == [1.0, 2.0, 2.0]
    assert torch.equal(lse, lse_a)


def test_the_largest_numbers_do_not_overflow():
    top = torch.finfo(torch.float32).max
    x, zero = torch.full((1, 1, 3), top), torch.zeros(1, 1)
    assert merge_attention.forward(x, zero, x, zero, return_lse=False).tolist() == [[[top] * 3]]
    assert merge_attentions.forward(x.expand(4, 1, 1, 3), zero.expand(4, 1, 1), return_lse=False).tolist() == [
        [[top] * 3]
    ]


def test_out_is_written_and_returned_may_be_the_first_part_and_layouts_change_nothing():
    outs, lses = parts(2, 6, 3, 16, seed=14)
    want, want_lse = merge_attention.forward(outs[0], lses[0], outs[1], lses[1])
    by_query = [lse.T.contiguous().T for lse in lses]
    found = merge_attention.forward(outs[0].mT.contiguous().mT, by_query[0], outs[1], by_query[1])
    assert all(tensor.is_contiguous() for tensor in found)
    assert torch.equal(found[0], want)
    assert torch.equal(found[1], want_lse)
    a, lse = outs[0].clone(), torch.empty(6, 3, dtype=torch.float64).T
    given = merge_attention.forward(a, lses[0], outs[1], lses[1], out=(a, lse))
    assert given[0] is a
    assert given[1] is lse
    assert torch.equal(a, want)
    assert torch.equal(lse, want_lse)


def attended(q, k, v, **values):
    """One sequence's ``out (S, H, E)`` and ``lse (H, S)``."""
    # without keys some kernels cannot serve, of which a call without a name warns
    kernel = None if len(k) else "reference"
    out, lse = ops.attention(q[None], k[None], v[None], return_lse=True, kernel=kernel, **values)
    return out[0], lse[0]


@pytest.mark.parametrize("cuts", [(0, 29), (0, 11, 29), (0, 4, 9, 17, 29), (0, 0, 29)])
def test_merging_attention_over_split_keys_is_attention_over_all_keys(cuts):
    generator = torch.Generator().manual_seed(15)
    q, k, v = (torch.randn(*shape, generator=generator) for shape in ((13, 4, 32), (29, 2, 32), (29, 2, 24)))
    want, want_lse = attended(q, k, v)
    pieces = [attended(q, k[a:b], v[a:b]) for a, b in pairwise(cuts)]
    out, lse = ops.merge_attentions(*(torch.stack(each) for each in zip(*pieces, strict=True)))
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse, want_lse, rtol=1e-6, atol=1e-6)
    merged = pieces[0]
    for piece in pieces[1:]:
        merged = ops.merge_attention(*merged, *piece)
    torch.testing.assert_close(merged[0], want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(merged[1], want_lse, rtol=1e-6, atol=1e-6)


def test_merging_a_prefix_and_a_causal_rest_is_causal_attention():
    generator = torch.Generator().manual_seed(16)
    q, k, v = (torch.randn(20, 2, 16, generator=generator) for _ in range(3))
    want, want_lse = attended(q, k, v, causal=True)
    # the last 12 queries see all of the first 8 keys, and of the others those up to their own
    prefix, rest = attended(q[8:], k[:8], v[:8]), attended(q[8:], k[8:], v[8:], causal=True)
    out, lse = ops.merge_attention(*prefix, *rest)
    torch.testing.assert_close(out, want[8:], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse, want_lse[:, 8:], rtol=1e-6, atol=1e-6)
