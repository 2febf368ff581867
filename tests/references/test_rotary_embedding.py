"""``rotary_embedding`` turns pairs: against products of complex numbers, one pair at a time."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch

from portakernel.errors import ArgumentValueError
from portakernel.references import rotary_embedding

# leading dimensions, H, G, D, L, C
SIZES = [
    ((5,), 3, 1, 8, 7, 4),
    ((2, 4), 2, 2, 9, 4, 3),
    ((2, 1, 3), 1, 2, 2, 3, 1),
    ((), 2, 1, 6, 2, 2),
    ((4,), 2, 1, 5, 6, 0),
]


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def inputs(leading, heads, groups, size, length, pairs, seed=1):
    """Real angles, so that a turn keeps lengths."""
    angles = drawn(length, pairs, seed=seed) * 3
    q, k = drawn(*leading, heads, size, seed=seed + 1), drawn(*leading, groups, size, seed=seed + 2)
    return q, k, angles.cos(), angles.sin()


def positions_of(leading, length, seed=5):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, length, leading, dtype=np.int64).reshape(leading))


def by_complex_products(x, cos, sin, positions, interleaved):
    """Each pair as a complex number, times ``cos + i sin`` of its token's position."""
    found, pairs = x.clone(), cos.shape[1]
    for token in itertools.product(*map(range, x.shape[:-2])):
        position = (token[-1] if token else 0) if positions is None else int(positions[token])
        for head, pair in itertools.product(range(x.shape[-2]), range(pairs)):
            first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pairs + pair)
            row = x[token][head]
            turn = complex(cos[position, pair], sin[position, pair])
            product = complex(row[first], row[second]) * turn
            found[token][head][first], found[token][head][second] = product.real, product.imag
    return found


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("with_positions", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_each_pair_is_turned_by_the_angle_of_its_position(sizes, with_positions, interleaved):
    q, k, cos, sin = inputs(*sizes)
    positions = positions_of(sizes[0], sizes[4]) if with_positions else None
    found = rotary_embedding.forward(q, k, cos, sin, positions, interleaved=interleaved)
    for x, y in zip((q, k), found, strict=True):
        want = by_complex_products(x, cos, sin, positions, interleaved)
        torch.testing.assert_close(y, want, rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1))
        assert torch.equal(y[..., 2 * sizes[5] :], x[..., 2 * sizes[5] :])


def test_halves_are_the_form_that_models_write_with_rotate_half():
    q, k, cos, sin = inputs((6,), 2, 1, 8, 6, 4)
    wide_cos, wide_sin = (torch.cat((table, table), -1)[:, None] for table in (cos, sin))
    want = q * wide_cos + torch.cat((-q[..., 4:], q[..., :4]), -1) * wide_sin
    torch.testing.assert_close(rotary_embedding.forward(q, k, cos, sin)[0], want, rtol=1e-14, atol=0)


