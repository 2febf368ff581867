"""Each kind of mask that transformers makes is applied as transformers itself applies it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from transformers import LlamaConfig, MistralConfig
from transformers.cache_utils import DynamicCache, StaticCache
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_causal_mask,
    create_chunked_causal_mask,
    create_sliding_window_causal_mask,
)

from portakernel.integrations.transformers.attention import attention
from portakernel.integrations.transformers.masks import PackedMask
from portakernel.integrations.transformers.seams import NAME, register_attention

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
]

B, S, H, G, D, WINDOW, CHUNK = 2, 13, 4, 2, 16, 5, 4
Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def registered() -> None:
    register_attention()


def configuration(name: str, **more: Any) -> Any:
    kind = MistralConfig if "sliding_window" in more else LlamaConfig
    shared: dict[str, Any] = {"hidden_size": H * D, "num_attention_heads": H, "num_key_value_heads": G, "head_dim": D}
    return kind(num_hidden_layers=1, vocab_size=8, attn_implementation=name, **shared, **more)


def both(make: Make, rows: int = B, length: int = S, cache: Any = None, **given: Any) -> tuple[Any, Tensor | None]:
    """The mask as portakernel has it and as transformers' eager path has it."""
    more = {name: given.pop(name) for name in ("sliding_window", "attention_chunk_size") if name in given}
    embedded = torch.zeros(rows, length, H * D)
    asked = {"inputs_embeds": embedded, "past_key_values": cache, "attention_mask": None} | given
    ours, eager = (make(config=configuration(name, **more), **asked) for name in (NAME, "eager"))
    return ours, eager


