"""A model with portakernel's ops gives the numbers of its own eager path."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cxx import needs_cxx
from torch import Tensor

pytest.importorskip("transformers")

from portakernel.integrations import transformers as integration

# Some kernels lack a feature that a model asks for: on which device is not what is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
]

MakeModel = Callable[..., Any]
Tokens = Callable[[int, int], Tensor]
Counted = Callable[[], dict[tuple[str, str], int]]

ALL = ("attention", "rms_norm", "silu_and_mul", "gelu_and_mul", "moe_route", "moe_mlp", "rotary_embedding")


def agree(found: Tensor, plain: Tensor, truth: Tensor, *, factor: float = 2.0) -> None:
    """At most ``factor`` times the plain path's own error, as the attention op's tolerance has it, per tensor.

    A few units in the last place of the largest number go on top: the truth's norms and softmax are float32, whose
    rounding it shares with the plain path.
    """
    finest = torch.finfo(torch.float32).eps * 16 if plain.dtype == torch.float32 else torch.finfo(plain.dtype).eps
    error = (plain.double() - truth).abs().max().item()
    allowed = factor * error + finest * truth.abs().max().item()
    assert (found.double() - truth).abs().max().item() <= allowed


def padded(rows: int, length: int, side: str, device: torch.device) -> Tensor:
    """A padding mask in which row r lacks 3 r tokens."""
    place = torch.arange(length, device=device)[None, :]
    lacking = 3 * torch.arange(rows, device=device)[:, None]
    return (place >= lacking if side == "left" else place < length - lacking).long()


def positions(mask: Tensor) -> Tensor:
    return (mask.cumsum(-1) - 1).clamp(min=0)


def inputs(kind: str, tokens: Tokens) -> tuple[dict[str, Any], Tensor]:
    """A model's arguments, and which of the logits count."""
    ids = tokens(1 if kind == "packed" else 2, 19)
    rows, length = ids.shape
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    given: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    if kind in ("left", "right"):
        mask = padded(rows, length, kind, ids.device)
        return given | {"attention_mask": mask, "position_ids": positions(mask)}, mask.bool()
    if kind == "packed":
        places = torch.cat([torch.arange(n, device=ids.device) for n in (4, 1, 9, 5)])[None]
        return given | {"position_ids": places}, everywhere
    if kind == "custom":  # each token also sees two tokens ahead, and not its predecessor
        distance = torch.arange(length, device=ids.device)[:, None] - torch.arange(length, device=ids.device)[None, :]
        seen = (distance >= -2) & (distance != 1)
        return given | {"attention_mask": torch.where(seen, 0.0, -1e9)[None, None].expand(rows, 1, -1, -1)}, everywhere
    if kind == "all ones":
        return given | {"attention_mask": torch.ones_like(ids)}, everywhere
    return given, everywhere


def logits(model: Any, given: dict[str, Any], count: Tensor) -> Tensor:
    """The logits that count, row after row."""
    found: Tensor = model(**given).logits
    return found[count]


def exact_logits(model: Any, given: dict[str, Any], count: Tensor) -> Tensor:
    """The same without padding: each row alone.

    transformers' eager path gives NaN for padding in float64: its mask's numbers overflow in its float32 softmax.
    """
    mask = given.get("attention_mask")
    if mask is None or mask.dim() != 2:
        return logits(model, given, count)
    rows = [
        model(row[seen][None], use_cache=False).logits[0] for row, seen in zip(given["input_ids"], count, strict=True)
    ]
    return torch.cat(rows)


@pytest.mark.parametrize("kind", ["plain", "all ones", "left", "right", "packed", "custom"])
def test_logits_are_those_of_the_eager_path(
    family: str, kind: str, rotary: bool, make_model: MakeModel, tokens: Tokens, counted: Counted
) -> None:
    given, count = inputs(kind, tokens)
    model = make_model(family)
    with torch.no_grad():
        truth = exact_logits(make_model(family, torch.float64), given, count)
        plain = logits(model, given, count)
        integration.enable(model, ALL)
        found = logits(model, given, count)
    agree(found, plain, truth)
    assert counted()["rms_norm", ""] >= 5
    assert (("moe_mlp", "") in counted()) == (family in ("GptOss", "Mixtral", "Qwen3Moe"))
    assert (("rotary_embedding", "") in counted()) == rotary
    assert {refused for op, refused in counted() if op.startswith("attention")} == {""}
    # GPT-OSS makes its masks without looking at positions: to it they are one sequence
    assert (("attention_varlen", "") in counted()) == (kind == "packed" and family != "GptOss")


