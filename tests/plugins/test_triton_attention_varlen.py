"""What the conformance kit does not see of ``attention_varlen`` in Triton: neighbours, padding, tiles, launches."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from plugins.ragged import apart, spans
from torch import Tensor

import portakernel
from portakernel.authoring.triton import Processor, launch, pretending
from portakernel.references import attention_varlen as reference
from portakernel.triton_launch import interpreter
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.attention.sequences import Sequences, tile_count, tile_of_sequence
from portakernel_plugins.triton.attention.varlen import attention, backward

PLAIN: dict[str, Any] = {
    "causal": False,
    "scale": None,
    "window": (-1, -1),
    "softcap": 0.0,
    "max_seqlen_q": None,
    "max_seqlen_k": None,
}
ALL = (True,) * 7
EVERYTHING: dict[str, Any] = {"causal": True, "scale": 0.3, "window": (30, 4), "softcap": 2.0}


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ends(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


class Call:
    """Sequences of so many queries and keys, one after the other, with rows behind them that belong to none."""

    def __init__(self, queries: list[int], keys: list[int], heads: int = 2, key_heads: int = 1, padding: int = 0):
        self.ends = ends(queries), ends(keys)
        rows, columns = (int(of[-1]) + padding for of in self.ends)
        self.q, self.k = draw(rows, heads, 16), draw(columns, key_heads, 16, seed=1)
        self.v, self.grad = draw(columns, key_heads, 16, seed=2), draw(rows, heads, 16, seed=3)
        self.slopes: Tensor | None = None
        self.sinks: Tensor | None = None

    def with_all(self) -> Call:
        self.slopes, self.sinks = draw(self.q.shape[1], seed=4).abs(), draw(self.q.shape[1], seed=5)
        return self

    def half(self) -> Call:
        """In 16 bits, which blocks are copied of by descriptors."""
        self.q, self.k, self.v, self.grad = (x.half() for x in (self.q, self.k, self.v, self.grad))
        return self

    def forward(self, **values: Any) -> tuple[Tensor, Tensor]:
        given = (self.q, self.k, self.v, *self.ends)
        y, lse = attention(*given, alibi_slopes=self.slopes, sinks=self.sinks, **{**PLAIN, **values}, return_lse=True)
        return y, lse

    def gradients(self, needs: tuple[bool, ...] = ALL, **values: Any) -> tuple[Tensor | None, ...]:
        y, lse = self.forward(**values)
        given = (self.grad, self.q, self.k, self.v, *self.ends, self.slopes, self.sinks, y, lse)
        return backward(*given, **{**PLAIN, **values}, return_lse=False, needs=needs)

    def exactly(self, **values: Any) -> list[Tensor]:
        """``out``, ``lse`` and the gradients for q, k, v and sinks, in float64."""
        values = {**PLAIN, **values}
        q, k, v, grad, slopes, sinks = (
            None if x is None else x.double() for x in (self.q, self.k, self.v, self.grad, self.slopes, self.sinks)
        )
        y, lse = reference.forward(q, k, v, *self.ends, alibi_slopes=slopes, sinks=sinks, **values, return_lse=True)
        grads = reference.backward(grad, q, k, v, *self.ends, slopes, sinks, y, lse, **values, needs=ALL)
        return [y, lse, *(x for x in grads if x is not None)]

    def check(self, **values: Any) -> None:
        """All results of the rows that belong to sequences."""
        found = [*self.forward(**values), *(x for x in self.gradients(**values) if x is not None)]
        rows, columns = (slice(int(of[-1])) for of in self.ends)
        places = (rows, (slice(None), rows), rows, columns, columns, slice(None))
        for one, want, place in zip(found, self.exactly(**values), places, strict=False):
            torch.testing.assert_close(one[place].double(), want[place], rtol=3e-5, atol=1e-5)


@pytest.mark.turns(3)
@pytest.mark.parametrize("values", [{}, {"causal": True}, {"window": (20, 7)}, EVERYTHING], ids=str)
@pytest.mark.parametrize("featured", [False, True])
def test_sequences_longer_and_shorter_than_blocks_are_as_the_reference_has_them(values, featured):
    call = Call([70, 1, 0, 33, 5], [40, 100, 3, 0, 64], heads=4, key_heads=2)
    (call.with_all() if featured else call).check(**values)


@pytest.mark.turns(3)
@pytest.mark.parametrize("values", [{}, EVERYTHING, {"max_seqlen_q": 3, "max_seqlen_k": 70}], ids=str)
@pytest.mark.parametrize("queries", [[2, 3, 0, 3, 1], [40, 3, 0, 33, 1]], ids=["few", "many"])
@pytest.mark.parametrize("half", [False, True])
def test_nothing_of_a_neighbour_reaches_a_sequence(values, queries, half):
    def made() -> Call:
        call = Call(queries, keys, padding=4).with_all()
        return call.half() if half else call

    keys = [35, 70, 6, 0, 20]
    values = {**values, **({"max_seqlen_q": max(queries)} if "max_seqlen_q" in values else {})}
    whole = made()
    parts = spans(list(zip(queries, keys, strict=True)))
    want = [*whole.forward(**values), *whole.gradients(**values)[:3]]
    for group in apart(len(parts)):
        call, owned = made(), [parts[number] for number in group]
        for tensor, side in ((call.q, 0), (call.grad, 0), (call.k, 1), (call.v, 1)):
            others = torch.ones(len(tensor), dtype=torch.bool)
            for own in owned:
                others[own[side]] = False
            tensor[others] = math.nan
        found = [*call.forward(**values), *call.gradients(**values)[:3]]
        for of_queries, of_keys in owned:
            places = (of_queries, (slice(None), of_queries), of_queries, of_keys, of_keys)
            for one, other, place in zip(found, want, places, strict=True):
                assert one[place].isfinite().all() or one[place].eq(-math.inf).any()
                assert one[place].equal(other[place])


def test_rows_that_belong_to_no_sequence_are_zeros_and_have_no_part_in_gradients():
    call, padded = (Call([40, 7], [20, 33], padding=padding).with_all() for padding in (0, 50))
    for name in ("q", "k", "v", "grad"):
        own, tensor = getattr(call, name), getattr(padded, name)
        tensor[: len(own)] = own
        tensor[len(own) :] = math.nan
    y, lse = padded.forward(causal=True)
    own_y, own_lse = call.forward(causal=True)
    assert y[:47].equal(own_y)
    assert lse[:, :47].equal(own_lse)
    assert not y[47:].any()
    torch.testing.assert_close(call.gradients()[6], padded.gradients()[6])
    for own, gradient in zip(call.gradients(causal=True)[:3], padded.gradients(causal=True)[:3], strict=True):
        assert gradient[: len(own)].equal(own)
        assert not gradient[len(own) :].any()


def test_memory_beside_the_results_is_left_alone():
    call = Call([3, 0, 20], [9, 4, 30], heads=10, key_heads=2, padding=5)
    around, beside = torch.full((30, 11, 17), 5.0), torch.full((12, 30), 5.0)
    out, lse = around[:28, :10, :16], beside[:10, :28]
    attention(call.q, call.k, call.v, *call.ends, **PLAIN, return_lse=True, out=(out, lse))
    want_y, want_lse = call.forward()
    assert out.equal(want_y)
    assert lse.equal(want_lse)
    assert (around[28:] == 5.0).all()
    assert (around[:, 10] == 5.0).all()
    assert (around[..., 16] == 5.0).all()
    assert (beside[10:] == 5.0).all()
    assert (beside[:, 28:] == 5.0).all()


def test_other_lengths_in_tensors_of_the_same_shapes_have_the_same_launches(monkeypatch):
    launches: list[tuple[Any, ...]] = []
    run = interpreter.run

    def record(kernel, grid, args, meta):
        launches.append((kernel.__name__, grid, [x for x in args if not isinstance(x, Tensor)], meta))
        run(kernel, grid, args, meta)

    monkeypatch.setattr(interpreter, "run", record)
    call = Call([60, 3, 0], [10, 41, 12])
    seen = []
    for queries, keys in (([60, 3, 0], [10, 41, 12]), ([1, 1, 1], [0, 63, 0]), ([0, 0, 0], [21, 21, 21])):
        call.ends = ends(queries), ends(keys)
        call.check(causal=True)
        seen.append(list(launches))
        launches.clear()
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize(
    ("queries", "keys", "padding"),
    [([], [], 0), ([], [], 3), ([0, 0], [0, 0], 0), ([0, 0], [3, 4], 0), ([3, 4], [0, 0], 0), ([0], [0], 20)],
)
def test_without_sequences_queries_or_keys_results_are_zeros(queries, keys, padding):
    call = Call(queries, keys, padding=padding)
    y, lse = call.forward(causal=True)
    assert not y.any()
    assert (lse == -math.inf).all()
    grads = call.gradients(causal=True)
    for gradient, tensor in zip(grads[:3], (call.q, call.k, call.v), strict=True):
        assert gradient.shape == tensor.shape
        assert not gradient.any()
    call.with_all()
    y, lse = call.forward()
    assert not y.any()
    assert lse.equal(call.sinks[:, None].expand_as(lse))
    assert not call.gradients()[6].any()


@pytest.mark.turns(3)
@pytest.mark.parametrize("values", [{}, {"causal": True}, {"window": (150, 0)}, {"softcap": 2.0}], ids=str)
@pytest.mark.parametrize("bounds", [{"max_seqlen_q": 2}, {"max_seqlen_q": 2, "max_seqlen_k": 300}], ids=str)
def test_few_queries_pack_heads_and_share_keys(values, bounds, launched):
    call = Call([1, 2, 0, 1], [288, 5, 40, 300], heads=6, key_heads=2).with_all()
    values = {**values, **bounds}
    with pretending(Processor("interpreter", 64, 32), lambda *_: None):
        found, again = call.forward(**values), call.forward(**values)
        assert launched == ["_forward", "_merge"] * 2
        call.check(**values)
    assert all(one.equal(other) for one, other in zip(found, again, strict=True))


def test_few_queries_share_keys_that_descriptors_copy(launched):
    call = Call([1, 2, 0, 1], [288, 5, 40, 300], heads=6, key_heads=2).with_all().half()
    bounds = {"max_seqlen_q": 2, "max_seqlen_k": 300}
    with pretending(Processor("interpreter", 64, 32), lambda *_: None):
        found = call.forward(causal=True, **bounds)
    assert launched == ["_forward", "_merge"]
    for one, want in zip(found, call.exactly(causal=True, **bounds), strict=False):
        torch.testing.assert_close(one.double(), want, rtol=2e-3, atol=2e-3)


def test_a_long_sequence_with_a_bound_has_the_bounds_tiles():
    call = Call([520, 3], [33, 2], heads=1)
    call.check(causal=True)
    call.check(causal=True, max_seqlen_q=520, max_seqlen_k=33)


def test_ends_may_stand_apart_in_memory():
    call = Call([5, 40, 0, 7], [9, 33, 4, 20])
    want = [*call.forward(causal=True), *call.gradients(causal=True)[:3]]
    call.ends = tuple(torch.stack([of, of + 7], 1)[:, 0] for of in call.ends)
    found = [*call.forward(causal=True), *call.gradients(causal=True)[:3]]
    assert call.ends[0].stride() == (2,)
    assert all(one.equal(other) for one, other in zip(found, want, strict=True))


def test_of_gradients_only_those_that_are_asked_for_are_computed(launched):
    call = Call([5, 7], [9, 3]).with_all()
    asked = {
        (0,): ["_row_terms", "_gradient_of_queries"],
        (1,): ["_row_terms", "_gradient_of_keys"],
        (2,): ["_row_terms", "_gradient_of_keys"],
        (6,): ["_row_terms"],
        (0, 1, 2): ["_row_terms", "_gradient_of_keys", "_gradient_of_queries"],
    }
    for wanted, kernels in asked.items():
        launched.clear()
        found = call.gradients(needs=tuple(place in wanted for place in range(7)))
        assert launched[1:] == kernels
        assert [place for place in range(7) if found[place] is not None] == list(wanted)


@triton.jit(do_not_specialize=["sequences", "rows"])
def _tiles(ends, others, found, sequences, rows, packed: tl.constexpr, block: tl.constexpr):
    number = tl.program_id(0)
    tile, first, here, other_first, there, _sequence = tile_of_sequence(
        number, ends, others, sequences, rows, packed, block
    )
    found += number * 5
    tl.store(found, tile)
    tl.store(found + 1, first)
    tl.store(found + 2, here)
    tl.store(found + 3, other_first)
    tl.store(found + 4, there)


@pytest.mark.turns(3)
@pytest.mark.parametrize("count", [0, 1, 2, 127, 128, 129, 300, 17000])
@pytest.mark.parametrize(("packed", "block"), [(1, 16), (3, 16), (40, 16)])
def test_each_tile_of_each_sequence_is_found_once_and_there_is_room_for_all(count, packed, block):
    if count == 17000 and packed == 40:
        packed, block = 1, 4096
    generator = torch.Generator().manual_seed(count + packed)
    lengths = torch.randint(0, 5, (count,), generator=generator) * torch.randint(0, 2, (count,), generator=generator)
    if count > 2:
        lengths[-2] = 100
    of, others = ends(lengths.tolist()), ends([n % 3 for n in range(count)])
    rows = int(of[-1]) + 30
    sequences = Sequences(of, others, (rows, rows))
    tiles = tile_count(rows, packed, block, sequences)
    # of so many only some
    asked = min(tiles, 600 if count < 17000 else 100)
    found = torch.full((tiles, 5), -1)
    launch(_tiles, (asked, 1), of, others, found, count, rows, packed=packed, block=block)
    want = [
        (tile, int(of[n]), length, int(others[n]), n % 3 if n < count else 0)
        for n, length in enumerate([*lengths.tolist(), 30])
        for tile in range(-(-length * packed // block))
    ]
    assert len(want) <= tiles
    busy = [tuple(row) for row in found[:asked].tolist() if row[0] * block < row[2] * packed]
    assert busy == want[: len(busy)]
    assert asked < tiles or len(busy) == len(want)


@pytest.mark.parametrize("target", ["nvidia:sm_80", "nvidia:sm_90", "nvidia:sm_120", "amd:gfx942", "amd:gfx1201"])
@pytest.mark.parametrize("feature", ["softcap", "sinks", "alibi_slopes"])
def test_what_no_library_has_is_served_by_it(target, feature):
    ends_are = {"cu_seqlens_q": "int32", "cu_seqlens_k": "int32"}
    dtypes = {"q": "bfloat16", **ends_are, **({} if feature == "softcap" else {feature: "float32"})}
    values = {"softcap": 30.0} if feature == "softcap" else {}
    decision = portakernel.explain("attention_varlen", target=target, dtype=dtypes, **values)
    able = [one.kernel.name for one in decision.candidates if one.status != "rejected"]
    assert able.index("triton.attention_varlen") < able.index("reference.attention_varlen")
    with portakernel.use("triton.attention_varlen"):
        decision = portakernel.explain("attention_varlen", target=target, dtype=dtypes, **values)
    assert decision.chosen is not None
    assert decision.chosen.name == "triton.attention_varlen"


@pytest.mark.parametrize(
    ("target", "tokens", "name"),
    [
        ("nvidia:sm_80", 256, "torch.attention_varlen_flash"),
        ("nvidia:sm_80", 4096, "torch.attention_varlen_flash"),
        ("nvidia:sm_90", 16383, "triton.attention_varlen"),
        ("nvidia:sm_90", 16384, "triton.attention_varlen_hopper"),
    ],
)
def test_plain_calls_are_pytorchs_but_where_that_was_measured(target, tokens, name):
    heads = {"q": 8, "k": 2, "v": 2}
    shape = {tensor: (tokens, count, 64) for tensor, count in heads.items()}
    shape |= {"cu_seqlens_q": (5,), "cu_seqlens_k": (5,)}
    decision = portakernel.explain("attention_varlen", target=target, dtype="bfloat16", shape=shape, causal=True)
    assert decision.chosen is not None
    assert decision.chosen.name == name


@pytest.mark.parametrize(
    ("sequences", "tokens", "width", "phase", "name"),
    [
        (64, 8192, 64, "inference", "torch.attention_varlen_flash"),
        (64, 8193, 64, "inference", "triton.attention_varlen"),
        (64, 8192, 128, "inference", "triton.attention_varlen_hopper"),
        (2, 1900, 128, "inference", "triton.attention_varlen_hopper"),
        (2, 1899, 128, "inference", "triton.attention_varlen"),
        (32, 3200, 128, "inference", "triton.attention_varlen"),
        (2, 3000, 64, "inference", "triton.attention_varlen_hopper"),
        (2, 2999, 64, "inference", "triton.attention_varlen"),
        (6, 900, 96, "inference", "triton.attention_varlen"),
        (7, 900, 96, "inference", "torch.attention_varlen_flash"),
        (7, 901, 96, "inference", "triton.attention_varlen"),
        (7, 4500, 72, "inference", "torch.attention_varlen_flash"),
        (7, 4501, 72, "inference", "triton.attention_varlen"),
        (4, 512, 256, "inference", "torch.attention_varlen_flash"),
        (4, 513, 256, "inference", "triton.attention_varlen"),
        (15, 1600, 96, "backward", "triton.attention_varlen"),
        (16, 1600, 96, "backward", "torch.attention_varlen_flash"),
        (16, 1600, 64, "backward", "triton.attention_varlen_hopper_atomic"),
        (15, 1600, 64, "backward", "triton.attention_varlen"),
    ],
)
def test_many_short_sequences_go_where_that_was_measured(sequences, tokens, width, phase, name):
    shape = {tensor: (tokens, count, width) for tensor, count in {"q": 16, "k": 4, "v": 4}.items()}
    shape |= {"cu_seqlens_q": (sequences + 1,), "cu_seqlens_k": (sequences + 1,)}
    asked = {"target": "nvidia:sm_90", "dtype": "bfloat16", "shape": shape, "causal": True}
    decision = portakernel.explain("attention_varlen", phase=phase, **asked)
    assert decision.chosen is not None
    assert decision.chosen.name == name


@pytest.mark.parametrize(
    ("tokens", "key_heads", "width", "name"),
    [
        (1024, 16, 64, "triton.attention_varlen_hopper_atomic"),  # 128 tiles
        (1023, 16, 64, "triton.attention_varlen_hopper_atomic"),  # fewer, but short: no heads share their keys
        (1875, 4, 64, "triton.attention_varlen"),
        (1875, 4, 96, "triton.attention_varlen"),
        (262144, 2, 256, "torch.attention_varlen_flash"),
    ],
)
def test_gradients_go_to_one_kernel_where_its_tiles_fill_the_chip_and_of_wide_heads_to_pytorchs(
    tokens, key_heads, width, name
):
    shape = {tensor: (tokens, count, width) for tensor, count in {"q": 16, "k": key_heads, "v": key_heads}.items()}
    shape |= {"cu_seqlens_q": (5,), "cu_seqlens_k": (5,)}
    asked = {"target": "nvidia:sm_90", "dtype": "bfloat16", "shape": shape, "causal": True}
    decision = portakernel.explain("attention_varlen", phase="backward", **asked)
    assert decision.chosen is not None
    assert decision.chosen.name == name
