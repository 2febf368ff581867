"""What enable replaces, disable restores; what it cannot replace, it says."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    BertConfig,
    BertModel,
)

from portakernel.errors import ArgumentTypeError, ArgumentValueError, ClientWarning, UnknownNameError
from portakernel.integrations import transformers as integration
from portakernel.integrations import versions

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
]

MakeModel = Callable[..., Any]
Tokens = Callable[[int, int], Tensor]
Counted = Callable[[], dict[tuple[str, str], int]]

ALL = ("attention", "rms_norm", "silu_and_mul", "gelu_and_mul", "moe_route", "moe_mlp", "rotary_embedding")


def registration_hooks() -> list[Any]:
    from torch.nn.modules import module

    return list(module._global_module_registration_hooks.values())


def state(model: Any) -> tuple[Any, ...]:
    """What enable may change of a model, and of what it shares with others."""
    module = sys.modules[type(model).__module__]
    own = [(name, sorted(vars(part))) for name, part in model.named_modules()]
    rotary = module.apply_rotary_pos_emb  # type: ignore[attr-defined]
    shared = AttentionInterface()["sdpa"], AttentionMaskInterface()["sdpa"], registration_hooks()
    return model.config._attn_implementation, own, sorted(vars(rotary)), shared


def test_disable_restores_a_model_exactly(family: str, make_model: MakeModel) -> None:
    model = make_model(family)
    before = state(model)
    integration.enable(model, ALL)
    assert state(model) != before
    integration.disable(model)
    assert state(model) == before


def test_disable_without_a_model_restores_everything(make_model: MakeModel) -> None:
    first, second = make_model("Llama"), make_model("Gemma")
    before = state(first), state(second)
    integration.enable(first, ALL)
    integration.enable(second)
    integration.enable()
    integration.disable()
    assert (state(first), state(second)) == before


def test_another_model_stays_as_it_is(make_model: MakeModel, tokens: Tokens, counted: Counted) -> None:
    one, other = make_model("Llama"), make_model("Llama")
    before = state(other)
    integration.enable(one)
    assert state(other) == before
    other(tokens(1, 4))
    assert counted() == {}


def test_the_outcome_says_what_is_replaced_and_what_is_not(make_model: MakeModel) -> None:
    assert str(integration.enable(make_model("Llama"))) == (
        'attention         attn_implementation="portakernel", before: "eager"\n'
        "silu_and_mul      LlamaMLP (2 times)\n"
        "rms_norm          LlamaRMSNorm (5 times)\n"
        "rotary_embedding  not in llama's apply_rotary_pos_emb: one function for all models of the family: name"
        " rotary_embedding in ops to replace it for all"
    )
    outcome = integration.enable(make_model("Mixtral"), ("silu_and_mul",))
    assert str(outcome) == "gelu_and_mul, silu_and_mul not in MixtralExperts (2 times): these are moe_mlp's experts"
    outcome = integration.enable(make_model("Mixtral"), ("moe_route", "moe_mlp"))
    assert str(outcome) == ("moe_route         MixtralTopKRouter (2 times)\nmoe_mlp           MixtralExperts (2 times)")
    outcome = integration.enable(make_model("GptOss"), ("moe_route", "moe_mlp"))
    assert str(outcome) == ("moe_route         GptOssTopKRouter (2 times)\nmoe_mlp           GptOssExperts (2 times)")


def test_an_activation_without_an_op_is_left(make_model: MakeModel) -> None:
    outcome = integration.enable(make_model("Llama", hidden_act="relu"))
    (left,) = {left for left in outcome.left if left.what == "LlamaMLP"}
    assert left.reason == "no op has the activation ReLU"


def test_experts_with_another_clamped_gate_are_left(make_model: MakeModel) -> None:
    outcome = integration.enable(make_model("GptOss", swiglu_limit=5.0), ("moe_mlp",))
    reason = "the op's clamped gate has alpha 1.702 and limit 7.0; this has 1.702 and 5.0"
    assert str(outcome) == f"moe_mlp           not in GptOssExperts (2 times): {reason}"


def test_only_the_named_ops_are_replaced(make_model: MakeModel, tokens: Tokens, counted: Counted) -> None:
    model = make_model("Llama")
    integration.enable(model, ("rms_norm",))
    model(tokens(1, 4))
    assert counted() == {("rms_norm", ""): 5}
    assert model.config._attn_implementation == "eager"


def test_enabling_twice_is_enabling_once(make_model: MakeModel, tokens: Tokens, counted: Counted) -> None:
    model = make_model("Llama")
    before = state(model)
    integration.enable(model, ("rms_norm",))
    integration.enable(model, ("rms_norm", "silu_and_mul"))
    model(tokens(1, 4))
    assert counted() == {("rms_norm", ""): 5, ("silu_and_mul", ""): 2}
    integration.disable(model)
    integration.disable(model)
    assert state(model) == before


def test_a_with_block_ends_what_it_began(make_model: MakeModel) -> None:
    model = make_model("Llama")
    before = state(model)
    with integration.enable(model):
        inside = state(model)
        with integration.enable(model):
            pass
        assert state(model) == inside != before
    assert state(model) == before


def test_a_with_block_for_all_models_leaves_those_that_were_enabled_themselves(make_model: MakeModel) -> None:
    one = make_model("Llama")
    integration.enable(one, ALL)
    before = state(one)
    with integration.enable():
        born = make_model("Llama")
        assert "forward" in vars(born.model.norm)
    assert "forward" not in vars(born.model.norm)
    assert state(one) == before


def test_rotary_positions_stay_replaced_as_long_as_one_model_wants_them(rotary: bool, make_model: MakeModel) -> None:
    if not rotary:
        pytest.skip("the package kernels is not installed in a version that transformers accepts")
    one, other = make_model("Llama"), make_model("Llama")
    before = state(one)
    integration.enable(one, ("rotary_embedding",))
    integration.enable(other, ("rotary_embedding",))
    integration.disable(one)
    assert state(one)[2] != before[2]
    integration.disable(other)
    assert state(one) == before


def test_a_forward_that_somebody_else_set_is_left(make_model: MakeModel) -> None:
    model = make_model("Llama")
    norm = model.model.norm
    norm.forward = own = lambda x: x
    outcome = integration.enable(model)
    assert [(left.what, left.reason) for left in outcome.left if left.op == "rms_norm"] == [
        ("LlamaRMSNorm", "somebody else replaced the instance's forward")
    ]
    integration.disable(model)
    assert norm.forward is own


def test_an_attention_that_was_chosen_meanwhile_stays(make_model: MakeModel) -> None:
    model = make_model("Llama")
    integration.enable(model)
    model.set_attn_implementation("sdpa")
    integration.disable(model)
    assert model.config._attn_implementation == "sdpa"


def test_a_copy_of_an_enabled_model_is_enabled(make_model: MakeModel, tokens: Tokens, counted: Counted) -> None:
    ids = tokens(1, 6)
    model = make_model("Llama")
    integration.enable(model)
    with torch.no_grad():
        expected = model(ids).logits
        before = counted()["rms_norm", ""]
        assert torch.equal(copy.deepcopy(model)(ids).logits, expected)
    assert counted()["rms_norm", ""] == 2 * before


def test_a_model_is_not_kept_alive(make_model: MakeModel) -> None:
    model = make_model("Llama")
    integration.enable(model, ALL)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_without_a_model_sdpa_attention_and_models_to_come_are_served(
    rotary: bool, make_model: MakeModel, tokens: Tokens, counted: Counted
) -> None:
    ids = tokens(2, 9)
    existing = make_model("Gemma", attn_implementation="sdpa")
    with torch.no_grad():
        expected = existing(ids).logits
        integration.enable()
        found = existing(ids).logits
        seen = {op: calls for (op, refused), calls in counted().items() if not refused}
        assert seen == {"attention": 2} | ({"rotary_embedding": 2} if rotary else {})
        born = make_model("Gemma", attn_implementation="sdpa")
        born.load_state_dict(existing.state_dict())
        again = born(ids).logits
    assert counted()["rms_norm", ""] == 5
    assert counted()["gelu_and_mul", ""] == 2
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=5e-5)
    torch.testing.assert_close(again, expected, rtol=1e-5, atol=5e-5)
    assert type(born.model.norm) is type(existing.model.norm)
    integration.disable()
    before = counted()
    with torch.no_grad():
        assert torch.equal(existing(ids).logits, expected)
        assert torch.equal(born(ids).logits, expected)
    assert counted() == before


def test_any_model_s_sdpa_attention_is_served_without_a_model(tokens: Tokens, counted: Counted) -> None:
    ids = tokens(2, 9)
    config = BertConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32,
        attn_implementation="sdpa",
    )  # fmt: skip
    model = BertModel(config).to(ids.device).eval()
    mask = (torch.arange(9, device=ids.device) < torch.tensor([[9], [4]], device=ids.device)).long()
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).last_hidden_state
        integration.enable(ops=("attention",))
        found = model(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert counted() == {("attention", ""): 1}


def test_without_the_kernels_package_rotary_positions_are_left(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("Llama")
    module = sys.modules[type(model).__module__]
    monkeypatch.setattr(module, "apply_rotary_pos_emb", lambda q, k, cos, sin: (q, k))
    (left,) = integration.enable(model, ("rotary_embedding",)).left
    assert left.reason == (
        "transformers lets it be replaced only with the package kernels, in a version that it accepts"
    )


def test_an_op_without_a_place_in_transformers_is_refused(make_model: MakeModel) -> None:
    with pytest.raises(UnknownNameError) as error:
        integration.enable(make_model("Llama"), ("rms_nrom",))
    assert str(error.value) == "enable: unknown op of transformers 'rms_nrom'; did you mean 'rms_norm'?"
    with pytest.raises(ArgumentTypeError, match=r"ops is a sequence of names, such as \('rms_norm',\)"):
        integration.enable(make_model("Llama"), "rms_norm")
    text = "ops is empty; name some of attention, gelu_and_mul, moe_mlp, moe_route, rms_norm"
    with pytest.raises(ArgumentValueError, match=text):
        integration.enable(make_model("Llama"), ())


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match=r"takes a model of transformers .*; Linear was given"):
        integration.enable(nn.Linear(1, 1))  # type: ignore[arg-type]


def test_a_model_type_that_was_not_tested_is_refused() -> None:
    config = BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    with pytest.raises(ArgumentValueError) as error:
        integration.enable(BertModel(config))
    assert str(error.value) == (
        "enable: BertModel has the model type 'bert', which was not tested; tested are gemma, gemma2, gpt_oss, llama,"
        " mistral, mixtral, qwen3, qwen3_moe. Its attention alone may still be served: call enable() without a model,"
        " which serves what is set to sdpa"
    )


@pytest.mark.parametrize("found", ["4.57.6", "5.16.1", "5.24.0", "6.0.0"])
def test_versions_that_were_not_tested_are_refused(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda name: found)
    with pytest.raises(integration.UnsupportedVersionError, match=f"{found} is installed"):
        integration.enable()
    with pytest.raises(integration.UnsupportedVersionError, match="tested with transformers"):
        integration.disable()


def test_without_transformers_the_import_works_and_enable_says_what_to_install() -> None:
    program = """
