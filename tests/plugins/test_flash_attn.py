"""FlashAttention-4 behind the contract: what it is given where the two differ, what is refused, what is announced.

The conformance kit runs over the same stand-ins in ``test_peers.py``.
"""

# ruff: noqa: N803, N806 - dimensions have the contract's letters

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import portakernel
from portakernel.authoring.tensors import announce_once, compilations
from portakernel.claims.capability import CannotRun, ReasonCode
from portakernel.references import attention as reference
from portakernel.references import attention_varlen as varlen_reference
from portakernel_plugins.flash_attn.heads import check, check_pages
from portakernel_plugins.flash_attn.scale import above_zero, query_gradient

# Tests are imported by path, and so is what stands beside them.
_SPEC = importlib.util.spec_from_file_location("peer_stand_ins", Path(__file__).with_name("peer_stand_ins.py"))
stand_ins = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(stand_ins)

Given = list[dict[str, Any]]


def adapter(name: str) -> ModuleType:
    return importlib.import_module(f"portakernel_plugins.flash_attn.{name}")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[Given]:
    """The keyword arguments of each call of the library."""
    stand_ins.install(monkeypatch)
    calls, seen = adapter("calls"), Given()

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def record(*tensors: Tensor, **named: Any) -> Any:
            seen.append(named)
            return function(*tensors, **named)

        return record

    for name in ("_flash_attn_fwd", "_flash_attn_bwd"):
        monkeypatch.setattr(calls, name, recorded(getattr(calls, name)))
    announce_once.cache_clear()
    yield seen
    announce_once.cache_clear()


def drawn(S: int, T: int, H: int = 4, G: int = 2, D: int = 16) -> list[Tensor]:
    source = torch.Generator().manual_seed(S * 100 + T)
    shapes = (2, S, H, D), (2, T, G, D), (2, T, G, D)
    return [torch.randn(shape, generator=source).bfloat16() for shape in shapes]


def wide(tensors: list[Tensor]) -> list[Tensor]:
    return [x.float() for x in tensors]


PLAIN: dict[str, Any] = {"causal": False, "scale": None, "window": (-1, -1)}