@pytest.mark.parametrize("family", ["Llama", "Gemma2", "GptOss"], indirect=True)
def test_logits_in_bfloat16_are_as_near_the_truth_as_the_eager_path_s(
    family: str, make_model: MakeModel, tokens: Tokens
) -> None:
    given, count = inputs("left", tokens)
    model = make_model(family, torch.bfloat16)
    with torch.no_grad():
        truth = exact_logits(copy.deepcopy(model).double(), given, count)
        plain = logits(model, given, count)
        integration.enable(model, ALL)
        found = logits(model, given, count)
    agree(found, plain, truth)


def test_a_chunk_after_a_cached_prefix_sees_the_prefix(family: str, make_model: MakeModel, tokens: Tokens) -> None:
    ids = tokens(2, 23)
    model = make_model(family)
    with torch.no_grad():
        truth = make_model(family, torch.float64)(ids, use_cache=False).logits[:, 13:]
        plain = model(ids, use_cache=False).logits[:, 13:]
        integration.enable(model, ALL)
        first = model(ids[:, :13], use_cache=True)
        found = model(ids[:, 13:], past_key_values=first.past_key_values, use_cache=True).logits
    agree(found, plain, truth)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_gives_the_same_greedy_tokens_for_a_padded_batch(
    family: str, cache: str, make_model: MakeModel, tokens: Tokens, counted: Counted
) -> None:
    ids = tokens(3, 11)
    mask = padded(3, 11, "left", ids.device)
    model = make_model(family)
    # what compiles by itself on a GPU is another test's
    asked: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "disable_compile": True}
    asked["cache_implementation"] = cache
    plain = model.generate(ids, attention_mask=mask, **asked)
    integration.enable(model, ALL)
    found = model.generate(ids, attention_mask=mask, **asked)
    assert found.tolist() == plain.tolist()
    assert found.shape[1] > 13  # more than a first token came out of a cache
    assert {refused for op, refused in counted() if op == "attention"} == {""}


@pytest.mark.parametrize("kind", ["plain", "left", "packed"])
def test_gradients_are_those_of_the_eager_path(family: str, kind: str, make_model: MakeModel, tokens: Tokens) -> None:
    given, count = inputs(kind, tokens)
    weights = torch.randn(int(count.sum()), 96, generator=torch.Generator().manual_seed(3)).to(count.device)

    def gradients(model: Any, forward: Callable[..., Tensor] = logits) -> dict[str, Tensor]:
        (forward(model.train(), given, count) * weights).mean().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}

    truth, plain = gradients(make_model(family, torch.float64), exact_logits), gradients(make_model(family))
    model = make_model(family)
    integration.enable(model, ALL)
    found = gradients(model)
    assert found.keys() == plain.keys()
    assert any("layernorm" in name for name in found)
    for name, gradient in found.items():
        agree(gradient, plain[name], truth[name], factor=4.0)


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", ["plain", "left", "packed"])
@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Gemma2", "GptOss"], indirect=True)
def test_a_graph_without_breaks_gives_the_logits_of_the_eager_path(
    family: str, kind: str, rotary: bool, make_model: MakeModel, tokens: Tokens, counted: Counted
) -> None:
    given, count = inputs(kind, tokens)
    model = make_model(family)
    with torch.no_grad():
        truth = exact_logits(make_model(family, torch.float64), given, count)
        plain = logits(model, given, count)
        integration.enable(model, ALL)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        found = logits(compiled, given, count)
        traced = counted()
        compiled(**given)
    agree(found, plain, truth)
    assert traced.get(("rotary_embedding", ""), 0) == 2 * rotary  # once for each layer, while tracing
    assert counted() == traced  # a second call neither counts nor compiles again


def test_packed_sequences_reach_a_layer_that_alone_is_compiled(
    make_model: MakeModel, tokens: Tokens, counted: Counted
) -> None:
    given, _ = inputs("packed", tokens)
    model = make_model("Mistral")
    with torch.no_grad():
        truth = make_model("Mistral", torch.float64)(**given).logits
        plain = model(**given).logits
        integration.enable(model)
        for layer in model.model.layers:
            layer.compile(fullgraph=True, backend="aot_eager")
        found = model(**given).logits
    agree(found, plain, truth)
    assert counted()["attention_varlen", ""] >= 1
    assert ("attention", "") not in counted()


