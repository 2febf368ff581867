"""What the Triton kernels of ``merge_attention`` and ``merge_attentions`` do beyond the kit's cases, interpreted."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("triton")

import torch

from portakernel.references import merge_attention as reference
from portakernel.references import merge_attentions
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.attention import merging

INF, NAN = math.inf, math.nan


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def pair(queries, heads, columns, dtype=torch.float32, seed=0):
    """Two parts and their lse in turn."""
    parts = [draw(queries, heads, columns, dtype=dtype, seed=seed + i) for i in (0, 1)]
    return parts[0], draw(heads, queries, seed=seed), parts[1], draw(heads, queries, seed=seed + 1)


dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


@dtypes
@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_what_a_part_without_keys_holds_changes_no_bit(dtype, poison):
    a, lse_a, b, lse_b = pair(13, 5, 40, dtype)
    lse_a[:, ::3] = -INF
    lse_b[:, ::2] = -INF  # and so both, of each sixth query
    clean_a, clean_b = a.clone(), b.clone()
    clean_a[::3], clean_b[::2] = 0.0, 0.0
    a[::3], b[::2] = poison, poison
    want, want_lse = merging.merge_attention(clean_a, lse_a, clean_b, lse_b)
    out, lse = merging.merge_attention(a, lse_a, b, lse_b)
    several, lses = merging.merge_attentions(torch.stack((a, b)), torch.stack((lse_a, lse_b)))
    for found, found_lse in ((out, lse), (several, lses)):
        assert torch.equal(found, want)
        assert torch.equal(found_lse, want_lse)
        assert torch.equal(found[::6], torch.zeros_like(found[::6]))
        assert torch.equal(found_lse[:, ::6], torch.full_like(found_lse[:, ::6], -INF))
    # of one part alone, its own bits
    assert torch.equal(out[3], b[3])
    assert torch.equal(out[2], a[2])


@dtypes
def test_the_first_part_may_be_overwritten(dtype, launched):
    a, lse_a, b, lse_b = pair(9, 3, 64, dtype, seed=2)
    want, want_lse = merging.merge_attention(a, lse_a, b, lse_b)
    lse = torch.empty(3, 9)
    found = merging.merge_attention(a, lse_a, b, lse_b, out=(a, lse))
    assert found[0] is a
    assert found[1] is lse
    assert torch.equal(a, want)
    assert torch.equal(lse, want_lse)
    assert launched == ["_merge_two"] * 2


def test_lse_by_query_is_read_and_written_where_it_lies(launched):
    a, lse_a, b, lse_b = pair(10, 4, 32, seed=4)
    want, want_lse = merging.merge_attention(a, lse_a, b, lse_b)
    by_query = torch.empty(10, 4)
    _, lse = merging.merge_attention(
        a, lse_a.T.contiguous().T, b, lse_b.T.contiguous().T, out=(torch.empty(10, 4, 32), by_query.T)
    )
    assert lse.data_ptr() == by_query.data_ptr()
    assert torch.equal(by_query.T, want_lse)
    assert torch.equal(merging.merge_attention(a, lse_a, b, lse_b, return_lse=False), want)
    assert launched == ["_merge_two"] * 3


def test_parts_of_one_tensor_and_results_in_another_need_no_copy():
    """Heads of two calls side by side, as slices of one buffer, merged into a slice of a third."""
    both, whole = draw(7, 2, 6, 48, seed=6), torch.full((7, 12, 48), NAN)
    lses = draw(2, 6, 7, seed=7)
    want, want_lse = merging.merge_attentions(both.transpose(0, 1).contiguous(), lses)
    out, lse = merging.merge_attentions(both.transpose(0, 1), lses, out=(whole[:, 3:9], torch.empty(6, 7)))
    assert torch.equal(whole[:, 3:9], want)
    assert out.data_ptr() == whole[:, 3:9].data_ptr()
    assert torch.equal(lse, want_lse)
    assert whole[:, :3].isnan().all()
    assert whole[:, 9:].isnan().all()


def test_a_row_s_bits_depend_on_that_row_alone():
    a, lse_a, b, lse_b = pair(33, 3, 40, seed=8)
    out, lse = merging.merge_attention(a, lse_a, b, lse_b)
    for rows in (slice(0, 1), slice(5, 22), slice(32, 33)):
        some, some_lse = merging.merge_attention(a[rows], lse_a[:, rows], b[rows], lse_b[:, rows])
        assert torch.equal(some, out[rows])
        assert torch.equal(some_lse, lse[:, rows])


def test_a_head_longer_than_a_program_has_its_lse_written_once(launched):
    a, lse_a, b, lse_b = pair(2, 2, 2500, seed=10)
    out, lse = merging.merge_attention(a, lse_a, b, lse_b)
    want, want_lse = reference.forward(*(tensor.double() for tensor in (a, lse_a, b, lse_b)))
    torch.testing.assert_close(out.double(), want, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-6, atol=1e-6)
    # over lse_a itself it would be read by other programs: fresh memory, then
    assert lse.data_ptr() != lse_a.data_ptr()
    assert launched == ["_merge_two"]


def test_parts_are_summed_in_their_order():
    """Three terms of which the order shows: 1 and -1 cancel before the small one comes, or it is lost."""
    small, one = torch.full((1, 1, 1), 2.0**-25), torch.ones(1, 1, 1)
    lses = torch.zeros(4, 1, 1)
    last = merging.merge_attentions(torch.stack((one, -one, small, 0 * one)), lses, return_lse=False)
    first = merging.merge_attentions(torch.stack((small, one, -one, 0 * one)), lses, return_lse=False)
    assert last.item() == 2.0**-27
    assert first.item() == 0.0


def test_what_vanishes_beside_the_largest_is_not_read():
    outs, lses = draw(3, 4, 2, 16, seed=12), torch.zeros(3, 2, 4)
    lses[1] = 300.0
    outs[0], outs[2] = NAN, INF
    out, lse = merging.merge_attentions(outs, lses)
    assert torch.equal(out, outs[1])
    assert torch.equal(lse, lses[1])


def test_what_many_alike_weights_lose_one_after_the_other_is_within_what_is_allowed():
    """Each is rounded to the same side after a weight of 1; no more than half a unit in the last place for a part."""
    lses = torch.full((33, 1, 1), 1.0)
    lses[0] = 7.68511438369751
    outs = torch.zeros(33, 1, 1, 1)
    outs[0] = 1.0
    out = merging.merge_attentions(outs, lses, return_lse=False)
    exact, _ = merge_attentions.forward(outs.double(), lses.double())
    (size,) = merge_attentions.output_magnitudes(outs, lses, return_lse=False)
    far = abs(out.double() - exact).item() / 2.0**-24
    assert 10.0 < far < 33.0
    assert far < 8.0 * size.item()
