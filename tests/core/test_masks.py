"""``portakernel.masks``: own masks, and block maps as lists, also those of FlexAttention's ``BlockMask``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from portakernel import masks
from portakernel.contracts import contract
from portakernel.errors import ArgumentValueError
from portakernel.ops import block_sparse_attention
from portakernel.words.masks import MASKS


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    known = dict(MASKS)
    yield
    MASKS.clear()
    MASKS.update(known)


def near(b, h, q, k):
    return (q - k <= 40) & (k - q <= 20 + h)


def bands(b, h, q, k, prefix):
    return (q // 32 == k // 32) | (k < prefix)


def rows_of(count: Tensor, index: Tensor) -> list[list[int]]:
    """What each list holds, in order."""
    pairs = zip(count.flatten().tolist(), index.flatten(0, -2).tolist(), strict=True)
    return [sorted(blocks[:n]) for n, blocks in pairs]


def test_a_map_s_lists_say_what_it_says_and_so_do_they_turned_round():
    block_map = torch.rand(2, 3, 4, 5) < 0.4
    count, index = masks.lists(block_map)
    assert (count.dtype, index.dtype, index.shape) == (torch.int32, torch.int32, (2, 3, 4, 5))
    assert rows_of(count, index) == [row.nonzero()[:, 0].tolist() for row in block_map.flatten(0, 2)]
    by_keys = block_map.transpose(2, 3).flatten(0, 2)
    assert rows_of(*masks.transposed(count, index, 5)) == [row.nonzero()[:, 0].tolist() for row in by_keys]


def test_what_is_stored_once_is_turned_round_once():
    count, index = (x.expand(2, 3, *x.shape[2:]) for x in masks.lists(torch.rand(1, 1, 4, 5) < 0.5))
    turned = masks.transposed(count, index, 5)
    assert [x.stride()[:2] for x in turned] == [(0, 0), (0, 0)]
    assert [x.shape for x in turned] == [(2, 3, 5), (2, 3, 5, 4)]


def test_the_lists_of_a_mask_are_those_of_flex_attention():
    masks.register("near", torch=near)
    found = masks.lists_of("near", batch=2, heads=3, queries=300, keys=300)
    flex = create_block_mask(near, 2, 3, 300, 300, device="cpu")
    want = masks.from_block_mask(flex, batch=2, heads=3)
    assert found["block"] == want["block"] == "128x128"
    for name in ("partial", "full", "q_partial", "q_full"):
        given, expected = ([each[f"{name}_{part}"] for part in ("count", "index")] for each in (found, want))
        assert rows_of(*given) == rows_of(*expected), name


def test_a_block_mask_for_all_batches_and_heads_is_expanded():
    flex = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cpu")
    found = masks.from_block_mask(flex, batch=2, heads=4)
    assert (found["full_index"].shape, found["full_index"].stride()[:2]) == ((2, 4, 2, 2), (0, 0))
    q = torch.randn(2, 256, 4, 8)
    want = torch.nn.functional.scaled_dot_product_attention(*[q.transpose(1, 2)] * 3, is_causal=True)
    torch.testing.assert_close(block_sparse_attention(q, q, q, **found, mask="causal"), want.transpose(1, 2))
    flex = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cpu", BLOCK_SIZE=32)
    with pytest.raises(
        ArgumentValueError, match=r"^blocks of 32x32 are not known; make the BlockMask with BLOCK_SIZE "
    ):
        masks.from_block_mask(flex, batch=2, heads=4)


def test_an_own_mask_reads_what_it_names():
    masks.register("bands", torch=bands, aux=("prefix",))
    prefix = torch.tensor([3, 90], dtype=torch.int32)
    lists = masks.lists_of("bands", batch=2, heads=1, queries=100, keys=100, prefix=prefix)
    q = torch.randn(2, 100, 1, 8, dtype=torch.float64)
    found = block_sparse_attention(q, q, q, **lists, mask="bands", prefix=prefix)
    at = torch.arange(100)
    sees = (at[:, None] // 32 == at // 32) | (at < prefix[:, None, None])
    x = q.transpose(1, 2)
    want = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=sees.unsqueeze(1))
    torch.testing.assert_close(found, want.transpose(1, 2))


def test_a_name_is_one_mask_s_until_its_function_is_defined_anew():
    masks.register("near", torch=near)
    masks.register("near", torch=near, aux=())
    with pytest.raises(ArgumentValueError, match=r"^mask 'near' is .*near already; choose another name for .*bands$"):
        masks.register("near", torch=bands, aux=("prefix",))
    with pytest.raises(ArgumentValueError, match=r"^mask 'causal' is .* already"):
        masks.register("causal", torch=near)
    with pytest.raises(ArgumentValueError, match=r"^mask 'a b' is no name for one; write a Python name"):
        masks.register("a b", torch=near)
    with pytest.raises(
        ArgumentValueError, match=r"^mask 'odd' reads key_ids, query_ids; it may read query_ids, key_ids,"
    ):
        masks.register("odd", torch=near, aux=("key_ids", "query_ids"))


def test_other_lists_compile_nothing_anew():
    masks.register("near", torch=near)
    compiled = torch.compile(
        lambda q, *lists: block_sparse_attention(q, q, q, *lists, mask="near"), backend="aot_eager", fullgraph=True
    )
    q = torch.randn(1, 200, 2, 8)
    for seed in range(3):
        lists = masks.lists(torch.rand(1, 2, 2, 2, generator=torch.Generator().manual_seed(seed)) < 0.6)
        with torch._dynamo.config.patch(error_on_recompile=seed > 0):
            found = compiled(q, *lists)
        assert torch.equal(found, block_sparse_attention(q, q, q, *lists, mask="near"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": 3}, "mask 3 is no name"),
        ({"name": "class"}, "mask 'class' is no name"),
        ({"torch": True}, "torch= is"),
        ({"triton": "near"}, "triton= is"),
        ({"triton": near}, "under @triton.jit"),
        ({"aux": "prefix"}, "('prefix',)"),
    ],
)
def test_what_is_no_mask_is_refused_when_it_is_registered(given, says):
    more = {"name": "bad", "torch": near, **given}
    with pytest.raises(ArgumentValueError) as found:
        masks.register(more.pop("name"), **more)
    assert says in str(found.value)


def test_another_nameless_function_does_not_take_a_mask_s_place():
    masks.register("anyone", torch=lambda b, h, q, k: k <= q)
    with pytest.raises(ArgumentValueError, match="already"):
        masks.register("anyone", torch=lambda b, h, q, k: k < q)


@pytest.mark.parametrize("function", [lambda b, h, q, k: (k <= q).int(), lambda b, h, q, k: True])
def test_what_a_mask_gives_is_bool_element_by_element(function):
    masks.register("odd", torch=function)
    with pytest.raises(ArgumentValueError, match=r"mask 'odd': its torch function gave .* bool tensor"):
        masks.lists_of("odd", batch=1, heads=1, queries=4, keys=4)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"block": "32x32"}, "block is"),
        ({"window": 3}, "window is"),
        ({"window": (-2, 0)}, "window is (-2, 0); each side counts positions"),
        ({"window": (1, 0.5)}, "window is (1, 0.5); each side counts positions"),
        ({"queries": -4}, "queries is"),
        ({"batch": 1.5}, "batch is"),
        ({"foo": torch.zeros(1)}, "foo is no argument"),
        ({"prefix": torch.zeros(3, dtype=torch.int32)}, "prefix is (3,)"),
        ({"prefix": torch.zeros(1)}, "of integers"),
    ],
)
def test_lists_of_says_what_is_wrong_with_its_arguments(given, says):
    whole = {"mask": "prefix", "batch": 1, "heads": 1, "queries": 4, "keys": 4, "prefix": torch.ones(1).int(), **given}
    with pytest.raises(ArgumentValueError) as found:
        masks.lists_of(**whole)
    assert says in str(found.value)


@pytest.mark.parametrize("no_map", [torch.ones(1, 2, 2, 2), torch.ones(2, 2, 2).bool(), [[True]]])
def test_a_map_of_blocks_is_a_bool_tensor(no_map):
    with pytest.raises(ArgumentValueError, match="bool tensor"):
        masks.lists(no_map)


def test_a_block_mask_is_for_the_call_s_heads():
    flex = create_block_mask(near, None, 2, 256, 256, device="cpu")
    with pytest.raises(ArgumentValueError, match="2 heads"):
        masks.from_block_mask(flex, batch=2, heads=4)
    with pytest.raises(ArgumentValueError, match="no BlockMask"):
        masks.from_block_mask(near, batch=2, heads=4)


def test_lists_are_made_in_graphs():
    def attended(q, k):
        lists = masks.lists_of("causal", batch=1, heads=2, queries=128, keys=128)
        return block_sparse_attention(q, k, k, **lists, mask="causal")

    q, k = torch.randn(1, 128, 2, 8), torch.randn(1, 128, 2, 8)
    compiled = torch.compile(attended, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k), attended(q, k))


def test_without_heads_there_is_nothing_to_attend():
    k, none = torch.randn(1, 5, 1, 8), torch.zeros(1, 0, 1, dtype=torch.int32)
    assert block_sparse_attention(torch.randn(1, 5, 0, 8), k, k, none, none.unsqueeze(-1)).shape == (1, 5, 0, 8)


def test_no_mask_is_said_in_code_and_on_a_command_line():
    parameter = contract("block_sparse_attention").parameter("mask")
    assert parameter.parse("block_sparse_attention", "none") == "none"
    assert parameter.canonical("block_sparse_attention", None) == "none"


@pytest.mark.parametrize("function", [lambda b, h: b == h, lambda b, h, q, k, more: q == k])
def test_a_function_that_takes_other_arguments_is_refused_when_it_is_registered(function):
    with pytest.raises(ArgumentValueError, match=r"mask 'own': its torch function takes \(b, h.*given \(b, h, q, k\)"):
        masks.register("own", torch=function)


def test_a_function_that_raises_or_gives_another_shape_is_told_with_its_mask_s_name():
    sizes = {"batch": 1, "heads": 1, "queries": 200, "keys": 200}
    masks.register("own", torch=lambda b, h, q, k: q and k)
    with pytest.raises(ArgumentValueError, match="mask 'own': its torch function raised RuntimeError"):
        masks.lists_of("own", **sizes)
    masks.register("other", torch=lambda b, h, q, k: torch.ones(3, dtype=torch.bool))
    with pytest.raises(ArgumentValueError, match=r"'other': its torch function gave a tensor of shape \(3,\)"):
        masks.lists_of("other", **sizes)


def test_without_batches_documents_have_lists_too():
    ids = {"query_ids": torch.zeros(0, 5, dtype=torch.int32), "key_ids": torch.zeros(0, 7, dtype=torch.int32)}
    found = masks.lists_of("document", batch=0, heads=2, queries=5, keys=7, **ids)
    q, k, v = torch.zeros(0, 5, 2, 8), torch.zeros(0, 7, 2, 8), torch.zeros(0, 7, 2, 8)
    assert block_sparse_attention(q, k, v, **found, **ids, mask="document").shape == q.shape
