"""How attention in Triton reads blocks of rows: by descriptors where TMA can copy them, through pointers elsewhere."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from portakernel.authoring.triton import Processor, launch, pretending
from portakernel.references import attention as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.attention import gradient_of_keys, varlen
from portakernel_plugins.triton.attention.backward import backward
from portakernel_plugins.triton.attention.bounded_scores import exponents
from portakernel_plugins.triton.attention.forward import attention
from portakernel_plugins.triton.attention.head_parts import narrowest_values, parts_of
from portakernel_plugins.triton.attention.row_blocks import sources
from portakernel_plugins.triton.attention.scores import scoring
from portakernel_plugins.triton.attention.tangents import NEAR, SWIFT, tangent
from portakernel_plugins.triton.attention.tiles import tiles_of_queries
from portakernel_plugins.triton.launching.configurations import configuration

PLAIN: dict[str, Any] = {"causal": False, "scale": None, "window": (-1, -1), "softcap": 0.0}
BLOCKS = {"BLOCK_D": 64, "REST_D": 16, "BLOCK_E": 32, "REST_E": 0}


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def moved(x: Tensor) -> Tensor:
    """The same numbers at an address that TMA does not take."""
    memory = x.new_empty(x.numel() + 1)[1:]
    return memory.view(x.shape).copy_(x)


def test_what_is_aligned_is_described_with_the_rest_of_its_rows():
    x, y = draw(2, 50, 3, 80), draw(2, 50, 3, 32)
    first, rest, other, nothing = sources(x, y, 16, BLOCKS, True)
    assert [first.block_shape, rest.block_shape, other.block_shape] == [[1, 16, 1, 64], [1, 16, 1, 16], [1, 16, 1, 32]]
    assert first.base is x
    assert nothing is None


def test_of_a_dimension_of_one_any_stride_will_do():
    x = draw(1, 50, 1, 32).as_strided((1, 50, 1, 32), (3, 32, 7, 1))
    first, *_ = sources(x, x, 16, {**BLOCKS, "BLOCK_D": 32, "REST_D": 0}, True)
    assert isinstance(first, TensorDescriptor)


@pytest.mark.parametrize(
    "unsuited",
    [
        moved(draw(2, 50, 3, 32)),
        draw(2, 1, 3, 32).expand(2, 50, 3, 32),
        draw(2, 50, 3, 64)[..., ::2],
        draw(2, 50, 3, 36)[..., :32],
        draw(2, 0, 3, 32),
    ],
    ids=["address", "expanded", "every second lane", "rows between", "empty"],
)
def test_what_tma_does_not_take_is_read_through_pointers(unsuited):
    x = draw(2, 50, 3, 80)
    assert sources(x, unsuited, 16, BLOCKS, True) == (x, None, unsuited, None)
    assert sources(x, x, 16, BLOCKS, False) == (x, None, x, None)


@pytest.mark.turns(4)
@pytest.mark.parametrize("values", [{}, {"causal": True}, {"window": (20, 9)}, {"softcap": 2.0}], ids=str)
@pytest.mark.parametrize("width", [16, 24, 40])
@pytest.mark.parametrize("queries", [3, 37])
def test_both_ways_give_the_same_bits(values, width, queries):
    # each meets each width, each number of queries and each mask
    dtype = (torch.float16, torch.bfloat16)[(width // 8 + (queries > 3)) % 2]
    q, k, v = (
        draw(2, queries, 4, width, dtype=dtype),
        draw(2, 75, 2, width, seed=1, dtype=dtype),
        draw(2, 75, 2, 16, seed=2, dtype=dtype),
    )
    grad = draw(2, queries, 4, 16, seed=3, dtype=dtype)
    how = {**PLAIN, **values}

    def all_of(*tensors: Tensor):
        q, k, v, grad = tensors
        y, lse = attention(q, k, v, **how, return_lse=True)
        given = (q, k, v, None, None, None)
        return y, lse, *backward(grad, *given, y, lse, **how, return_lse=False, needs=(True,) * 6)[:3]

    with interpreting():
        described = all_of(q, k, v, grad)
        pointed = all_of(*map(moved, (q, k, v, grad)))
    for one, other in zip(described, pointed, strict=True):
        assert torch.equal(one, other)


def test_what_lies_behind_the_keys_and_queries_leaves_no_trace():
    q, k, v, grad = (draw(2, 90, 2, 16, seed=seed) for seed in range(4))
    for x in (q, k, v, grad):
        x[:, 70:] = math.nan
    q, k, v, grad = (x[:, :70] for x in (q, k, v, grad))
    with interpreting():
        y, lse = attention(q, k, v, **PLAIN, return_lse=True)
        found = backward(grad, q, k, v, None, None, None, y, lse, **PLAIN, return_lse=False, needs=(True,) * 6)
    assert all(bool(x.isfinite().all()) for x in (y, lse, *found[:3]))


def test_huge_scores_are_told_apart_by_a_scale_that_is_a_power_of_two():
    q = draw(1, 4, 1, 16)
    for scale, coarse in ((0.3, 0.5), (3e30, 2.0**102)):
        how = scoring(q, q, False, scale / math.log2(math.e), (-1, -1), 0.0)
        assert math.isclose(how.scale, scale)
        assert how.coarse == coarse
        assert how.is_folded
    assert scoring(q, q, False, -0.3 / math.log2(math.e), (-1, -1), 0.0).coarse == 0.5
    assert scoring(q, q, False, -1e30, (-1, -1), 3.0 / math.log2(math.e)).coarse == 4.0
    assert not scoring(q, q, False, 0.0, (-1, -1), 0.0).is_folded


@triton.jit
def _tangents(x, y, KIND: tl.constexpr):  # noqa: N803 - as Triton's constants are named
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(y + at, tangent(tl.load(x + at), KIND))


KINDS_OF_TANGENTS = pytest.mark.parametrize(
    ("device", "kind"),
    [
        ("cpu", NEAR),
        pytest.param(
            "cuda",
            SWIFT,
            marks=pytest.mark.skipif(not torch.cuda.is_available() or bool(torch.version.hip), reason="no NVIDIA GPU"),
        ),
    ],
)


@KINDS_OF_TANGENTS
def test_tangents_for_16_bits_are_near(device, kind):
    # small ones alone, as the polynomial wants them, and others beside such
    small = torch.linspace(-0.5, 0.5, 2048)
    x = torch.cat([small, torch.linspace(-9.0, 9.0, 2045), torch.tensor([float("inf"), -float("inf"), float("nan")])])
    x = x.to(device)
    y = torch.empty_like(x)
    with interpreting() if device == "cpu" else nullcontext():
        launch(_tangents, (1, 1), x, y, KIND=kind.value, num_warps=4)
    torch.testing.assert_close(y.double(), x.double().tanh(), rtol=0.0, atol=2.0**-21, equal_nan=True)


@triton.jit
def _exponents(x, y, scale, cap, KIND: tl.constexpr, WIDTH: tl.constexpr):  # noqa: N803
    at = tl.arange(0, 64)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(y + at, exponents(tl.load(x + at), scale, cap, KIND))


@pytest.mark.parametrize("softcap", [1e-3, 5.0, 41.0, 50.0])
@pytest.mark.parametrize("width", [32, 64, 128])  # 16, 32 and 64 elements for each thread
@KINDS_OF_TANGENTS
def test_exponents_of_bounded_scores_are_near(device, kind, width, softcap):
    for size, scale in ((0.5, 1.0), (9.0, 1.0), (0.5, -(2.0**-15)), (100.0, 2.0**15)):
        z = torch.linspace(-size / abs(scale), size / abs(scale), 64 * width - 1)
        z = torch.cat([z, torch.tensor([math.inf if size > 1 else math.nan])]).to(device)
        y, cap = torch.empty_like(z), softcap * math.log2(math.e)
        with interpreting() if device == "cpu" else nullcontext():
            launch(_exponents, (1, 1), z, y, scale, cap, KIND=kind.value, WIDTH=width, num_warps=4)
        most = max(math.ceil(2 * cap - 120), 0)  # the largest score's exponent
        want = cap * ((z.double() * scale).tanh() - 1) + most
        torch.testing.assert_close(y.double(), want, rtol=0.0, atol=max(cap, 1e-3) * 2.0**-19, equal_nan=True)
        if size > 1:
            assert y.max() == most
            assert y.min() >= -120 - 1e-4


def _of_bfloat16(*shape: int, seed: int) -> torch.Tensor:
    return draw(*shape, seed=seed).to(torch.bfloat16)


@pytest.mark.parametrize("softcap", [5.0, 50.0, 51.0])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"causal": True},
        {"window": (3, 0)},
        {"sinks": torch.tensor([300.0, -1.0])},
        {"sinks": torch.tensor([-math.inf, 2.0])},
    ],
    ids=["plain", "causal", "window", "a large sink", "no sink"],
)
@pytest.mark.parametrize("size", [1.0, 1000.0])
def test_weights_of_bounded_scores(size, how, softcap):
    """All scores at a bound, values far from 1, queries that see one key or none."""
    q, k, v = (_of_bfloat16(1, length, 2, 16, seed=seed) for seed, length in enumerate((40, 35, 35)))
    q, v = q * size, v * 1e20
    k[:, :4] = k[:, :1]  # of some queries the first keys' scores are all at the lower bound
    call = {**PLAIN, "softcap": softcap, **how}
    want, exact = reference.forward(q.double(), k.double(), v.double(), **call, return_lse=True)
    with interpreting():
        found, lse = attention(q, k, v, **call, return_lse=True)
    torch.testing.assert_close(lse.double(), exact, rtol=1e-6, atol=softcap * 2.0**-19)
    torch.testing.assert_close(found.double() / 1e20, want / 1e20, rtol=2.0**-7, atol=2.0**-8)


@pytest.mark.parametrize("softcap", [0.5, 50.0, 128.0])
def test_a_softcap_of_16_bits_is_as_near_as_their_rounding(softcap):
    q, k, v = (draw(1, 70, 2, 16, seed=seed) for seed in range(3))
    how = {**PLAIN, "scale": softcap, "softcap": softcap}
    want, exact = reference.forward(q.double(), k.double(), v.double(), **how, return_lse=True)
    with interpreting():
        found, lse = attention(q, k, v, **how, return_lse=True)
    torch.testing.assert_close(lse.double(), exact, rtol=1e-6, atol=softcap * 2.0**-20)
    torch.testing.assert_close(found.double(), want, rtol=2.0**-10, atol=1e-3)


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))],
)
@pytest.mark.parametrize(("size", "scale"), [(1.0, 1e30), (1.0, -1e30), (1e15, None), (3e4, 0.5), (3e2, -1.0)])
def test_huge_scores_leave_all_weight_to_the_largest(device, size, scale):
    q, k, v = (draw(1, 70, 2, 16, seed=seed, dtype=torch.float32) for seed in range(3))
    q, k = q * size, k * size
    want = reference.forward(q.double(), k.double(), v.double(), **{**PLAIN, "scale": scale}, return_lse=True)
    tensors = (x.to(device) for x in (q, k, v))
    with interpreting() if device == "cpu" else nullcontext():
        found = attention(*tensors, **{**PLAIN, "scale": scale}, return_lse=True)
    for one, exact in zip(found, want, strict=True):
        torch.testing.assert_close(one.cpu().double(), exact, rtol=1e-4, atol=1e-5)


def test_tiles_are_small_under_a_causal_mask_in_a_narrow_window_and_where_scores_are_changed():
    def rows(queries: int, width: int, sides: tuple[int, int] = (-1, -1), changed: bool = False) -> tuple[int, int]:
        q = torch.empty(1, queries, 8, width, dtype=torch.bfloat16, device="meta")
        with pretending(Processor("sm_90", 132, 32), lambda *_: None):
            how = tiles_of_queries(q, queries, 4, width, sides, changed).options
        return how["BLOCK_M"], how["num_stages"]

    causal = (-1, 0)
    assert rows(512, 128) == rows(4096, 128, causal) == rows(9000, 128, changed=True) == (64, 3)
    assert rows(513, 128)[0] == rows(4097, 128, causal)[0] == rows(9000, 128, (1023, 0))[0] == 128
    # of wide heads nothing was measured
    assert rows(4096, 256, causal, changed=True)[0] == 128
    assert rows(9000, 256, (127, 0)) == (64, 2)
    assert [rows(9000, 96, sides)[1] for sides in ((127, 0), (-1, 127), (300, 0))] == [2, 3, 3]


def stages_of(batches: int) -> int:
    """How many stages an H100 has for 512 queries of one wide head a batch, in tiles of 64."""
    shapes = [(batches, 512, 1, 256)] * 3
    tensors = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes)
    found = list[dict[str, Any]]()
    with pretending(Processor("sm_90", 132, 32), lambda _, _grid, _args, meta: found.append(meta)):
        attention(*tensors, **PLAIN, return_lse=False)
    return found[0]["num_stages"]


def test_tiles_that_do_not_fill_the_chip_have_more_stages():
    assert [stages_of(batches) for batches in (1, 16, 17, 64)] == [3, 3, 2, 2]


def parts_of_keys(batches: int, keys: int, key_heads: int = 8, width: int = 128) -> tuple[int, int]:
    """How many parts an H100 makes of each tile's keys for one query, and how many of them are merged at once."""
    shapes = (batches, 1, 32, width), *[(batches, keys, key_heads, width)] * 2
    tensors = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes)
    found = list[tuple[int, dict[str, Any]]]()
    with pretending(Processor("sm_90", 132, 32), lambda _, grid, _args, meta: found.append((grid[0], meta))):
        attention(*tensors, **PLAIN, return_lse=False)
    programs, _ = found[0]
    return programs // (batches * key_heads), found[1][1]["PARTS"] if found[1:] else 0