def test_gradients_come_through_a_compiled_model(make_model: MakeModel, tokens: Tokens) -> None:
    ids = tokens(2, 15)

    def gradients(model: Any, run: Any) -> list[Tensor]:
        run(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    truth, plain, model = make_model("Llama", torch.float64), make_model("Llama"), make_model("Llama")
    integration.enable(model, ALL)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for found, eager, exact in zip(
        gradients(model, compiled), gradients(plain, plain), gradients(truth, truth), strict=True
    ):
        agree(found, eager, exact, factor=4.0)


@needs_cxx
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # Inductor's import
def test_inductor_s_graph_gives_the_logits_of_the_eager_path(make_model: MakeModel, tokens: Tokens) -> None:
    given, count = inputs("left", tokens)
    model = make_model("Llama", num_hidden_layers=1)
    with torch.no_grad():
        truth = exact_logits(make_model("Llama", torch.float64, num_hidden_layers=1), given, count)
        plain = logits(model, given, count)
        integration.enable(model, ALL)
        found = logits(torch.compile(model, fullgraph=True), given, count)
    agree(found, plain, truth)


def test_flash_attention_s_arguments_for_packed_sequences_are_followed(
    make_model: MakeModel, tokens: Tokens, counted: Counted
) -> None:
    ids = tokens(1, 12)
    model = make_model("Llama")
    integration.enable(model, ("attention",))
    ends = torch.tensor([0, 5, 12], dtype=torch.int32, device=ids.device)
    named: dict[str, Any] = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 7, "max_length_k": 7}
    places = torch.cat([torch.arange(5), torch.arange(7)])[None].to(ids.device)
    with torch.no_grad():
        packed = model(ids, position_ids=places, use_cache=False, **named).logits
        alone = [model(part, use_cache=False).logits for part in (ids[:, :5], ids[:, 5:])]
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-5, atol=1e-5)
    assert counted()["attention_varlen", ""] == 2


def test_decoding_from_a_static_cache_compiles(make_model: MakeModel, tokens: Tokens, counted: Counted) -> None:
    from transformers import StaticCache

    ids = tokens(2, 12)
    model = make_model("Gemma2")
    with torch.no_grad():
        truth = make_model("Gemma2", torch.float64)(ids, use_cache=False).logits[:, 9:]
        plain = model(ids, use_cache=False).logits[:, 9:]
        integration.enable(model, ALL)
        cache = StaticCache(config=model.config, max_cache_len=16)
        model(ids[:, :9], past_key_values=cache)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")

        def step(at: int) -> Tensor:
            found: Tensor = compiled(ids[:, at : at + 1], past_key_values=cache).logits
            return found

        parts = [step(9), step(10)]
        traced = counted()
        parts.append(step(11))
    agree(torch.cat(parts, 1), plain, truth)
    assert counted() == traced  # transformers' cache has the first step traced for its length, the second for all


def test_a_graph_serves_other_lengths(make_model: MakeModel, tokens: Tokens, counted: Counted) -> None:
    one: dict[str, Any] = {"num_hidden_layers": 1}  # of Mistral's, which are all alike
    own, exact, model = (make_model("Mistral", dtype, **one) for dtype in (torch.float32, torch.float64, torch.float32))
    integration.enable(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    traced: dict[tuple[str, str], int] = {}
    with torch.no_grad():
        for length in (8, 15, 22):
            ids = tokens(2, length)
            found = compiled(ids, use_cache=False).logits
            agree(found, own(ids, use_cache=False).logits, exact(ids, use_cache=False).logits)
            traced = traced or counted()
    assert counted() == traced  # one graph


def test_autocast_computes_the_op_s_numbers_in_its_dtype(make_model: MakeModel, tokens: Tokens) -> None:
    ids = tokens(2, 15)
    model = make_model("Llama")
    with torch.no_grad():
        truth = make_model("Llama", torch.float64)(ids, use_cache=False).logits
        with torch.autocast(ids.device.type, torch.bfloat16):
            plain = model(ids, use_cache=False).logits
            integration.enable(model, ALL)
            found = model(ids, use_cache=False).logits
    assert found.dtype == plain.dtype
    agree(found, plain, truth)


def test_gradient_checkpointing_gives_the_same_gradients(make_model: MakeModel, tokens: Tokens) -> None:
    given, _ = inputs("packed", tokens)

    def gradients(model: Any) -> list[Tensor]:
        model.train()(**given, labels=given["input_ids"]).loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    plain, saving = make_model("Llama"), make_model("Llama")
    saving.gradient_checkpointing_enable()
    integration.enable(plain)
    integration.enable(saving)
    for whole, again in zip(gradients(plain), gradients(saving), strict=True):
        torch.testing.assert_close(again, whole)