@pytest.mark.parametrize("tables", ["own", "float32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_dtypes_are_float32_inside_and_rounded_once(dtype, tables):
    q, k, cos, sin = inputs((7,), 3, 2, 33, 9, 13)
    other = dtype if tables == "own" else torch.float32
    q, k, cos, sin = q.to(dtype), k.to(dtype), cos.to(other), sin.to(other)
    found = rotary_embedding.forward(q, k, cos, sin)
    exact = rotary_embedding.forward(*(t.double() for t in (q, k, cos, sin)))
    step = {torch.float32: 2.0**-24, torch.float16: 2.0**-11 * 1.001, torch.bfloat16: 2.0**-8 * 1.001}[dtype]
    for y, want in zip(found, exact, strict=True):
        assert y.dtype == dtype
        np.testing.assert_allclose(y.double().numpy(), want.numpy(), rtol=step, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_positions_of_either_width_and_any_layout_serve(dtype):
    q, k, cos, sin = inputs((3, 4), 2, 1, 8, 9, 4)
    positions = positions_of((3, 4), 9)
    want = rotary_embedding.forward(q, k, cos, sin, positions)
    laid = torch.zeros(4, 6, dtype=dtype).T
    laid[::2] = positions.to(dtype)
    found = rotary_embedding.forward(q, k, cos, sin, laid[::2])
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


def test_without_positions_each_batch_counts_from_zero():
    q, k, cos, sin = inputs((2, 5), 2, 1, 8, 7, 4)
    counted = torch.arange(5).expand(2, -1)
    found, want = rotary_embedding.forward(q, k, cos, sin), rotary_embedding.forward(q, k, cos, sin, counted)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    alone = rotary_embedding.forward(q[1], k[1], cos, sin)
    assert torch.equal(alone[0], found[0][1])


def test_tables_shorter_than_the_sequence_are_refused():
    q, k, cos, sin = inputs((3, 5), 2, 1, 8, 4, 4)
    message = (
        "rotary_embedding: cos and sin have 4 positions (L), but the last leading dimension of q has 5 tokens;"
        " without positions, a token's position is its index there"
    )
    with pytest.raises(ArgumentValueError, match=f"^{re.escape(message)}$"):
        rotary_embedding.forward(q, k, cos, sin)
    assert rotary_embedding.forward(q, k, cos, sin, torch.zeros(3, 5, dtype=torch.int64))[0].shape == q.shape


@pytest.mark.parametrize("beyond", [4, -1])
def test_a_position_outside_the_tables_is_an_index_error_on_the_cpu(beyond):
    q, k, cos, sin = inputs((2,), 2, 1, 8, 4, 4)
    with pytest.raises(IndexError, match=rf"^rotary_embedding: positions holds {beyond}, which is not in \[0, L\)"):
        rotary_embedding.forward(q, k, cos, sin, torch.tensor([0, beyond]))


@pytest.mark.parametrize("interleaved", [False, True])
def test_layouts_change_nothing_and_results_are_contiguous(interleaved):
    q, k, cos, sin = inputs((5,), 3, 2, 10, 6, 4)
    want = rotary_embedding.forward(q, k, cos, sin, interleaved=interleaved)
    fused = torch.cat((q.flatten(1), k.flatten(1)), 1)
    table = torch.cat((cos, sin), 1)
    found = rotary_embedding.forward(
        fused[:, :30].unflatten(1, (3, 10)),
        k.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        table[:, :4],
        table[:, 4:],
        interleaved=interleaved,
    )
    for y, same in zip(found, want, strict=True):
        assert y.is_contiguous()
        assert torch.equal(y, same)


@pytest.mark.parametrize("interleaved", [False, True])
def test_outputs_go_where_they_shall_over_the_inputs_too(interleaved):
    q, k, cos, sin = inputs((5,), 3, 2, 10, 6, 4)
    want = rotary_embedding.forward(q, k, cos, sin, interleaved=interleaved)
    out = torch.full((10, 3, 5), math.nan, dtype=torch.float64).permute(2, 1, 0), torch.full_like(k, math.nan)
    for target in (out, (q, k)):
        found = rotary_embedding.forward(q, k, cos, sin, interleaved=interleaved, out=target)
        assert found[0] is target[0]
        assert found[1] is target[1]
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


@pytest.mark.parametrize("interleaved", [False, True])
def test_no_tokens_give_no_tokens(interleaved):
    for leading in ((0,), (3, 0), (0, 3)):
        q, k, cos, sin = inputs(leading, 2, 1, 8, 4, 3)
        for positions in (None, torch.empty(leading, dtype=torch.int32)):
            found = rotary_embedding.forward(q, k, cos, sin, positions, interleaved=interleaved)
            assert [y.shape for y in found] == [q.shape, k.shape]


def test_special_values_stay_in_their_pair():
    q, k, cos, sin = inputs((2,), 1, 1, 8, 2, 3)
    want, _ = rotary_embedding.forward(q, k, cos, sin)
    q[1, 0, 1], q[0, 0, 7] = math.nan, math.inf
    found, _ = rotary_embedding.forward(q, k, cos, sin)
    changed = [[False] * 7 + [True], [False, True, False, False, True, False, False, False]]
    assert (found != want)[:, 0].tolist() == changed
    assert found[1, 0, [1, 4]].isnan().all()
    assert found[0, 0, 7] == math.inf


class _Rotary(torch.autograd.Function):
    """The reference's forward with the reference's backward."""

    @staticmethod
    def forward(ctx, q, k, cos, sin, positions, interleaved):
        ctx.save_for_backward(cos, sin, positions)
        ctx.interleaved = interleaved
        return rotary_embedding.forward(q, k, cos, sin, positions, interleaved=interleaved)

    @staticmethod
    def backward(ctx, *grads):
        needs = tuple(ctx.needs_input_grad[:5])
        kept = (*grads, *ctx.saved_tensors)
        return (*rotary_embedding.backward(*kept, interleaved=ctx.interleaved, needs=needs), None)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("with_positions", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_gradients_pass_gradcheck_in_float64(sizes, with_positions, interleaved):
    q, k, cos, sin = inputs(*sizes)
    positions = positions_of(sizes[0], sizes[4]) if with_positions else None
    assert torch.autograd.gradcheck(
        lambda *given: _Rotary.apply(*given, cos, sin, positions, interleaved), (q.requires_grad_(), k.requires_grad_())
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients_are_the_turn_taken_back(interleaved):
    q, k, cos, sin = inputs((2, 4), 3, 1, 9, 6, 4)
    positions = positions_of((2, 4), 6)
    turned = rotary_embedding.forward(q, k, cos, sin, positions, interleaved=interleaved)
    back = rotary_embedding.backward(*turned, cos, sin, positions, interleaved=interleaved)
    torch.testing.assert_close(back[0], q, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(back[1], k, rtol=1e-13, atol=1e-14)
    assert back[2:] == (None, None, None)


@pytest.mark.parametrize("needs", list(itertools.product((True, False), repeat=2)))
@pytest.mark.parametrize("given", list(itertools.product((True, False), repeat=2)))
def test_gradients_that_are_not_needed_or_not_given_are_none(given, needs):
    q, k, cos, sin = inputs((5,), 3, 1, 8, 6, 4)
    grads = [
        x.half().permute(2, 0, 1).contiguous().permute(1, 2, 0) if there else None
        for x, there in zip((q, k), given, strict=True)
    ]
    found = rotary_embedding.backward(*grads, cos.half(), sin.half(), None, needs=(*needs, True, True, False))
    sizes = rotary_embedding.magnitudes(*grads, cos.half(), sin.half(), None)
    assert [grad is not None for grad in found[:2]] == [a and b for a, b in zip(needs, given, strict=True)]
    assert [size is not None for size in sizes[:2]] == list(given)
    assert found[2:] == sizes[2:] == (None, None, None)
    for gradient in found[:2]:
        assert gradient is None or (gradient.dtype == torch.float16 and gradient.is_contiguous())


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("with_positions", [False, True])
def test_magnitudes_bound_what_they_are_of_and_are_reached_without_cancellation(with_positions, interleaved):
    q, k, cos, sin = inputs((2, 4), 3, 1, 9, 6, 3)
    positions = positions_of((2, 4), 6) if with_positions else None
    given = {"interleaved": interleaved}
    sizes = rotary_embedding.output_magnitudes(q, k, cos, sin, positions, **given)
    for y, size in zip(rotary_embedding.forward(q, k, cos, sin, positions, **given), sizes, strict=True):
        assert bool((y.abs() <= size * (1 + 1e-12)).all())
    grad_sizes = rotary_embedding.magnitudes(q, k, cos, sin, positions, **given)
    for y, size in zip(rotary_embedding.backward(q, k, cos, sin, positions, **given)[:2], grad_sizes[:2], strict=True):
        assert bool((y.abs() <= size * (1 + 1e-12)).all())
    # with every number positive, a turn adds in the second element of a pair, and the turn back in the first
    positive = [t.abs() for t in (q, k, cos, sin)]
    seconds = slice(1, 6, 2) if interleaved else slice(3, 6)
    firsts = slice(0, 6, 2) if interleaved else slice(0, 3)
    forth = rotary_embedding.forward(*positive, positions, **given)
    back = rotary_embedding.backward(*positive, positions, **given)
    for place in (0, 1):
        torch.testing.assert_close(forth[place][..., seconds], sizes[place][..., seconds])
        torch.testing.assert_close(back[place][..., firsts], grad_sizes[place][..., firsts])
        assert torch.equal(forth[place][..., 6:], sizes[place][..., 6:])