def agrees(ours: Any, eager: Tensor | None, keys: int, **given: Any) -> None:
    """The op with our mask gives what the plain formula gives with transformers' mask, where a query sees any key."""
    generator = torch.Generator().manual_seed(5)
    rows, length = (eager.shape[0], eager.shape[2]) if eager is not None else (B, S)
    q = torch.randn(rows, H, length, D, generator=generator)
    k, v = (torch.randn(rows, G, keys, D, generator=generator) for _ in range(2))
    module: Any = SimpleNamespace(is_causal=given.pop("causal", True), training=False)
    found, weights = attention(module, q, k, v, ours, scaling=0.25, **given)
    scores = q @ k.repeat_interleave(H // G, 1).transpose(2, 3) * 0.25
    scores = scores if eager is None else scores + eager
    expected = (scores.softmax(-1) @ v.repeat_interleave(H // G, 1)).transpose(1, 2)
    sees = torch.ones(rows, length, dtype=torch.bool) if eager is None else (eager == 0).any(-1)[:, 0]
    assert weights is None
    torch.testing.assert_close(found[sees], expected[sees], rtol=1e-5, atol=1e-5)


def filled(cache: Any, length: int) -> Any:
    """A cache that has seen ``length`` tokens."""
    cache.update(torch.zeros(B, G, length, D), torch.zeros(B, G, length, D), 0)
    return cache


def test_a_causal_mask_is_a_feature() -> None:
    ours, eager = both(create_causal_mask)
    assert ours is None
    agrees(ours, eager, S)


def test_a_causal_mask_with_a_padding_mask_of_ones_is_a_feature() -> None:
    ours, eager = both(create_causal_mask, attention_mask=torch.ones(B, S))
    assert ours is None
    agrees(ours, eager, S)


def test_a_causal_mask_behind_a_cache_is_a_feature() -> None:
    ours, eager = both(create_causal_mask, length=3, cache=filled(DynamicCache(), 7))
    assert ours is None
    agrees(ours, eager, 10)


def test_a_static_cache_s_mask_hides_the_keys_to_come() -> None:
    cache = filled(StaticCache(config=configuration("eager"), max_cache_len=20), 7)
    ours, eager = both(create_causal_mask, length=3, cache=cache)
    assert ours.shape == (B, 1, 3, 20)
    agrees(ours, eager, 20)


def test_a_causal_mask_aligned_at_the_first_key_is_in_the_mask() -> None:
    ours, eager = both(create_causal_mask, length=3, attention_mask=torch.ones(B, 10))  # more keys, and no cache
    assert ours.shape == (B, 1, 3, 10)
    agrees(ours, eager, 10)


def test_a_sliding_window_is_a_feature() -> None:
    ours, eager = both(create_sliding_window_causal_mask, sliding_window=WINDOW)
    assert ours is None
    agrees(ours, eager, S, sliding_window=WINDOW)


def test_a_sliding_window_of_an_untested_model_is_in_the_mask() -> None:
    class Other(MistralConfig):
        model_type = "other_model"

    config = {name: Other(sliding_window=WINDOW, attn_implementation=name) for name in (NAME, "eager")}
    given: dict[str, Any] = {"inputs_embeds": torch.zeros(B, S, 8), "attention_mask": None, "past_key_values": None}
    ours, eager = (create_sliding_window_causal_mask(config=config[name], **given) for name in (NAME, "eager"))
    assert ours.shape == (B, 1, S, S)
    agrees(ours, eager, S)


@pytest.mark.parametrize("lacking", [(0, 4), (3, 12)])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_in_the_mask(side: str, lacking: tuple[int, int]) -> None:
    place, lack = torch.arange(S)[None], torch.tensor(lacking)[:, None]
    ours, eager = both(create_causal_mask, attention_mask=place >= lack if side == "left" else place < S - lack)
    assert ours.isneginf().any()
    agrees(ours, eager, S)


def test_padding_and_a_sliding_window_are_in_the_mask() -> None:
    seen = torch.arange(S)[None] >= torch.tensor([[0], [4]])
    ours, eager = both(create_sliding_window_causal_mask, attention_mask=seen, sliding_window=WINDOW)
    agrees(ours, eager, S, sliding_window=WINDOW)


@pytest.mark.parametrize("window", [None, WINDOW])
def test_packed_sequences_are_their_ends(window: int | None) -> None:
    places = torch.stack([torch.cat([torch.arange(n) for n in lengths]) for lengths in [(6, 1, 6), (13,)]])
    make = create_causal_mask if window is None else create_sliding_window_causal_mask
    more = {} if window is None else {"sliding_window": window}
    ours, eager = both(make, position_ids=places, **more)
    assert isinstance(ours, PackedMask)
    assert ours.sequences.cu_seqlens.tolist() == [0, 6, 7, 13, 26]
    assert ours.sequences.max_seqlen == 13
    agrees(ours, eager, S, sliding_window=window)
    assert eager is not None
    assert (ours + 0.0 == 0).equal(eager == 0)  # read by anything else, it is the mask


def test_positions_of_one_sequence_in_each_row_are_no_packing() -> None:
    ours, eager = both(create_causal_mask, position_ids=torch.arange(S)[None])
    assert ours is None
    agrees(ours, eager, S)


def test_chunks_are_in_the_mask() -> None:
    ours, eager = both(create_chunked_causal_mask, attention_chunk_size=CHUNK)
    agrees(ours, eager, S)


def test_blocks_that_see_themselves_are_in_the_mask() -> None:
    blocks = torch.tensor([[-1, 0, 0, 0, -1, 1, 1, -1, -1, -1, -1, -1, -1]]).expand(B, -1)
    ours, eager = both(create_causal_mask, block_sequence_ids=blocks, attention_mask=torch.ones(B, S))
    assert isinstance(ours, Tensor)
    agrees(ours, eager, S)


@pytest.mark.parametrize("joined", ["or_mask_function", "and_mask_function"])
def test_a_function_joined_to_the_mask_is_in_it(joined: str) -> None:
    ours, eager = both(create_causal_mask, **{joined: lambda b, h, i, j: (i + j) % 3 == 0})
    assert type(ours) is Tensor
    agrees(ours, eager, S)


def test_no_mask_at_all_hides_nothing() -> None:
    ours, eager = both(create_bidirectional_mask)
    assert ours is None
    agrees(ours, eager, S, causal=False)


def test_padding_of_a_bidirectional_model_is_in_the_mask() -> None:
    seen = torch.arange(S)[None] < torch.tensor([[S], [4]])
    ours, eager = both(create_bidirectional_mask, attention_mask=seen)
    agrees(ours, eager, S, causal=False)


def test_a_mask_of_booleans_is_what_is_seen() -> None:
    seen = torch.rand(B, 1, S, S, generator=torch.Generator().manual_seed(1)) > 0.4
    agrees(seen, torch.zeros(()).masked_fill(~seen, -1e9), S)


def test_a_mask_for_each_head_is_applied_to_it() -> None:
    added = torch.randn(B, H, S, S, generator=torch.Generator().manual_seed(1))
    found, _ = attention(
        SimpleNamespace(is_causal=True, training=False),  # type: ignore[arg-type]
        *(torch.ones(B, heads, S, D) for heads in (H, G)),
        v := torch.randn(B, G, S, D, generator=torch.Generator().manual_seed(2)),
        added,
    )
    expected = (added.softmax(-1) @ v.repeat_interleave(H // G, 1)).transpose(1, 2)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
