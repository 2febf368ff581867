"""What no case of ``grouped_mm`` shows of its Triton kernels, interpreted: descriptors, swapped factors, sharing."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.references import grouped_mm as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.launching.configurations import Configuration
from portakernel_plugins.triton.matrix import grouped_gradients, grouped_mm

PIECES = ((5, 0, 40, 17, 0), (0, 0, 64), (16, 16, 16), (1,) * 20, (130, 3))


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def launched_with(monkeypatch: pytest.MonkeyPatch, programs: int = 3, **options: Any) -> None:
    """Products are launched so from now on."""
    known = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 32, "num_warps": 4, **options}
    how = Configuration(1, 1, 1, 1, programs, options=known)
    monkeypatch.setattr(grouped_mm, "configuration", lambda *_: how)


def drawn(pieces: tuple[int, ...], columns: int, inners: int, *, more: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(columns)
    a = torch.randn(sum(pieces) + more, inners, generator=source)
    b = torch.randn(len(pieces), columns, inners, generator=source)
    return a, b, torch.tensor([*accumulate(pieces, initial=0)], dtype=torch.int32)


def assert_right(a: Tensor, b: Tensor, offsets: Tensor, **values: Any) -> None:
    found = grouped_mm.grouped_mm(a, b, offsets, **values)
    values.pop("out", None)
    want = reference.forward(a.double(), b.double(), offsets, **values)
    torch.testing.assert_close(found[: offsets[-1]].double(), want[: offsets[-1]], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("programs", [1, 5, 1000])
def test_tiles_are_found_however_many_programs_share_them(monkeypatch, pieces, swap, described, programs):
    launched_with(monkeypatch, programs, SWAP=swap, DESCRIPTORS=described)
    a, b, offsets = drawn(pieces, 72, 64)
    assert_right(a, b, offsets, bias=torch.randn(len(pieces), 72))


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("columns", [32, 72, 36, 33])
def test_tiles_of_one_expert_are_stored_whole_and_nobody_elses_rows_are_written(monkeypatch, pieces, columns):
    launched_with(monkeypatch, STORES=True, DESCRIPTORS=True)
    a, b, offsets = drawn(pieces, columns, 64, more=40)
    bias, y = torch.randn(len(pieces), columns), torch.full((a.shape[0], columns), 77.0)
    assert_right(a, b, offsets, bias=bias, out=y)
    assert (y[offsets[-1] :] == 77.0).all()


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("inners", [32, 36, 68])
def test_descriptors_follow_matrices_that_lie_the_other_way_round(monkeypatch, swap, inners):
    launched_with(monkeypatch, SWAP=swap, DESCRIPTORS=True)
    a, b, offsets = drawn((9, 0, 22), 48, inners)
    turned = b.transpose(1, 2).contiguous().transpose(1, 2)
    assert_right(a, turned, offsets)
    assert_right(a.T.contiguous().T, b, offsets)


def test_what_descriptors_cannot_follow_is_read_through_pointers():
    a, b, _ = drawn((9, 0, 22), 48, 33)
    assert grouped_mm._described(a, (16, 32), True)[1] == "pointers"
    assert grouped_mm._described(b[:, :, ::2], (16, 32), True)[1] == "pointers"
    assert grouped_mm._described(b[:1].expand(3, -1, -1), (16, 32), True)[1] == "pointers"
    wide = drawn((9, 0, 22), 48, 36)[1]
    assert grouped_mm._described(wide, (16, 32), True)[1] == "inner"
    assert grouped_mm._described(wide.transpose(1, 2), (16, 32), True)[1] == "outer"
    assert grouped_mm._described(wide, (16, 32), False)[1] == "pointers"


@pytest.mark.parametrize("described", [False, True])
def test_neighbours_rows_of_nan_reach_nobody(monkeypatch, described):
    launched_with(monkeypatch, DESCRIPTORS=described)
    a, b, offsets = drawn((5, 9, 6), 40, 32)
    want = grouped_mm.grouped_mm(a, b, offsets)
    a[5:14] = torch.nan
    found = grouped_mm.grouped_mm(a, b, offsets)
    assert torch.equal(found[:5], want[:5])
    assert torch.equal(found[14:], want[14:])


@pytest.mark.parametrize("described", [False, True])
def test_gradients_are_zero_for_experts_without_rows_and_rows_without_expert(monkeypatch, described):
    launched_with(monkeypatch, DESCRIPTORS=described)
    a, b, offsets = drawn((5, 0, 40), 40, 48, more=21)
    bias, grad = torch.randn(3, 40), torch.randn(66, 40)
    grad[45:] = torch.nan
    found = grouped_gradients.backward(grad, a, b, offsets, bias, None)
    want = reference.backward(grad.double(), a.double(), b.double(), offsets, bias.double(), None)
    for place in (0, 1, 3):
        got, known = found[place], want[place]
        assert got is not None
        assert known is not None
        torch.testing.assert_close(got.double(), known, atol=1e-4, rtol=1e-5)
    assert not found[1][1].any()  # type: ignore[index]
    assert not found[0][45:].any()  # type: ignore[index]


def test_equal_calls_give_equal_bits_and_other_offsets_need_no_other_launch(monkeypatch):
    launched_with(monkeypatch)
    a, b, offsets = drawn((5, 0, 40), 40, 48)
    first = grouped_mm.grouped_mm(a, b, offsets)
    other = torch.tensor([0, 45, 45, 45], dtype=torch.int32)
    assert_right(a, b, other)
    assert torch.equal(first, grouped_mm.grouped_mm(a, b, offsets))


@pytest.mark.parametrize("format", ["row", "block"])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("described", [False, True])
def test_float8_with_its_scales(monkeypatch, format, swap, described):
    launched_with(monkeypatch, SWAP=swap, DESCRIPTORS=described, BLOCK_K=128)
    a, b, offsets = drawn((5, 0, 40), 144, 272)
    q, w = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    source = torch.Generator().manual_seed(3)
    sizes = ((45, 1), (3, 144, 1)) if format == "row" else ((45, 3), (3, 2, 3))
    scale_a, scale_b = (torch.rand(size, generator=source) + 0.5 for size in sizes)
    given = {"scale_a": scale_a, "scale_b": scale_b, "format": format}
    found = grouped_mm.grouped_mm(q, w, offsets, **given)
    (want,) = reference.truth(q, w, offsets, **given)
    torch.testing.assert_close(found.double(), want, atol=0.05, rtol=0.01)


@pytest.mark.parametrize("swap", [False, True])
def test_rows_are_gathered_from_anywhere_and_their_gradients_add_up(monkeypatch, swap):
    launched_with(monkeypatch, SWAP=swap, DESCRIPTORS=True)
    a, b, offsets = drawn((5, 0, 40), 40, 48, more=7)
    rows = a[:9].contiguous()
    gather = torch.randint(8, (52,), generator=torch.Generator().manual_seed(0))  # nobody has the ninth
    assert_right(rows, b, offsets, gather=gather)
    grad = torch.randn(52, 40)
    found = grouped_gradients.backward(grad, rows, b, offsets, None, gather)
    want = reference.backward(grad.double(), rows.double(), b.double(), offsets, None, gather)
    for got, known in zip(found[:2], want[:2], strict=True):
        assert got is not None
        assert known is not None
        torch.testing.assert_close(got.double(), known, atol=1e-4, rtol=1e-5)
    assert not found[0][8].any()  # type: ignore[index]