@pytest.mark.parametrize(
    ("batches", "keys", "parts"),
    [
        *((1, 32768, 33), (4, 4096, 8)),
        # one program a multiprocessor where there would be fewer: 264 are two
        *((5, 4096, 3), (8, 4096, 2), (12, 4096, 1), (16, 4096, 1), (64, 4096, 1)),
        # and no part of less than two blocks
        *((1, 1024, 8), (1, 64, 1), (5, 128, 1)),
    ],
)
def test_few_parts_are_halved(batches, keys, parts):
    assert parts_of_keys(batches, keys)[0] == parts


def test_parts_of_sequences_are_not_halved_where_they_are_few():
    q, k = (torch.empty(rows, heads, 128, dtype=torch.bfloat16, device="meta") for rows, heads in ((5, 32), (20480, 8)))
    ends = torch.empty(6, dtype=torch.int32, device="meta")
    grids = list[int]()
    with pretending(Processor("sm_90", 132, 32), lambda _, grid, *__: grids.append(grid[0])):
        varlen.attention(q, k, k, ends, ends, **PLAIN, max_seqlen_q=1, max_seqlen_k=4096, return_lse=False)
    # 7 tiles of each key head at most, as the host sees them
    assert grids[0] == 7 * 8 * 4


def test_parts_of_wide_heads_are_for_one_program_a_multiprocessor():
    assert [parts_of_keys(batches, 8192, width=256)[0] for batches in (1, 4, 12)] == [16, 4, 1]


