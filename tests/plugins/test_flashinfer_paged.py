"""FlashInfer's wrappers behind ``paged_attention``: when a plan is kept, which queries it is of, what is refused.

The conformance kit runs over the same stand-ins in ``test_peers.py``.
"""

# ruff: noqa: N803, N806 - dimensions have the contract's letters

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import portakernel
from portakernel.authoring.tensors import announce_once, compilations
from portakernel.claims.capability import CannotRun, ReasonCode
from portakernel.references import paged_attention as reference
from portakernel_plugins.flashinfer.sizes import check_merge, check_merges, check_paged

# Tests are imported by path, and so is what stands beside them.
_SPEC = importlib.util.spec_from_file_location("peer_stand_ins", Path(__file__).with_name("peer_stand_ins.py"))
stand_ins = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(stand_ins)

H, G, D, P = 4, 2, 64, 8
PLAIN: dict[str, Any] = {"causal": True, "scale": None, "max_seqlen_q": None, "max_seqlen_k": None}


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kind of wrapper of each plan that is made."""
    stand_ins.install(monkeypatch)
    module, made = importlib.import_module("portakernel_plugins.flashinfer.paged_attention"), list[str]()

    def recorded(name: str, wrapper: type) -> type:
        class Recorded(wrapper):
            def plan(self, *tensors: Any, **named: Any) -> None:
                made.append(name)
                super().plan(*tensors, **named)

        return Recorded

    for name in ("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"):
        monkeypatch.setattr(module, name, recorded(name[5:].partition("With")[0], getattr(module, name)))
    announce_once.cache_clear()
    yield made
    announce_once.cache_clear()


def attend(*tensors: Tensor, backend: str = "paged_attention", **asked: Any) -> Any:
    entry = getattr(importlib.import_module("portakernel_plugins.flashinfer.paged_attention"), backend)
    return entry(*tensors, **PLAIN | asked)


def drawn(queries: list[int], lengths: list[int], W: int = 3) -> list[Tensor]:
    """Queries and caches, a table and lengths; what no sequence has is NaN."""
    B = len(lengths)
    source = torch.Generator().manual_seed(7)
    q = torch.randn(sum(queries), H, D, generator=source).bfloat16()
    table = torch.randperm(B * W, generator=source).reshape(B, W)
    caches = torch.full((2, B * W, P, G, D), math.nan)
    for n, length in enumerate(lengths):
        for t in range(length):
            caches[:, table[n, t // P], t % P] = torch.randn(2, G, D, generator=source)
    starts = torch.tensor([0, *queries]).cumsum(0)
    return [q, *caches.bfloat16(), *(x.to(torch.int32) for x in (table, torch.tensor(lengths), starts))]


def same_as_the_reference(found: Any, tensors: list[Tensor], **asked: Any) -> None:
    want = reference.forward(*(x.float() if x.is_floating_point() else x for x in tensors), **asked, return_lse=True)
    torch.testing.assert_close(found[0].float(), want[0], atol=0.02, rtol=0.02)
    torch.testing.assert_close(found[1], want[1], atol=1e-4, rtol=1e-4)


def test_a_plan_is_kept_until_somebody_writes_to_its_lengths_or_others_come(plans):
    tensors = drawn([1, 1], [9, 17])
    for _ in range(2):
        same_as_the_reference(attend(*tensors, return_lse=True), tensors)
    assert plans == ["Decode"]
    tensors[4].sub_(3)
    same_as_the_reference(attend(*tensors, return_lse=True), tensors)
    tensors[3][0, 0], tensors[3][1, 0] = tensors[3][1, 0].clone(), tensors[3][0, 0].clone()
    same_as_the_reference(attend(*tensors, return_lse=True), tensors)
    assert len(plans) == 3
    tensors[4] = tensors[4].clone()
    attend(*tensors)
    attend(*tensors, scale=0.5)
    assert len(plans) == 5
    attend(*tensors)  # of several that are kept
    assert len(plans) == 5


def test_no_more_plans_are_kept_than_a_few_and_the_one_used_last_longest(plans):
    tables = [drawn([1, 1], [9, 1 + n]) for n in range(5)]
    for tensors in tables:
        attend(*tensors)
        attend(*tables[0])
    assert len(plans) == 5
    attend(*tables[1])
    assert len(plans) == 6


def test_lengths_whose_writes_nobody_counts_are_planned_for_each_time(plans):
    with torch.inference_mode():
        tensors = [x.clone() for x in drawn([1, 1], [9, 17])]
        attend(*tensors)
        attend(*tensors)
    assert len(plans) == 2


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("queries", "lengths", "kind"),
    [
        ([1, 1, 1], [9, 17, 24], "Decode"),
        ([1, 3, 2], [9, 17, 24], "Prefill"),
        ([3, 0, 1], [3, 17, 0], "Prefill"),
        ([1, 0, 1], [3, 17, 0], "Decode"),
        ([5, 12, 4], [2, 0, 9], "Prefill"),  # queries before the first key
    ],
)
def test_queries_that_see_no_key_are_left_out_and_filled_in(plans, causal, queries, lengths, kind):
    tensors = drawn(queries, lengths)
    same_as_the_reference(attend(*tensors, causal=causal, return_lse=True), tensors, causal=causal)
    assert plans == [kind]


def test_where_no_query_sees_a_key_nothing_is_planned(plans):
    y, lse = attend(*drawn([2, 1], [0, 0]), return_lse=True)
    assert not y.any()
    assert torch.equal(lse, torch.full((H, 3), -math.inf))
    assert plans == []


def test_rows_of_no_sequence_are_asked_of_nobody(plans):
    tensors = drawn([1, 1], [9, 17])
    padded = [torch.cat([tensors[0], tensors[0]]), *tensors[1:]]
    assert torch.equal(attend(*padded)[:2], attend(*tensors))


@pytest.mark.parametrize("scale", [0.0, -0.5, 1e-39, 2.0])
def test_every_scale_is_above_zero_there(plans, scale):
    tensors = drawn([1, 4], [9, 17])
    same_as_the_reference(attend(*tensors, scale=scale, return_lse=True), tensors, scale=scale)


def test_results_go_to_out_and_heads_may_lie_before_tokens(plans):
    tensors = drawn([1, 4], [9, 17])
    want, want_lse = attend(*tensors, return_lse=True)
    tensors[1:3] = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors[1:3]]
    out = torch.empty_like(want), torch.empty(want_lse.shape[::-1]).t()
    found = attend(*tensors, return_lse=True, out=out)
    assert [a is b for a, b in zip(found, out, strict=True)] == [True, True]
    assert torch.equal(out[0], want)
    assert torch.equal(out[1], want_lse)


def test_a_cache_is_never_copied_for_a_call(plans):
    tensors = drawn([1, 4], [9, 17])
    wider = torch.empty(*tensors[1].shape[:-1], D + 1, dtype=torch.bfloat16)
    with pytest.raises(CannotRun) as caught:
        attend(tensors[0], wider[..., :D], *tensors[2:])
    assert (caught.value.rejection.code, caught.value.rejection.parameter) == (ReasonCode.LAYOUT, "key_cache")
    heads_first = tensors[1].transpose(1, 2).contiguous().transpose(1, 2)
    attend(tensors[0], heads_first, *tensors[2:])
    with pytest.raises(CannotRun, match="needs the same strides of key_cache and value_cache, which fa3 computes once"):
        attend(tensors[0], heads_first, *tensors[2:], backend="paged_attention_fa3")


def test_what_compiles_is_announced_once_for_each_module(plans):
    def compiled(**asked: Any) -> int:
        before = len(compilations())
        attend(*drawn([1, 2], [9, 17]), **asked)
        return len(compilations()) - before

    assert compiled() == compiled(softcap=5.0) == compiled(backend="paged_attention_fa3") == 1
    assert compiled(softcap=6.0) == compiled(causal=False) == compiled(scale=0.5) == 0


@pytest.mark.parametrize(
    ("refused", "parameter"),
    [
        (check_paged(8, 32, 128, 128, 64, 256, 16), None),
        (check_paged(8, 32, 192, 128, 64, 256, 16), "E"),
        (check_paged(2**20, 32, 128, 128, 64, 256, 16), "S"),
        (check_paged(8, 32, 128, 128, 2**16, 2**12, 16), "W"),
        (check_merge(8, 64, 128), None),
        (check_merge(8, 65, 128), "H"),
        (check_merge(8, 33, 512), "H"),
        (check_merges(2, 2**20, 32, 64), "S"),
    ],
)
def test_what_its_numbers_and_blocks_hold_is_claimed(refused, parameter):
    assert (refused and refused.parameter) == parameter


@pytest.mark.parametrize(
    ("target", "asked", "served"),
    [
        ("sm_80", {}, ["paged_attention"]),
        ("sm_90", {}, ["paged_attention", "paged_attention_fa3"]),
        ("sm_90", {"softcap": 5.0}, ["paged_attention", "paged_attention_fa3"]),
        ("sm_90", {"softcap": 5.0, "return_lse": True}, []),
        ("sm_90", {"window": (9, 0)}, []),
        ("sm_90", {"kv_scales": "head"}, []),
    ],
)
def test_features_are_claimed_that_keep_what_no_query_sees_out(target, asked, served):
    found = portakernel.explain("paged_attention", target=f"nvidia:{target}", dtype="bfloat16", **asked)
    ours = [c for c in found.candidates if c.kernel.plugin == "flashinfer" and c.status != "rejected"]
    assert sorted(c.kernel.name.partition(".")[2] for c in ours) == served
