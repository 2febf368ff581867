"""How attention's gradients in Triton share the queries of a block of keys among programs, where blocks are few."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.authoring.triton import Processor, pretending
from portakernel.references import attention as reference
from portakernel.references import attention_varlen as reference_varlen
from portakernel.triton_launch import interpreter
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.attention import split_queries, varlen
from portakernel_plugins.triton.attention.backward import backward
from portakernel_plugins.triton.attention.forward import attention
from portakernel_plugins.triton.attention.split_keys import split_count

PLAIN: dict[str, Any] = {"causal": False, "scale": None, "window": (-1, -1), "softcap": 0.0}
BOUNDS: dict[str, Any] = {"max_seqlen_q": None, "max_seqlen_k": None}
BOTH = (False, True, True, False, False, False)
SHARED = ["_gradient_of_keys", "_add_parts"]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture
def grids(monkeypatch):
    """How many programs each launch has, on a processor for twelve; few queries are worth a part."""
    found: list[tuple[str, int]] = []
    run = interpreter.run

    def record(kernel, grid, *given):
        found.append((kernel.__name__, grid[0] * grid[1]))
        run(kernel, grid, *given)

    monkeypatch.setattr(interpreter, "run", record)
    monkeypatch.setattr(split_queries, "_FEWEST_QUERIES", 40)
    with interpreting(), pretending(Processor("interpreter", 12, 32), lambda *_: None):
        yield found


class Call:
    """One call's tensors; ``heads`` of each key head."""

    def __init__(self, queries: int, keys: int, heads: int, key_heads: int = 1, dtype=torch.float32, width: int = 16):
        self.q = draw(1, queries, heads * key_heads, 24, dtype=dtype)
        self.k, self.v = (draw(1, keys, key_heads, w, seed=w, dtype=dtype) for w in (24, width))
        self.grad = draw(1, queries, heads * key_heads, width, seed=3, dtype=dtype)
        self.slopes: Tensor | None = None
        self.bias: Tensor | None = None

    def gradients(self, needs: tuple[bool, ...] = BOTH, **values: Any) -> list[Tensor | None]:
        how = {**PLAIN, **values}
        y, lse = attention(self.q, self.k, self.v, alibi_slopes=self.slopes, bias=self.bias, **how, return_lse=True)
        given = (self.q, self.k, self.v, self.slopes, self.bias, None)
        return list(backward(self.grad, *given, y, lse, **how, return_lse=False, needs=needs)[1:3])

    def exactly(self, **values: Any) -> list[Tensor | None]:
        how = {**PLAIN, **values}
        wide = (None if x is None else x.double() for x in (self.q, self.k, self.v, self.slopes, self.bias, None))
        given = tuple(wide)
        y, lse = reference.forward(*given[:3], alibi_slopes=given[3], bias=given[4], sinks=None, **how, return_lse=True)
        return list(reference.backward(self.grad.double(), *given, y, lse, **how, needs=BOTH)[1:3])


def assert_near(found, exact, tolerance: float = 2e-5) -> None:
    for one, want in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), want, rtol=tolerance, atol=tolerance)


def parts_of(grids: list[tuple[str, int]], blocks: int) -> float:
    """Of the first launch of gradients of keys, which has so many blocks; its sums are added up next."""
    place = [name for name, _ in grids].index("_gradient_of_keys")
    assert [name for name, _ in grids[place : place + 2]] == SHARED
    return grids[place][1] / blocks


