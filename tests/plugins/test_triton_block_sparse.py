"""What no case of ``block_sparse_attention`` shows of its Triton kernels, interpreted: own masks, lists for all."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
import triton
from torch import Tensor

from portakernel import masks
from portakernel.claims.capability import CannotRun
from portakernel.references import block_sparse_attention as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel.words.masks import MASKS
from portakernel_plugins.triton.attention import block_sparse, block_sparse_gradients, mask_names

CALL: dict[str, Any] = {"window": (-1, -1), "block": "64x64", "scale": None, "softcap": 0.0, "return_lse": False}
NEEDS = (*[True] * 3, *[False] * 12)


@pytest.fixture(autouse=True)
def _interpreted():
    known = dict(MASKS)
    with interpreting():
        yield
    MASKS.clear()
    MASKS.update(known)


def stripes(b, h, q, k, query_id, key_id, prefix):
    return ((q + k) % (2 + h) == b) & ((query_id <= key_id) | (k < prefix))


def drawn(heads: int = 4, *, once: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    """Queries, keys and values, and lists of blocks of 64; ``once``: the same for all batches and heads."""
    source = torch.Generator().manual_seed(heads)
    shapes = (2, 100, heads, 16), (2, 150, 2, 16), (2, 150, 2, 16)
    state = torch.randint(3, (1, 1, 2, 3) if once else (2, heads, 2, 3), generator=source)
    lists = [*masks.lists(state == 1), *masks.lists(state == 2)]
    qkv = [torch.randn(shape, generator=source) for shape in shapes]
    return qkv, [x.expand(2, heads, *x.shape[2:]) for x in lists]


def gradients(qkv: list[Tensor], lists: list[Tensor], by_keys: list[Tensor] | None = None, **more: Any) -> list[Tensor]:
    """What forward returns and saves, and the gradients for queries, keys and values."""
    aux = [more.get(name) for name in ("query_ids", "key_ids", "prefix")]
    out, lse = block_sparse.attention(*qkv, *lists, **CALL, **more, save=True)
    rest = (*lists, *aux, None, *(by_keys or [None] * 4), out, lse)
    return [out, lse, *block_sparse_gradients.backward(out, *qkv, *rest, mask=more["mask"], **CALL, needs=NEEDS)[:3]]


def assert_right(found: list[Tensor], qkv: list[Tensor], lists: list[Tensor], **more: Any) -> None:
    wide = [x.double() for x in qkv]
    out, lse = reference.forward(*wide, *lists, **{**CALL, "return_lse": True}, **more)
    aux = [more.get(name) for name in ("query_ids", "key_ids", "prefix")]
    rest = (*lists, *aux, None, *[None] * 4, out, lse)
    grads = reference.backward(found[0].double(), *wide, *rest, mask=more["mask"], **CALL)[:3]
    for one, other in zip(found, (out, lse, *grads), strict=True):
        torch.testing.assert_close(one.double(), other, atol=2e-5, rtol=2e-5)


def test_an_own_mask_is_inlined_with_all_that_it_reads():
    masks.register("stripes", torch=stripes, triton=triton.jit(stripes), aux=("query_ids", "key_ids", "prefix"))
    qkv, lists = drawn()
    ids = {"query_ids": torch.randint(3, (2, 100)).int(), "key_ids": torch.randint(3, (2, 150)).int()}
    more = {"mask": "stripes", "prefix": torch.tensor([0, 40], dtype=torch.int32), **ids}
    assert_right(gradients(qkv, lists, **more), qkv, lists, **more)


def test_a_mask_without_a_triton_function_is_refused():
    masks.register("stripes", torch=stripes, aux=("query_ids", "key_ids", "prefix"))
    rejection = mask_names.check("stripes")
    assert rejection is not None
    assert rejection.text.startswith("mask 'stripes' was registered without a Triton function")
    assert mask_names.check("document") is None
    qkv, lists = drawn()
    ids = {"query_ids": torch.zeros(2, 100).int(), "key_ids": torch.zeros(2, 150).int()}
    with pytest.raises(CannotRun):
        block_sparse.attention(*qkv, *lists, **CALL, mask="stripes", prefix=torch.zeros(2).int(), **ids)


@pytest.mark.parametrize("heads", [2, 8])
def test_lists_for_all_heads_and_lists_by_keys_give_the_same_bits(heads):
    qkv, lists = drawn(heads, once=True)
    found = gradients(qkv, lists, mask="causal")
    assert_right(found, qkv, lists, mask="causal")
    by_keys = [x for pair in (lists[:2], lists[2:]) for x in masks.transposed(*pair, 3)]
    for others in (
        gradients(qkv, lists, by_keys, mask="causal"),
        gradients(qkv, [*map(torch.clone, lists)], mask="causal"),
    ):
        assert all(map(torch.equal, found, others))


def test_results_are_bit_equal_whatever_unlisted_blocks_and_entries_behind_lists_hold():
    (q, k, v), _ = drawn()
    state = torch.zeros(2, 4, 2, 3, dtype=torch.long)
    state[..., 0], state[:, :, 1, 2] = 1, 2  # nobody lists the second block of keys
    lists = [*masks.lists(state == 1), *masks.lists(state == 2)]
    found = list[list[Tensor]]()
    for fill, entry in ((0.0, 0), (math.nan, -(2**31)), (math.inf, 2**31 - 1)):
        k[:, 64:128], v[:, 64:128] = fill, fill
        dead = [torch.arange(3) >= count.unsqueeze(-1) for count in lists[::2]]
        indices = [index.masked_fill(behind, entry) for index, behind in zip(lists[1::2], dead, strict=True)]
        found.append(gradients([q, k, v], [lists[0], indices[0], lists[2], indices[1]], mask="causal"))
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))