@pytest.mark.parametrize(
    ("keys", "key_heads", "at_once"), [(256, 8, 2), (1024, 8, 8), (4096, 8, 32), (65536, 8, 64), (65536, 1, 64)]
)
def test_a_merge_takes_no_more_parts_at_once_than_there_are(keys, key_heads, at_once):
    assert parts_of_keys(1, keys, key_heads)[1] == at_once


def test_gradients_of_keys_and_values_apart_are_those_of_one_launch(monkeypatch):
    """As gfx11 has them."""
    q, k, v, grad = (
        draw(2, 37, 4, 32),
        draw(2, 75, 2, 32, seed=1),
        draw(2, 75, 2, 32, seed=2),
        draw(2, 37, 4, 32, seed=3),
    )
    how = {**PLAIN, "causal": True}
    found, launches = [], []

    def counted(*args: Any, **meta: Any) -> None:
        launches.append(args)
        launch(*args, **meta)

    monkeypatch.setattr(gradient_of_keys, "launch", counted)
    with interpreting():
        out, lse = attention(q, k, v, **how, return_lse=False, save=True)
        for apart in (False, True):
            options = {**configuration("attention.gradient_of_keys", q.device, 32, 2).options, "APART": apart}
            monkeypatch.setattr(
                gradient_of_keys, "configuration", lambda *_, o=options: SimpleNamespace(options=o, programs=1)
            )
            needs = (False, True, True, False, False, False)
            found.append(backward(grad, q, k, v, None, None, None, out, lse, **how, return_lse=False, needs=needs)[1:3])
    assert len(launches) == 3
    for together, alone in zip(*found, strict=True):
        assert torch.equal(together, alone)


@pytest.mark.parametrize(
    ("arch", "ptxas", "parts"),
    [
        ("sm_90", "12.8", [(64, 0), (64, 0), (128, 0), (128, 64)]),
        ("sm_90", "12.9", [(16, 0), (32, 16), (64, 32), (128, 32)]),
        ("sm_100", "12.8", [(16, 0), (32, 16), (64, 32), (128, 32)]),
    ],
)
def test_values_stand_in_blocks_that_the_old_ptxas_finds_in_memory(arch, ptxas, parts, monkeypatch):
    """Where a block of 16 or 32 lanes is, that of CUDA 12.8 takes from a register that nothing sets."""
    monkeypatch.setattr(triton.knobs, "nvidia", SimpleNamespace(ptxas=SimpleNamespace(version=ptxas)))
    assert [parts_of(width, narrowest_values(arch)) for width in (7, 40, 96, 160)] == parts