@pytest.mark.parametrize(
    ("S", "T", "causal", "window", "sides"),
    [
        (5, 7, False, (-1, -1), (None, None)),
        (5, 7, False, (3, -1), (3, None)),
        (5, 7, False, (-1, 0), (None, 0)),
        (5, 7, False, (0, 4), (0, 4)),
        (5, 7, False, (7, 5), (None, None)),  # nothing is so far away
        (5, 7, False, (2**40, 2**40), (None, None)),  # nor numbered in 32 bits
        (5, 7, True, (3, 4), (3, None)),  # causal says more
        (5, 7, True, (7, 0), (None, None)),
    ],
)
def test_a_side_of_the_window_that_hides_nothing_is_none(given, S, T, causal, window, sides):
    q, k, v = drawn(S, T)
    y = adapter("attention").attention(q, k, v, causal=causal, scale=None, window=window)
    assert (given[0]["causal"], given[0]["window_size_left"], given[0]["window_size_right"]) == (causal, *sides)
    want = reference.forward(*wide([q, k, v]), causal=causal, window=window)
    torch.testing.assert_close(y.float(), want, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("scale", [None, 0.5, 0.0, -0.0, -0.5, 1e-39, -1e-39])
def test_every_scale_is_above_zero_there_and_gradients_are_those_of_the_call(given, scale):
    tensors = drawn(6, 9)
    asked = {**PLAIN, "causal": True, "scale": scale}
    y, lse = adapter("attention").attention(*tensors, **asked, save=True)
    grad = torch.ones_like(y)
    found = adapter("attention").backward(grad, *tensors, None, y, lse, **asked, needs=(True, True, True, False))
    assert all(call["softmax_scale"] > 0 for call in given)
    of_reference = reference.backward(
        grad.float(), *wide(tensors), None, None, None, y.float(), lse, causal=True, scale=scale
    )
    for name, gradient, want in zip("qkv", found[:3], of_reference[:3], strict=True):
        torch.testing.assert_close(
            gradient.float(), want, atol=0.03, rtol=0.03, msg=lambda text, n=name: f"{n}: {text}"
        )
    assert found[3] is None


def test_scales_near_zero_leave_nothing_of_the_queries():
    q = torch.tensor([2.0, -3.0])
    assert above_zero(q, None) == (q, 1 / math.sqrt(2))
    # its compiler reads no number without a point
    assert [repr(above_zero(q, scale)[1]) for scale in (1e-5, -1e30, 1.5e-5, 2.0)] == [
        "1.0000000000000003e-05", "1.0000000000000002e+30", "1.5e-05", "2.0",
    ]  # fmt: skip
    negated, scale = above_zero(q, -0.25)
    assert (negated.tolist(), scale) == ([-2.0, 3.0], 0.25)
    nothing, scale = above_zero(q, 0.0)
    assert (nothing.tolist(), scale) == ([0.0, 0.0], 1.0)
    assert [query_gradient(q.clone(), s).tolist() for s in (0.5, -0.5, 0.0)] == [[2.0, -3.0], [-2.0, 3.0], [0.0, 0.0]]


def test_queries_that_see_no_key_give_zeros_and_minus_infinity_or_their_sink(given):
    q, k, v = drawn(9, 4)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    for given_sinks, lse_of_blind in ((None, torch.full((4,), -math.inf)), (sinks, sinks)):
        y, lse = adapter("attention").attention(q, k, v, **PLAIN | {"causal": True}, sinks=given_sinks, return_lse=True)
        assert not y[:, :5].any()
        assert torch.equal(lse[..., :5], lse_of_blind[None, :, None].expand(2, 4, 5))
        assert lse[..., 5:].isfinite().all()


def test_sequences_of_any_length_on_either_side(given):
    q, k, v = (x.flatten(0, 1) for x in drawn(9, 7))
    ends_q, ends_k = (torch.tensor(e, dtype=torch.int32) for e in ((0, 0, 5, 6, 18), (0, 4, 4, 13, 14)))
    spread = torch.stack([ends_k, ends_k], -1)[:, 0]  # with gaps, which the library refuses
    bounds = {"max_seqlen_q": 12, "max_seqlen_k": None}
    asked = {**PLAIN, "causal": True, **bounds}
    y, lse, saved = adapter("attention_varlen").attention(q, k, v, ends_q, spread, **asked, return_lse=True, save=True)
    want, want_lse = varlen_reference.forward(
        *wide([q, k, v]), ends_q, ends_k, causal=True, return_lse=True, max_seqlen_q=12
    )
    torch.testing.assert_close(y.float(), want, atol=0.02, rtol=0.02)
    torch.testing.assert_close(lse, want_lse)
    assert torch.equal(lse, saved)
    assert lse.data_ptr() != saved.data_ptr()
    assert (given[0]["max_seqlen_q"], given[0]["max_seqlen_k"]) == (12, None)
    grads = adapter("attention_varlen").backward(
        torch.ones_like(y), q, k, v, ends_q, spread, None, y, saved, **asked, needs=(True, False, True, False, False)
    )
    assert [grad is None for grad in grads] == [False, True, False, True, True, True]


def test_results_go_to_memory_that_the_kernels_can_store_to_and_are_copied_to_other(given):
    q, k, v = drawn(5, 7)
    fresh, sums = adapter("attention").attention(q, k, v, **PLAIN, return_lse=True)
    aligned, apart = torch.empty_like(fresh), torch.empty(2, 5, 4, 17, dtype=q.dtype)[..., 1:]
    for out, stored in ((aligned, True), (apart, False)):
        lse = torch.empty(2, 5, 4).mT if out is apart else torch.empty(2, 4, 5)
        found = adapter("attention").attention(q, k, v, **PLAIN, return_lse=True, out=(out, lse))
        assert found[0] is out
        assert found[1] is lse
        assert torch.equal(out, fresh)
        assert torch.equal(lse, sums)
        assert (given[-1]["out"] is out, given[-1]["lse"] is lse) == (stored, stored)


def test_what_compiles_is_announced_once_for_each_block_form(given):
    def kinds(**asked: Any) -> int:
        before = len(compilations())
        S, T = asked.pop("S", 20), asked.pop("T", 30)
        adapter("attention").attention(*drawn(S, T), **{**PLAIN, **asked})
        return len(compilations()) - before

    assert kinds() == 1
    assert kinds(S=21, T=44) == kinds(scale=0.5) == kinds(window=(30, 20)) == 0
    assert kinds(S=60) == kinds(causal=True) == kinds(window=(3, -1)) == kinds(softcap=5.0) == kinds(softcap=6.0) == 1
    assert kinds(sinks=torch.zeros(4)) == kinds(return_lse=True) == 1
    assert "FlashAttention-4's forward for torch.bfloat16" in compilations().since(0)[-1]


@pytest.mark.parametrize(
    ("heads", "parameter"),
    [
        ((64, 64, 8, 2), None),
        ((192, 128, 8, 8), None),
        ((128, 64, 8, 8), None),
        ((192, 128, 8, 2), "G"),
        ((64, 128, 8, 8), "E"),
        ((256, 128, 8, 8), "E"),
    ],
)
def test_keys_and_values_of_two_widths_go_together_where_there_is_a_backward(heads, parameter):
    refused = check(*heads)
    assert (refused and refused.parameter) == parameter
    assert refused is None or refused.code is ReasonCode.LIMIT


@pytest.mark.parametrize(
    ("target", "head_dims", "asked", "served"),
    [
        ("sm_90", (128, 128), {}, True),
        ("sm_90", (256, 256), {"window": (7, 0)}, True),
        ("sm_90", (264, 264), {}, False),
        ("sm_90", (100, 100), {}, False),  # 16 bytes are loaded at once
        ("sm_90", (128, 128), {"softcap": 5.0}, True),
        ("sm_90", (128, 128), {"softcap": 5.0, "return_lse": True}, False),  # tanh of 11 digits
        ("sm_100", (128, 128), {"window": (7, 0), "return_lse": True}, True),
        ("sm_100", (192, 128), {}, True),
        ("sm_100", (160, 160), {}, False),
        ("sm_100", (256, 256), {}, True),
        ("sm_100", (256, 256), {"window": (7, 0)}, False),
        ("sm_80", (128, 128), {}, False),
        ("sm_120", (128, 128), {}, False),
    ],
)
def test_head_dims_and_features_are_claimed_where_forward_and_backward_have_them(target, head_dims, asked, served):
    D, E = head_dims
    shape = {"q": (2, 64, 4, D), "k": (2, 64, 4, D), "v": (2, 64, 4, E)}
    found = portakernel.explain("attention", target=f"nvidia:{target}", dtype="bfloat16", shape=shape, **asked)
    assert (found.candidate("flash_attn.attention").status != "rejected") == served


def test_a_tanh_of_11_digits_is_not_for_float16():
    found = portakernel.explain("attention", target="nvidia:sm_90", dtype="float16", softcap=5.0)
    assert found.candidate("flash_attn.attention").status == "rejected"


def test_gradients_that_atomics_add_up_are_not_called_deterministic():
    with portakernel.policy(require="deterministic"):
        found = portakernel.explain("attention", target="nvidia:sm_90", dtype="bfloat16")
    assert {r.code for r in found.candidate("flash_attn.attention").rejections} >= {ReasonCode.NOT_DETERMINISTIC}


def in_pages(P: int, D: int = 16) -> tuple[list[Tensor], list[Tensor]]:
    """Queries, caches, a table, lengths and ends of three sequences; the same as ``attention_varlen`` takes them."""
    source = torch.Generator().manual_seed(P)
    lengths, ends = torch.tensor([P, 0, 2 * P + 1]), torch.tensor([0, 2, 4, 9])
    q = torch.randn(9, 4, D, generator=source).bfloat16()
    table = torch.tensor([[4, -1, -1], [-1, 99, -1], [1, 3, 0]], dtype=torch.int32)
    caches = torch.full((2, 5, P, 2, D), math.nan)
    rows = torch.randn(2, 3 * P + 1, 2, D, generator=source)
    caches[:, [4, 1, 3]] = rows[:, : 3 * P].unflatten(1, (3, P))
    caches[:, 0, 0] = rows[:, -1]
    told = [x.to(torch.int32) for x in (lengths, ends, torch.tensor([0, P, P, 3 * P + 1]))]
    rows = rows.bfloat16()
    return [q, *caches.bfloat16(), table, *told[:2]], [q, *rows, *told[1:]]


@pytest.mark.parametrize("asked", [{}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}, {"causal": False}])
def test_pages_are_read_where_they_are_with_lengths_from_the_device(given, asked):
    paged, ragged = in_pages(8)
    told: dict[str, Any] = {"causal": True, "scale": -0.5, "max_seqlen_q": None, "max_seqlen_k": 40, "return_lse": True}
    y, lse = adapter("paged_attention").paged_attention(*paged, **told | asked)
    want, want_lse = varlen_reference.forward(*wide(ragged[:3]), *ragged[3:], **told | asked)
    torch.testing.assert_close(y.float(), want, atol=0.02, rtol=0.02)
    torch.testing.assert_close(lse, want_lse)
    assert given[0]["page_table"] is paged[3]
    assert (given[0]["max_seqlen_q"], given[0]["max_seqlen_k"], "cu_seqlens_k" in given[0]) == (None, 40, False)


