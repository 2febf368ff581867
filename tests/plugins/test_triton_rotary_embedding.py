"""What the Triton kernel of ``rotary_embedding`` does beyond the conformance kit's cases, in Triton's interpreter."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("triton")

import torch

from portakernel.errors import ArgumentValueError
from portakernel.references import rotary_embedding as reference
from portakernel.triton_launch import interpreter
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.embeddings import rotary_embedding as rotary


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


@pytest.fixture
def grids(monkeypatch):
    """The programs of each launch."""
    found: list[int] = []
    run = interpreter.run

    def record(kernel, grid, *rest):
        found.append(grid[0] * grid[1])
        run(kernel, grid, *rest)

    monkeypatch.setattr(interpreter, "run", record)
    return found


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tables(length, pairs):
    return draw(length, pairs, seed=8), draw(length, pairs, seed=9)


def close(found, exact):
    for one, other in zip(found, exact, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_queries_and_keys_are_one_launch(interleaved, grids):
    # 64 rows of 16 pairs are a program's: 91 rows of queries are two programs', 39 of keys one's
    q, k, (cos, sin) = draw(13, 7, 32), draw(13, 3, 32, seed=1), tables(13, 16)
    found = rotary.rotary_embedding(q, k, cos, sin, interleaved=interleaved)
    close(found, reference.forward(q, k, cos, sin, interleaved=interleaved))
    assert grids == [3]


@pytest.mark.parametrize("leading", [(), (1,), (5, 7), (40, 2), (3, 1, 4), (6, 1)])
def test_positions_count_anew_in_each_sequence(leading):
    q, k, (cos, sin) = draw(*leading, 3, 8), draw(*leading, 1, 8, seed=1), tables(9, 4)
    close(rotary.rotary_embedding(q, k, cos, sin), reference.forward(q, k, cos, sin))


LAYOUTS = {
    "halves of one projection": lambda: draw(2, 5, 6 * 16).unflatten(-1, (6, 16))[..., 1:4, :],
    "heads before tokens": lambda: draw(3, 10, 16).transpose(0, 1).unflatten(0, (2, 5)),
    "batches after heads": lambda: draw(2, 3, 5, 16).transpose(1, 2),
    "every second element": lambda: draw(2, 5, 3, 32)[..., ::2],
    "one token for all": lambda: draw(3, 16).expand(2, 5, 3, 16),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_heads_where_they_lie_and_writes_over_them(layout):
    q, k, (cos, sin) = LAYOUTS[layout](), draw(2, 5, 2, 16, seed=1), tables(5, 6)
    expected = reference.forward(q, k, cos, sin)
    close(rotary.rotary_embedding(q, k, cos, sin), expected)
    close(rotary.backward(q, k, cos, sin, None), reference.backward(q, k, cos, sin, None))
    if 0 in q.stride():
        return
    found = rotary.rotary_embedding(q, k, cos, sin, out=(q, k))
    assert found[0] is q
    assert found[1] is k
    close(found, expected)


@pytest.mark.parametrize("positions", [torch.arange(10).reshape(2, 5).flip(0), torch.arange(10).reshape(5, 2).t()])
def test_positions_may_have_any_strides(positions):
    q, k, (cos, sin) = draw(2, 5, 3, 8), draw(2, 5, 1, 8, seed=1), tables(10, 4)
    close(rotary.rotary_embedding(q, k, cos, sin, positions), reference.forward(q, k, cos, sin, positions))


def test_what_passes_through_keeps_its_bits():
    q, (cos, sin) = draw(3, 2, 10, dtype=torch.float16), tables(3, 2)
    bits = q.view(torch.int16)
    bits[0, 0, 4:] = torch.tensor([0x7C01, 0x7E55, -1, 1, -32768, 0x7C00])  # NaNs, a subnormal number, -0, infinity
    turned, _ = rotary.rotary_embedding(q, q, cos, sin)
    assert torch.equal(turned.view(torch.int16)[..., 4:], bits[..., 4:])


def test_nothing_is_written_beyond_the_heads():
    wide = torch.full((5, 4, 16), -1.0)
    out = wide[:, 1:3, 2:13]
    q, (cos, sin) = draw(5, 2, 11), tables(5, 4)
    expected = reference.forward(q, q, cos, sin)[0]
    turned, _ = rotary.rotary_embedding(q, q, cos, sin, out=(out, torch.empty(5, 2, 11)))
    close((turned,), (expected,))
    out.fill_(-1.0)
    assert torch.equal(wide, torch.full_like(wide, -1.0))


@pytest.mark.parametrize("present", [(True, False), (False, True), (False, False)])
def test_backward_turns_the_gradients_that_there_are(present, grids):
    grads = [draw(4, 3, 8) if present[0] else None, draw(4, 2, 8, seed=1) if present[1] else None]
    cos, sin = tables(4, 3)
    close(rotary.backward(*grads, cos, sin, None), reference.backward(*grads, cos, sin, None))
    both = (draw(4, 3, 8), draw(4, 2, 8, seed=1))
    needs = (*present, False, False, False)
    close(rotary.backward(*both, cos, sin, None, needs=needs), reference.backward(*both, cos, sin, None, needs=needs))
    assert len(grids) == (2 if any(present) else 0)


def test_tokens_may_lie_more_than_2_to_the_31_elements_apart():
    apart = 2**31 + 16
    q = torch.empty(apart + 32, dtype=torch.bfloat16).as_strided((2, 2, 16), (apart, 16, 1))
    table = torch.empty(apart + 8, dtype=torch.bfloat16).as_strided((2, 8), (apart, 1))
    q.copy_(draw(2, 2, 16))
    table.copy_(draw(2, 8, seed=1))
    expected = rotary.rotary_embedding(q.clone(), q.clone(), table.clone(), table.clone())
    found = rotary.rotary_embedding(q, q.clone(), table, table, out=(q, torch.empty(2, 2, 16, dtype=q.dtype)))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_tables_must_cover_the_tokens_where_there_are_no_positions():
    message = (
        "rotary_embedding: cos and sin have 3 positions (L), but the last leading dimension of q has 4 tokens;"
        " without positions, a token's position is its index there"
    )
    q, (cos, sin) = draw(2, 4, 1, 8), tables(3, 4)
    with pytest.raises(ArgumentValueError, match=f"^{re.escape(message)}$"):
        rotary.rotary_embedding(q, q, cos, sin)
