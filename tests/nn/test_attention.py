"""Attention has the weights of torch.nn.MultiheadAttention, and its numbers, masks and groups of heads."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
import torch
from cxx import needs_cxx
from torch.nn import functional

from portakernel import nn
from portakernel.errors import ArgumentTypeError, ArgumentValueError

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def pair(**given: Any) -> tuple[nn.Attention, torch.nn.MultiheadAttention]:
    """Both modules with the same weights, whose biases are not zero."""
    theirs = torch.nn.MultiheadAttention(32, 4, **given)
    for name, weight in theirs.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(weight)
    ours = nn.Attention(32, 4, **given)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "sequence first"])
def test_numbers_are_those_of_torch_s_module_in_float64(bias: bool, batch_first: bool) -> None:
    ours, theirs = pair(bias=bias, batch_first=batch_first)
    query, key, value = (torch.randn(3, 5, 32) for _ in range(3))
    exact = copy.deepcopy(theirs).double()
    for given in ((query,), (query, key), (query, key, value)):
        q, k, v = (*given, *[given[-1]] * (3 - len(given)))
        wanted, _ = exact(q.double(), k.double(), v.double(), need_weights=False)
        torch.testing.assert_close(ours(*given).double(), wanted, **CLOSE)


def test_queries_and_keys_of_other_lengths_attend() -> None:
    ours, theirs = pair(batch_first=True)
    query, key = torch.randn(2, 3, 32), torch.randn(2, 7, 32)
    torch.testing.assert_close(ours(query, key), theirs(query, key, key)[0], **CLOSE)


def test_causal_is_torch_s_causal_mask() -> None:
    ours, theirs = pair(batch_first=True)
    ours.causal = True
    x = torch.randn(2, 6, 32)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(6)
    wanted, _ = theirs(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)
    torch.testing.assert_close(ours(x), wanted, **CLOSE)


def test_a_bias_is_added_to_the_scores() -> None:
    ours, theirs = pair(batch_first=True)
    x, added = torch.randn(2, 6, 32), torch.randn(6, 6)
    wanted, _ = theirs(x, x, x, attn_mask=added, need_weights=False)
    torch.testing.assert_close(ours(x, bias=added.expand(2, 4, 6, 6)), wanted, **CLOSE)


@pytest.mark.parametrize("window", [(-1, -1), (2, -1)], ids=["causal", "causal, window"])
def test_grouped_heads_share_keys_and_values(window: tuple[int, int]) -> None:
    module = nn.Attention(32, 4, num_key_value_heads=2, batch_first=True, causal=True, window=window)
    x = torch.randn(2, 9, 32)
    exact, wide = copy.deepcopy(module).double(), x.double()
    q, k, v = functional.linear(wide, exact.in_proj_weight, exact.in_proj_bias).split([32, 16, 16], -1)
    q, k, v = (part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in (q, k, v))
    at = torch.arange(9)
    sees = (at[:, None] >= at) & ((at[:, None] - at <= window[0]) | (window[0] < 0))
    attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=sees, enable_gqa=True)
    wanted = exact.out_proj(attended.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(module(x).double(), wanted, **CLOSE)


def test_the_first_draw_is_torch_s_and_states_load_both_ways() -> None:
    torch.manual_seed(3)
    theirs = torch.nn.MultiheadAttention(16, 2)
    torch.manual_seed(3)
    ours = nn.Attention(16, 2)
    assert [*ours.state_dict()] == [*theirs.state_dict()]
    for got, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(got, wanted)
    other = nn.Attention(16, 2)
    theirs.load_state_dict(other.state_dict())
    assert torch.equal(theirs.in_proj_weight, other.in_proj_weight)


def test_gradients_are_those_of_torch_s_module() -> None:
    ours, theirs = pair()
    x = torch.randn(5, 2, 32)
    ours(x).square().sum().backward()
    exact = copy.deepcopy(theirs).double()
    exact(x.double(), x.double(), x.double(), need_weights=False)[0].square().sum().backward()
    for got, wanted in zip(ours.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(got.grad.double(), wanted.grad, rtol=1e-4, atol=1e-4)


@needs_cxx
def test_a_whole_graph_compiles() -> None:
    module, x = nn.Attention(16, 2, causal=True), torch.randn(5, 2, 16)
    torch.testing.assert_close(torch.compile(module, fullgraph=True)(x), module(x), **CLOSE)


def test_autocast_computes_in_its_dtype() -> None:
    module, x = nn.Attention(16, 2), torch.randn(5, 2, 16)
    with torch.autocast("cpu", torch.bfloat16):
        got = module(x)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), module(x), rtol=0.05, atol=0.02)


def test_it_is_made_on_meta_copied_and_pickled() -> None:
    module, x = nn.Attention(16, 2, device="meta"), torch.randn(5, 2, 16)
    assert module(torch.empty(5, 2, 16, device="meta")).shape == (5, 2, 16)
    module.to_empty(device="cpu").load_state_dict(torch.nn.MultiheadAttention(16, 2).state_dict())
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(copied(x), module(x))


def test_its_repr_says_what_it_was_given() -> None:
    assert repr(nn.Attention(8, 2)).splitlines()[1] == "  8, num_heads=2"
    module = nn.Attention(8, 4, num_key_value_heads=2, batch_first=True, causal=True, window=(3, 0))
    assert module.extra_repr() == "8, num_heads=4, num_key_value_heads=2, batch_first=True, causal=True, window=(3, 0)"


SIZES = "each has to be at least 1, num_heads has to divide embed_dim, and num_key_value_heads has to divide num_heads"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"num_heads": 3}, f"embed_dim=16, num_heads=3, num_key_value_heads=3: {SIZES}"),
        ({"num_heads": 0}, f"embed_dim=16, num_heads=0, num_key_value_heads=0: {SIZES}"),
        ({"num_heads": 4, "num_key_value_heads": 3}, f"embed_dim=16, num_heads=4, num_key_value_heads=3: {SIZES}"),
        (
            {"num_heads": 4, "dropout": 0.1},
            "dropout=0.1: the op attention has none; leave it out, or take torch.nn.MultiheadAttention",
        ),
    ],
    ids=["heads that do not divide", "no heads", "groups that do not divide", "dropout"],
)
def test_a_constructor_that_cannot_be_honoured_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentValueError, match=f"^{re.escape(told)}$"):
        nn.Attention(16, **given)


def test_calls_that_cannot_be_read_are_refused() -> None:
    module, x = nn.Attention(16, 2), torch.randn(5, 2, 16)
    with pytest.raises(ArgumentValueError, match=r"^a value was given without a key; give key=, too: "):
        module(x, value=x)


@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("sizes", [(5, 16), (5, 2, 17)], ids=["two dimensions", "another embed_dim"])
def test_sizes_that_do_not_fit_are_refused_by_the_argument_s_name(name: str, sizes: tuple[int, ...]) -> None:
    given = dict.fromkeys(("query", "key", "value"), torch.randn(5, 2, 16)) | {name: torch.randn(sizes)}
    n = "S" if name == "query" else "T"
    told = (
        f"{name} is {sizes}; it has to be (B, {n}, E) with batch_first=True, ({n}, B, E) otherwise,"
        " and E is embed_dim=16"
    )
    with pytest.raises(ArgumentValueError, match=f"^{re.escape(told)}$"):
        nn.Attention(16, 2)(**given)


EMPTY = [(0, 5, 5), (2, 0, 0), (2, 0, 5), (2, 5, 0), (0, 0, 0)]


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "sequence first"])
@pytest.mark.parametrize(("batch", "queries", "keys"), EMPTY)
def test_empty_batches_and_sequences_are_torch_s(batch: int, queries: int, keys: int, batch_first: bool) -> None:
    ours, theirs = pair(batch_first=batch_first)
    query, key = torch.randn(batch, queries, 32), torch.randn(batch, keys, 32)
    if not batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    wanted, _ = theirs(query, key, key, need_weights=False)
    torch.testing.assert_close(ours(query, key), wanted, **CLOSE)
    if queries == keys:
        torch.testing.assert_close(ours(query), theirs(query, query, query, need_weights=False)[0], **CLOSE)


WINDOW = "Attention: window must be (left, right), each -1 or None for all; this is"


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"window": 3}, ArgumentTypeError, f"{WINDOW} int 3"),
        ({"window": (1,)}, ArgumentTypeError, f"{WINDOW} tuple (1,)"),
        ({"window": None}, ArgumentTypeError, f"{WINDOW} NoneType None"),
        (
            {"window": (-2, 0)},
            ArgumentValueError,
            "Attention: window counts positions, -1 or None for all; this is (-2, 0)",
        ),
        ({"causal": "yes"}, ArgumentTypeError, "Attention: causal must be True or False; this is str 'yes'"),
    ],
    ids=["a number", "one side", "no window", "less than all", "a word"],
)
def test_masks_that_the_op_does_not_take_are_refused_at_construction(
    given: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=f"^{re.escape(told)}$"):
        nn.Attention(16, 2, **given)