def test_without_a_page_nothing_is_asked_and_sinks_are_the_sums(given):
    q, *rest = in_pages(8)[0]
    told: dict[str, Any] = {"causal": True, "scale": None, "max_seqlen_q": None, "max_seqlen_k": None}
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    nothing = [*rest[:2], rest[2][:, :0], torch.zeros_like(rest[3]), rest[4]]
    y, lse = adapter("paged_attention").paged_attention(q, *nothing, **told, sinks=sinks, return_lse=True)
    assert not y.any()
    assert torch.equal(lse, sinks[:, None].expand(4, 9))
    assert given == []


def test_a_cache_that_would_be_copied_for_each_call_is_refused(given):
    q, k, _, *rest = in_pages(8)[0]
    told: dict[str, Any] = {"causal": True, "scale": None, "max_seqlen_q": None, "max_seqlen_k": None}
    wider = torch.empty(*k.shape[:-1], 17, dtype=k.dtype)[..., :16]
    with pytest.raises(CannotRun, match=r"needs strides of value_cache that 8 divides but the last, .*; these are"):
        adapter("paged_attention").paged_attention(q, k, wider, *rest, **told)


@pytest.mark.parametrize(
    ("sizes", "parameter"),
    [
        ((128, 128, 16), None),
        ((128, 128, 128), "P"),
        ((64, 64, 128), "P"),
        ((256, 256, 128), None),
        ((256, 256, 80), "P"),
        ((128, 64, 16), "E"),
    ],
)
def test_pages_that_are_loaded_whole_bring_what_no_query_sees(sizes, parameter):
    refused = check_pages(*sizes)
    assert (refused and refused.parameter) == parameter
