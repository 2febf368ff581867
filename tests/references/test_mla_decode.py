"""``mla_decode``'s reference against attention of each head's own keys and values, and what it refuses."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor

from portakernel import ops
from portakernel.errors import ArgumentTypeError, ArgumentValueError, IndexOutOfRangeError
from portakernel.references.mla_decode import forward

PAGE, C, R = 4, 12, 6


def given(lengths: tuple[int, ...], queries: tuple[int, ...], heads: int = 3) -> list[Tensor]:
    """Queries, caches in which what no sequence reaches is NaN, the table, lengths, and where queries begin."""
    source = torch.Generator().manual_seed(0)
    width = max(1, *(-(-length // PAGE) for length in lengths))
    table = torch.randperm(len(lengths) * width, generator=source).view(len(lengths), width)
    cache = torch.full((len(lengths) * width, PAGE, C + R), math.nan)
    for n, length in enumerate(lengths):
        for j in range(length):
            cache[table[n, j // PAGE], j % PAGE] = torch.randn(C + R, generator=source)
    q = torch.randn(sum(queries), heads, C + R, generator=source)
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    ends = [table.int(), torch.tensor(lengths, dtype=torch.int32), starts]
    return [q[..., :C], q[..., C:], cache[..., :C], cache[..., C:], *ends]


def test_absorbed_projections_give_what_attention_of_each_head_gives():
    heads, dims = 3, 5
    q_latent, q_rope, latent, rope, table, lengths, starts = given((9, 0, 4), (2, 1, 1))
    of_keys, of_values = (torch.randn(heads, dims, C, dtype=torch.float64) for _ in range(2))
    q = torch.randn(4, heads, dims, dtype=torch.float64)
    q_latent, q_rope = torch.einsum("shd,hdc->shc", q, of_keys), q_rope.double()
    scale = 1 / math.sqrt(dims + R)
    caches = (latent.double(), rope.double())
    out, lse = forward(q_latent, q_rope, *caches, table, lengths, starts, scale=scale, return_lse=True)
    found = torch.einsum("shc,hdc->shd", out, of_values)
    for n, length in enumerate(lengths.tolist()):
        begin, end = starts[n : n + 2].tolist()
        c, r = (x[table[n].long()].flatten(0, 1)[:length] for x in caches)
        for row in range(begin, end):
            seen = max(length - (end - 1 - row), 0)
            for head in range(heads):
                keys = torch.cat([c[:seen] @ of_keys[head].T, r[:seen]], 1)
                scores = keys @ torch.cat([q[row, head], q_rope[row, head]]) * scale
                want = scores.softmax(0) @ (c[:seen] @ of_values[head].T)
                torch.testing.assert_close(found[row, head], want)
                torch.testing.assert_close(lse[head, row], scores.logsumexp(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_both_caches_are_multiplied_by_the_scale(dtype):
    *queries, latent, rope, table, lengths, starts = given((9, 4), (1, 2))
    caches, factor = [x.to(dtype) for x in (latent, rope)], torch.tensor(0.6)
    found = forward(*queries, *caches, table, lengths, starts, scale=0.3, latent_scale=factor)
    numbers = [x.float() * factor for x in caches]
    torch.testing.assert_close(found, forward(*queries, *numbers, table, lengths, starts, scale=0.3))


def test_rows_of_no_sequence_are_zeros():
    tensors = given((5, 0), (1, 1))
    tensors[:2] = [torch.cat([q, q]) for q in tensors[:2]]
    out, lse = forward(*tensors, scale=0.3, return_lse=True)
    assert not out[1:].any()
    assert lse[:, 1:].isneginf().all()


WRONG = [
    (5, torch.tensor([13, 4]), ArgumentValueError, "seq_lens[0] is 13; it must be in [0, W*P] with W*P = 12"),
    (
        4,
        torch.tensor([[0, 6, 1], [2, -1, -1]]),
        IndexOutOfRangeError,
        "block_table[0] holds 6, which is not in [0, NP) with NP = 6",
    ),
    (
        6,
        torch.tensor([0, 4, 3]),
        ArgumentValueError,
        "query_start_loc[1] is 4 and query_start_loc[2] is 3; a sequence cannot end before it begins",
    ),
]


@pytest.mark.parametrize(("place", "wrong", "kind", "text"), WRONG, ids=[text.split(";")[0] for *_, text in WRONG])
def test_what_cannot_be_is_named(place, wrong, kind, text):
    tensors = given((9, 4), (2, 2))
    tensors[place] = wrong.int()
    with pytest.raises(kind, match=f"^{re.escape(f'mla_decode: {text}')}$"):
        forward(*tensors, scale=0.3)


@pytest.mark.parametrize("call", [ops.mla_decode, torch.ops.portakernel.mla_decode])
def test_a_call_without_a_scale_is_refused(call):
    text = "mla_decode: scale is not given; it must be a number: what products of queries and keys are multiplied by"
    with pytest.raises(ArgumentTypeError, match=f"^{re.escape(text)}"):
        call(*given((9, 4), (1, 1)))


def test_what_is_behind_every_query_s_window_reaches_nothing():
    tensors = given((13, 7), (2, 1))
    values = {"scale": 0.3, "window": (3, -1), "return_lse": True}
    clean = forward(*tensors, **values)
    for n, unseen in ((0, 8), (1, 3)):  # the first queries stand at 11 and 6
        for token in range(unseen):
            place = (int(tensors[4][n, token // PAGE]), token % PAGE)
            tensors[2][place] = tensors[3][place] = math.nan
    assert all(torch.equal(a, b) for a, b in zip(forward(*tensors, **values), clean, strict=True))