@pytest.mark.turns(3)
@pytest.mark.parametrize("heads", [1, 4, 7])
@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({}, 6),
        ({"causal": True}, 16),
        ({"window": (30, 70)}, 6),
        ({"window": (30, -1)}, 16),
        ({"window": (-1, 45)}, 16),
        ({"softcap": 2.0, "scale": -0.3}, 6),
    ],
    ids=str,
)
def test_parts_of_the_queries_are_added_up_to_the_same_gradients(heads, values, parts, grids):
    call = Call(150, 50, heads)
    found, again = call.gradients(**values), call.gradients(**values)
    how_many = min(parts, 150 * heads // 40)
    assert parts_of(grids, 2) == how_many
    assert_near(found, call.exactly(**values))
    assert all(one.equal(other) for one, other in zip(found, again, strict=True))


@pytest.mark.parametrize("heads", [4, 7])
def test_bias_and_alibi_are_those_of_each_heads_own_steps(heads, grids):
    call = Call(70, 40, heads)
    call.slopes, call.bias = draw(heads, seed=8).abs(), draw(1, heads, 70, 40, seed=9)
    call.bias[0, 1, :9] = -math.inf
    found = call.gradients(causal=True)
    assert parts_of(grids, 2) > 2
    assert_near(found, call.exactly(causal=True))


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_of_parts_only_the_gradients_that_are_asked_for_are_added_up(wanted, grids):
    call = Call(120, 33, 7, key_heads=2)
    found = call.gradients((False, *wanted, False, False, False), causal=True)
    assert parts_of(grids, 4) > 1
    assert [x is not None for x in found] == list(wanted)
    exact = call.exactly(causal=True)
    assert_near([x for x in found if x is not None], [x for x, asked in zip(exact, wanted, strict=True) if asked])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_that_descriptors_read_for_are_rounded_once(dtype, grids):
    call = Call(100, 45, 7, key_heads=2, dtype=dtype, width=40)
    found, again = call.gradients(causal=True), call.gradients(causal=True)
    assert parts_of(grids, 4) > 1
    assert_near(found, call.exactly(causal=True), 2.0**-7 if dtype is torch.float16 else 2.0**-4)
    assert all(one.equal(other) for one, other in zip(found, again, strict=True))


def test_more_parts_than_steps_leave_zeros(monkeypatch, grids):
    monkeypatch.setattr(split_queries, "_FEWEST_QUERIES", 1)
    call = Call(40, 30, 2)
    found = call.gradients(causal=True)
    assert parts_of(grids, 1) == 16  # of two heads with two blocks of queries each
    assert_near(found, call.exactly(causal=True))


def ends(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


@pytest.mark.parametrize("values", [{}, {"causal": True}, {"window": (20, 7), "softcap": 2.0}], ids=str)
@pytest.mark.parametrize("heads", [4, 7])
def test_sequences_share_their_queries_too(values, heads, grids):
    """Rows behind the last one belong to none, and are zeros."""
    queries, keys = [70, 1, 0, 33, 5], [40, 10, 3, 0, 6]
    q, grad = (draw(109 + 6, heads, 16, seed=seed) for seed in (0, 3))
    k, v = (draw(59 + 6, 1, 16, seed=seed) for seed in (1, 2))
    for x, rows in ((q, 109), (grad, 109), (k, 59), (v, 59)):
        x[rows:] = math.nan
    both, how = (ends(queries), ends(keys)), {**PLAIN, **BOUNDS, **values}
    slopes = draw(heads, seed=4).abs()
    y, lse = varlen.attention(q, k, v, *both, alibi_slopes=slopes, **how, return_lse=True)
    needs = (*BOTH, False)

    def found() -> tuple[Tensor | None, ...]:
        given = (grad, q, k, v, *both, slopes, None, y, lse)
        return varlen.backward(*given, **how, return_lse=False, needs=needs)[1:3]

    first, again = found(), found()
    # two blocks and one for each sequence, at most
    assert parts_of(grids, 65 // 32 + 5 + 1) == (5 if heads == 4 and "window" in values else 6)
    wide = tuple(x.double()[:rows] for x, rows in ((q, 109), (k, 59), (v, 59)))
    y, lse = reference_varlen.forward(*wide, *both, alibi_slopes=slopes.double(), sinks=None, **how, return_lse=True)
    given = (grad.double()[:109], *wide, *both, slopes.double(), None, y, lse)
    assert_near([x[:59] for x in first], reference_varlen.backward(*given, **how, needs=needs)[1:3], 3e-5)
    assert not any(x[59:].any() for x in first)
    assert all(one.equal(other) for one, other in zip(first, again, strict=True))


def parts_on_an_h100(shape: tuple[int, int, int, int], width: int = 128, **values: Any) -> tuple[int, int]:
    """Parts of a call of so many batches, tokens, heads and key heads; bytes of memory for their sums."""
    batches, tokens, heads, key_heads = shape
    q, k = (torch.empty(*shape[:2], n, width, dtype=torch.bfloat16, device="meta") for n in shape[2:])
    launches = list[tuple[int, tuple[Any, ...]]]()
    with pretending(Processor("sm_90", 132, 32), lambda _, grid, args, __: launches.append((grid[0] * grid[1], args))):
        given = (q, q, k, k, None, None, None, q, torch.empty(batches, heads, tokens, device="meta"))
        backward(*given, **{**PLAIN, "causal": True, **values}, return_lse=False, needs=BOTH)
    floats = [x for x in launches[1][1] if isinstance(x, Tensor) and x.dim() == 5]
    return launches[1][0] // (batches * key_heads * (tokens // 64)), sum(x.numel() * 4 for x in floats)


@pytest.mark.parametrize(
    ("shape", "values", "parts"),
    [
        ((1, 4096, 32, 1), {}, 16),
        ((1, 4096, 32, 1), {"causal": False}, 4),
        ((1, 4096, 28, 4), {}, 4),
        ((1, 4096, 28, 4), {"causal": False}, 1),
        ((1, 1024, 32, 2), {}, 16),
        ((1, 4096, 32, 8), {}, 2),
        # enough blocks, too few queries, a window that leaves too few
        ((2, 2048, 16, 16), {}, 1),
        ((1, 128, 32, 8), {}, 1),
        ((1, 4096, 16, 1), {"window": (127, 0)}, 2),
        ((1, 4096, 4, 1), {"window": (127, 0)}, 1),
    ],
)
def test_parts_fill_an_h100_four_times_at_most(shape, values, parts):
    found, bytes_ = parts_on_an_h100(shape, **values)
    assert found == parts
    assert bytes_ <= 4 * 264 * 64 * 256 * 4


@pytest.mark.parametrize(
    ("queries", "keys", "parts"),
    [
        (512, 512, 1),  # as many queries as keys, and few: parts would be as much to write
        (1024, 1024, 1),
        (512, 1024, 1),
        (511, 1024, 8),
        (40, 1024, 8),
        (1025, 1025, 8),
    ],
)
def test_keys_are_not_shared_where_parts_would_hold_more_than_they_save(queries, keys, parts):
    assert split_count(2, queries, keys, 64, 16) == parts


def test_a_part_has_two_blocks_of_keys_and_a_program():
    assert split_count(1, 1, 1024, 64, 132) == 8
    assert split_count(100, 1, 65536, 64, 132) == 1
