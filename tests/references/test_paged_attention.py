"""``paged_attention``'s reference against loops over tokens, and what it refuses."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor

from portakernel.errors import ArgumentValueError, IndexOutOfRangeError
from portakernel.references.paged_attention import forward

PAGE = 4


def paged(lengths: tuple[int, ...], heads: int = 2, width: int = 8, seed: int = 0) -> dict[str, Tensor]:
    """Caches in which each token's page was drawn; what no sequence reaches is NaN."""
    source = torch.Generator().manual_seed(seed)
    needed = [-(-length // PAGE) for length in lengths]
    order = torch.randperm(sum(needed) + 2, generator=source)
    keys, values = (torch.full((sum(needed) + 2, PAGE, heads, width), math.nan) for _ in range(2))
    table, first = torch.full((len(lengths), max([*needed, 1])), -7), 0
    for n, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        table[n, :count] = order[first : first + count]
        for j in range(length):
            place = (int(table[n, j // PAGE]), j % PAGE)
            keys[place] = torch.randn(heads, width, generator=source)
            values[place] = torch.randn(heads, width, generator=source)
        first += count
    return {
        "key_cache": keys,
        "value_cache": values,
        "block_table": table.int(),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
    }


def one_by_one(
    q: Tensor, cache: dict[str, Tensor], ends: tuple[int, ...], *, scale: float, left: int = -1, causal: bool = True
) -> Tensor:
    """Each query with each key that it sees, in float64."""
    found = torch.zeros(q.shape[0], q.shape[1], cache["value_cache"].shape[-1], dtype=torch.float64)
    shared = q.shape[1] // cache["key_cache"].shape[2]
    for n, length in enumerate(cache["seq_lens"].tolist()):
        for row in range(ends[n], ends[n + 1]):
            position = length - (ends[n + 1] - ends[n]) + row - ends[n]
            seen = [
                (int(cache["block_table"][n, j // PAGE]), j % PAGE)
                for j in range(length)
                if (j <= position or not causal) and (left < 0 or j >= position - left)
            ]
            for head in range(q.shape[1]):
                scores = [q[row, head].double() @ cache["key_cache"][p][head // shared].double() * scale for p in seen]
                weights = torch.stack(scores).softmax(0) if scores else []
                for place, weight in zip(seen, weights, strict=True):
                    found[row, head] += weight * cache["value_cache"][place][head // shared].double()
    return found


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("left", [-1, 0, 3])
def test_each_query_sees_the_keys_of_its_sequence_s_pages(causal, left):
    cache, ends = paged((9, 0, 4, 17, 2)), (0, 1, 2, 2, 6, 9)
    q = torch.randn(9, 4, 8)
    starts = torch.tensor(ends, dtype=torch.int32)
    found = forward(q, **cache, query_start_loc=starts, causal=causal, window=(left, -1))
    want = one_by_one(q, cache, ends, scale=8**-0.5, left=left, causal=causal)
    torch.testing.assert_close(found.double(), want, atol=1e-5, rtol=1e-5)


def test_lse_is_that_of_the_scores_and_rows_of_no_sequence_are_zeros():
    cache = paged((5, 0))
    q = torch.randn(4, 4, 8)
    y, lse = forward(q, **cache, query_start_loc=torch.tensor([0, 1, 2], dtype=torch.int32), return_lse=True)
    pages = cache["key_cache"][cache["block_table"][0, :2].long()].flatten(0, 1)[:5]
    scores = torch.einsum("hd,thd->ht", q[0], pages.repeat_interleave(2, 1)) * 8**-0.5
    torch.testing.assert_close(lse[:, 0], scores.logsumexp(1))
    assert lse[:, 1:].isneginf().all()
    assert not y[1:].any()


@pytest.mark.parametrize("kind", ["tensor", "head", "token_head"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_keys_and_values_are_multiplied_by_their_scales(kind, dtype):
    cache = paged((9, 4))
    cache = {name: x.to(dtype) if x.is_floating_point() else x for name, x in cache.items()}
    shape = {"tensor": (), "head": (2,), "token_head": cache["key_cache"].shape[:3]}[kind]
    k_scale, v_scale = torch.rand(shape) + 0.5, torch.rand(shape) + 0.5
    given = {"query_start_loc": torch.tensor([0, 1, 3], dtype=torch.int32)}
    q = torch.randn(3, 4, 8)
    found = forward(q, **cache, **given, k_scale=k_scale, v_scale=v_scale, kv_scales=kind)
    wide = dict(cache)
    for name, scale in (("key_cache", k_scale), ("value_cache", v_scale)):
        wide[name] = cache[name].float() * scale.unsqueeze(-1)
    torch.testing.assert_close(found, forward(q, **wide, **given))


WRONG = [
    (
        {"seq_lens": torch.tensor([13, 4], dtype=torch.int32)},
        ArgumentValueError,
        "paged_attention: seq_lens[0] is 13; it must be in [0, W*P] with W*P = 12",
    ),
    (
        {"block_table": torch.tensor([[0, 6, 1], [2, -1, -1]], dtype=torch.int32)},
        IndexOutOfRangeError,
        "paged_attention: block_table[0] holds 6, which is not in [0, NP) with NP = 6",
    ),
    (
        {"query_start_loc": torch.tensor([0, 4, 3], dtype=torch.int32)},
        ArgumentValueError,
        "paged_attention: query_start_loc[1] is 4 and query_start_loc[2] is 3; a sequence cannot end before it begins",
    ),
    (
        {"k_scale": torch.tensor(1.0)},
        ArgumentValueError,
        (
            "paged_attention: k_scale is given with kv_scales='none'; both scales go with kv_scales='tensor', 'head' or"
            " 'token_head', and none with 'none'"
        ),
    ),
    (
        {"kv_scales": "head", "k_scale": torch.ones(2)},
        ArgumentValueError,
        (
            "paged_attention: v_scale is missing with kv_scales='head'; both scales go with kv_scales='tensor', 'head'"
            " or 'token_head', and none with 'none'"
        ),
    ),
]


@pytest.mark.parametrize(("changes", "kind", "text"), WRONG, ids=[text.split(";")[0] for *_, text in WRONG])
def test_what_cannot_be_is_named(changes, kind, text):
    given = {**paged((9, 4)), "query_start_loc": torch.tensor([0, 1, 3], dtype=torch.int32), **changes}
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        forward(torch.randn(4, 4, 8), **given)


@pytest.mark.parametrize("queries", [1, 2])
def test_what_is_behind_every_query_s_window_reaches_nothing(queries):
    cache, ends = paged((14,)), torch.tensor([0, queries], dtype=torch.int32)
    q = torch.randn(queries, 2, 8, generator=torch.Generator().manual_seed(1))
    clean = forward(q, **cache, query_start_loc=ends, window=(3, -1), return_lse=True)
    for name in ("key_cache", "value_cache"):
        for token in range(14 - queries - 3):  # the first query stands at 14 - queries
            cache[name][int(cache["block_table"][0, token // PAGE]), token % PAGE] = math.nan
    found = forward(q, **cache, query_start_loc=ends, window=(3, -1), return_lse=True)
    assert all(torch.equal(a, b) for a, b in zip(found, clean, strict=True))
    wide = one_by_one(q, cache, (0, queries), scale=8**-0.5, left=3)
    torch.testing.assert_close(found[0].double(), wide, atol=1e-5, rtol=1e-5)
