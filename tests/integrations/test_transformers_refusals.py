"""What the ops cannot do is left to the model's own path, with its numbers, and counted with the reason."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from portakernel.integrations import transformers as integration
from portakernel.integrations.ledger import Ledger, Row
from portakernel.integrations.transformers.attention import attention
from portakernel.integrations.transformers.layers import rotary_forward

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
]

MakeModel = Callable[..., Any]
Tokens = Callable[[int, int], Tensor]
Counted = Callable[[], dict[tuple[str, str], int]]


def refusals(counted: Counted, op: str = "attention") -> set[str]:
    return {refused for name, refused in counted() if name == op}


def test_dropout_while_training_is_the_model_s_own(make_model: MakeModel, tokens: Tokens, counted: Counted) -> None:
    ids = tokens(2, 9)
    model = make_model("Llama", attention_dropout=0.5).train()
    torch.manual_seed(0)
    plain = model(ids, use_cache=False).logits
    model.set_attn_implementation("sdpa")
    torch.manual_seed(0)
    plain_sdpa = model(ids, use_cache=False).logits
    integration.enable(model, ("attention",))
    torch.manual_seed(0)
    found = model(ids, use_cache=False).logits
    if ids.device.type == "cpu":
        # the two paths of the model itself draw differently; ours is one of them
        assert torch.equal(found, plain_sdpa) or torch.equal(found, plain)
    else:  # CUDA's kernels draw differently for a mask that is given than for one that is implied
        torch.manual_seed(0)
        assert torch.equal(found, model(ids, use_cache=False).logits)
        assert not torch.equal(found, model(ids, use_cache=False).logits)
    assert refusals(counted) == {"dropout: the op has none; set attention_dropout to 0"}
    model.eval()
    model(ids)
    assert "" in refusals(counted)


def test_weights_of_attention_are_the_model_s_own(
    family: str, make_model: MakeModel, tokens: Tokens, counted: Counted
) -> None:
    ids = tokens(2, 9)
    model = make_model(family)
    mask = (torch.arange(9, device=ids.device) >= torch.tensor([[0], [4]], device=ids.device)).long()
    with torch.no_grad():
        plain = model(ids, attention_mask=mask, output_attentions=True)
        integration.enable(model, ("attention",))
        found = model(ids, attention_mask=mask, output_attentions=True)
    for ours, eager in zip(found.attentions, plain.attentions, strict=True):
        torch.testing.assert_close(ours, eager)
    torch.testing.assert_close(found.logits, plain.logits)
    assert refusals(counted) == {"output_attentions: the op does not return the weights"}


def test_float64_is_the_model_s_own(family: str, make_model: MakeModel, tokens: Tokens, counted: Counted) -> None:
    ids = tokens(2, 9)
    model = make_model(family, torch.float64)
    with torch.no_grad():
        plain = model(ids).logits
        integration.enable(model)
        found = model(ids).logits
    torch.testing.assert_close(found, plain, rtol=2e-5, atol=2e-5)  # the eager path's softmax is float32
    expected = "dtype torch.float64: the op takes float32, float16 and bfloat16"
    assert refusals(counted) == refusals(counted, "rms_norm") == {expected}


def test_packed_sequences_that_are_refused_keep_apart(make_model: MakeModel, tokens: Tokens) -> None:
    ids = tokens(1, 9)
    model = make_model("Mistral", torch.float64)
    places = torch.cat([torch.arange(4), torch.arange(5)])[None].to(ids.device)
    with torch.no_grad():
        plain = model(ids, position_ids=places, use_cache=False).logits
        integration.enable(model, ("attention",))
        found = model(ids, position_ids=places, use_cache=False).logits
        unpacked = model(ids, use_cache=False).logits
    torch.testing.assert_close(found, plain, rtol=2e-5, atol=2e-5)
    assert (found - unpacked).abs().max() > 1e-2


def test_float32_norms_in_a_16_bit_model_are_the_model_s_own(
    make_model: MakeModel, tokens: Tokens, counted: Counted
) -> None:
    ids = tokens(1, 5)
    model = make_model("Llama", torch.bfloat16)
    model.model.norm.float()
    model.lm_head.float()
    with torch.no_grad():
        plain = model(ids).logits
        integration.enable(model, ("rms_norm",))
        assert model(ids).logits.dtype == plain.dtype == torch.float32
    reason = "a float32 weight makes the model's result float32, the op's has the input's dtype"
    assert counted()["rms_norm", reason] == 1
    assert counted()["rms_norm", ""] == 4


def heads(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, heads, 5, 8, generator=generator, dtype=dtype) for heads in (4, 2, 2))
    return q, k, v


def module() -> Any:
    return SimpleNamespace(is_causal=True, training=False, num_key_value_groups=2)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"position_bias": torch.zeros(1, 4, 5, 5)}, "the op does not know the argument position_bias"),
        (
            {"attention_mask": torch.zeros(2, 1, 5, 5, dtype=torch.int64)},
            "a mask of torch.int64: the op takes booleans (True: attend) and numbers to add",
        ),
        ({"attention_mask": torch.zeros(5, 5)}, "a mask of 2 dimensions: the op takes (batch, heads, queries, keys)"),
        ({"attention_mask": torch.zeros(2, 1, 5, 9)}, "a mask of another shape than (batch, heads, queries, keys)"),
        (
            {"cu_seq_lens_q": torch.tensor([0, 5]), "max_length_q": 5},
            "cu_seq_lens of several rows, or beside a cache: the op takes one row without a cache",
        ),
    ],
)
def test_arguments_that_the_op_does_not_have_are_refused(given: dict[str, Any], reason: str, counted: Counted) -> None:
    given = {"attention_mask": None, "scaling": 0.5} | given
    try:
        found, _ = attention(module(), *heads(), **given)
    except (RuntimeError, IndexError):  # sdpa's own refusal of such a mask
        found = None
    assert refusals(counted) == {reason}
    if "position_bias" in given or "cu_seq_lens_q" in given:
        assert found is not None
        plain, _ = attention(module(), *heads(), attention_mask=None, scaling=0.5)
        torch.testing.assert_close(found, plain)


def test_a_mask_that_is_no_tensor_is_refused(counted: Counted) -> None:
    with pytest.raises(AttributeError, match=r"dtype|shape"):  # from transformers' own path, which has no use for it
        attention(module(), *heads(), attention_mask=object(), position_bias=torch.zeros(1, 4, 5, 5))
    with pytest.raises((TypeError, AttributeError)):
        attention(module(), *heads(), attention_mask=object())
    assert "a mask of type object: the op takes tensors" in refusals(counted)


@pytest.mark.parametrize("window", [None, 2])
def test_a_refused_call_behind_a_cache_sees_what_the_served_one_sees(window: int | None) -> None:
    q, k, v = heads()
    asked: dict[str, Any] = {"attention_mask": None, "scaling": 0.5, "sliding_window": window}
    served, _ = attention(module(), q[:, :, :2], k, v, **asked)
    refused, _ = attention(module(), q[:, :, :2], k, v, **asked, position_bias=torch.zeros(1, 4, 2, 5))
    torch.testing.assert_close(refused, served)


def test_rotary_positions_of_a_part_of_the_head_are_refused(counted: Counted) -> None:
    class Own:
        def forward(self, *given: Any) -> str:
            return "its own"

    q, k, _ = heads()
    assert rotary_forward(Own(), q, k, torch.ones(1, 5, 2), torch.ones(1, 5, 2)) == "its own"
    assert refusals(counted, "rotary_embedding") == {"angles for another part of the head than all of it"}


def test_refusals_inside_a_graph_are_traced(make_model: MakeModel, tokens: Tokens) -> None:
    ids = tokens(1, 7)
    model = make_model("Llama", torch.float64)
    with torch.no_grad():
        plain = model(ids, use_cache=False).logits
        integration.enable(model, ("attention",))
        before = {(row.op, row.refused): row.traces for row in integration.report()}
        found = torch.compile(model, fullgraph=True, backend="aot_eager")(ids, use_cache=False).logits
    torch.testing.assert_close(found, plain, rtol=2e-5, atol=2e-5)
    after = {(row.op, row.refused): row.traces for row in integration.report()}
    key = ("attention", "dtype torch.float64: the op takes float32, float16 and bfloat16")
    assert after[key] - before.get(key, 0) == 2


def test_the_ledger_adds_up_calls_and_traces_of_an_outcome() -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.count("attention", "", traced=False)
    ledger.count("attention", "", traced=True)
    ledger.count("rms_norm", "why not", traced=False)
    assert ledger.rows() == (Row("attention", "", 3, 1), Row("rms_norm", "why not", 1, 0))
    assert str(ledger.rows()[1]) == (
        "rms_norm                                     1 calls     0 traces  left to the client: why not"
    )
