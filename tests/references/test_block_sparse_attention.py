"""The reference of ``block_sparse_attention`` against attention number by number; what its lists leave out."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from portakernel import masks
from portakernel.errors import ArgumentValueError, UnknownNameError
from portakernel.ops import block_sparse_attention as op
from portakernel.references import block_sparse_attention as reference

S, T, H, G, D = 70, 150, 4, 2, 8
SEES: dict[str, Any] = {
    "none": lambda b, q, k, ids: True,
    "causal": lambda b, q, k, ids: k <= q,
    "document": lambda b, q, k, ids: ids[0][b, q - (T - S)] == ids[1][b, k],
    "prefix": lambda b, q, k, ids: k <= q or k < ids[2][b],
}


def drawn(mask: str) -> tuple[list[Tensor], Tensor, dict[str, Any], tuple[Tensor, ...]]:
    """Queries, keys and values; the state of each block (0: in no list, 1: partial, 2: full); what the mask reads."""
    source = torch.Generator().manual_seed(3)
    shapes = (2, S, H, D), (2, T, G, D), (2, T, G, D)
    qkv = [torch.randn(shape, dtype=torch.float64, generator=source) for shape in shapes]
    state = torch.randint(3, (2, H, 2, 3), generator=source)
    ids = tuple(
        torch.randint(n, s, generator=source, dtype=torch.int32) for n, s in ((2, (2, S)), (2, (2, T)), (T, (2,)))
    )
    aux = {"document": {"query_ids": ids[0], "key_ids": ids[1]}, "prefix": {"prefix": ids[2]}}.get(mask, {})
    return qkv, state, aux, ids


def lists_of(state: Tensor) -> tuple[Tensor, ...]:
    return *masks.lists(state == 1), *masks.lists(state == 2)


@pytest.mark.parametrize("window", [(-1, -1), (60, 5)])
@pytest.mark.parametrize("mask", list(SEES))
def test_every_query_attends_to_what_its_lists_and_the_mask_show(mask, window):
    (q, k, v), state, aux, ids = drawn(mask)
    out, lse = reference.forward(
        q, k, v, *lists_of(state), **aux, mask=mask, window=window, block="64x64", return_lse=True
    )
    sees, states = torch.zeros(2, H, S, T, dtype=torch.bool), state.tolist()
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, sees.shape)).tolist():
        at = i + T - S
        inside = (window[0] < 0 or at - j <= window[0]) and (window[1] < 0 or j - at <= window[1])
        how = states[b][h][i // 64][j // 64]
        if how == 2 or (how == 1 and inside and bool(SEES[mask](b, at, j, ids))):
            sees[b, h, i, j] = True
    scores = torch.einsum("bshd,bthd->bhst", q, k.repeat_interleave(2, 2)) / math.sqrt(D)
    scores = scores.masked_fill(~sees, -math.inf)
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    weights = torch.softmax(scores, -1).nan_to_num()
    torch.testing.assert_close(out, torch.einsum("bhst,bthd->bshd", weights, v.repeat_interleave(2, 2)))


def test_what_a_row_does_not_list_reaches_none_of_its_results():
    (q, k, v), state, _, _ = drawn("causal")
    state[:, :, 0], state[:, :, 1] = torch.tensor([1, 0, 2]), torch.tensor([0, 1, 0])
    lists = lists_of(state)
    want = reference.forward(q, k, v, *lists, mask="causal", block="64x64")
    k[:, 64:128], v[:, 64:128] = math.nan, math.inf
    found = reference.forward(q, k, v, *lists, mask="causal", block="64x64")
    assert torch.equal(found[:, :64], want[:, :64])
    assert found[:, 64:].isnan().all()


def test_gradients_are_those_of_the_formula():
    (q, k, v), state, _, _ = drawn("causal")
    tensors = [x[:, :n, :m, :2].clone().requires_grad_() for x, n, m in ((q, 6, 4), (k, 9, 2), (v, 9, 2))]
    lists = lists_of(state[:, :, :1, :1])
    sinks = torch.randn(H, dtype=torch.float64).requires_grad_()

    def called(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        return op(q, k, v, *lists, sinks=sinks, mask="causal", softcap=2.0, kernel="reference")

    assert torch.autograd.gradcheck(called, (*tensors, sinks))


WRONG = [
    ({"mask": "document"}, "query_ids is missing; mask='document' reads query_ids, key_ids"),
    (
        {"mask": "causal", "prefix": torch.zeros(1, dtype=torch.int32)},
        "prefix is given; mask='causal' reads none of query_ids, key_ids, prefix",
    ),
    (
        {"full_count": torch.zeros(1, 1, 1, dtype=torch.int32)},
        "full_count is given without full_index; give both, or neither",
    ),
    (
        {"q_full_index": torch.zeros(1, 1, 1, 1, dtype=torch.int32)},
        "q_full_index is given without q_full_count; give both, or neither",
    ),
]


@pytest.mark.parametrize(("more", "text"), WRONG, ids=[text.partition(";")[0] for _, text in WRONG])
def test_what_a_call_lacks_or_does_not_need_is_said(more, text):
    one = torch.ones(1, 3, 1, 4)
    lists = masks.lists(torch.ones(1, 1, 1, 1, dtype=torch.bool))
    with pytest.raises(ArgumentValueError, match=f"^{re.escape(f'block_sparse_attention: {text}')}$"):
        op(one, one, one, *lists, **more)


def test_a_mask_that_nobody_registered_is_refused_with_those_that_are():
    one, lists = torch.ones(1, 3, 1, 4), masks.lists(torch.ones(1, 1, 1, 1, dtype=torch.bool))
    with pytest.raises(
        UnknownNameError, match=r"^block_sparse_attention: unknown value of mask 'casual'; did you mean"
    ):
        op(one, one, one, *lists, mask="casual")
    with pytest.raises(UnknownNameError, match=r"known: .*causal.*document.*none.*prefix.*portakernel.masks.register"):
        op(one, one, one, *lists, mask="butterfly")