import sys
sys.modules["transformers"] = None
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "transformers" else find_spec(name, *more)
from portakernel.integrations import transformers as integration
assert "torch" not in sys.modules
try:
    integration.enable()
except integration.UnsupportedVersionError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "which is not installed; install portakernel[transformers]" in ran.stdout


def test_enabled_layers_without_a_call_are_reported_as_bypassed_until_one_comes(
    make_model: MakeModel, tokens: Tokens
) -> None:
    model = make_model("Llama")
    integration.enable(model, ops=("rms_norm",))
    before = {row.layer: row for row in integration.report() if row.bypassed}
    if "norm like Llama's" in before:  # other tests of this process may have met the layer
        assert "no call reached them; run the model" in before["norm like Llama's"].refused
    model(tokens(1, 4))
    assert not any(row.bypassed for row in integration.report())


def test_an_op_with_another_epsilon_is_noticed_at_the_first_call_and_left_to_the_model(
    make_model: MakeModel, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    from portakernel.integrations.transformers.layers import LLAMA_NORM

    model, batch = make_model("Llama"), tokens(1, 4)
    expected = model(batch).logits
    monkeypatch.setattr(
        LLAMA_NORM, "ours", lambda module, x: torch.nn.functional.rms_norm(x, x.shape[-1:], module.weight, 0.1)
    )
    with integration.enable(model, ops=("rms_norm",)), pytest.warns(ClientWarning, match="portakernel stands back"):
        assert torch.equal(model(batch).logits, expected)
