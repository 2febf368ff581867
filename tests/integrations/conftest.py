"""Small models of each family with random weights, and the state of the integration as it was before each test."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from portakernel.integrations import transformers as integration  # noqa: E402 - after the skip

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WINDOW = 6

_SHARED: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 95,
}
# transformers' default multiplies no float64; its loop over experts breaks graphs
_EXPERTS: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "experts_implementation": "batched_mm",
}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": WINDOW},
    "Qwen3": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "Gemma": {"hidden_activation": "gelu_pytorch_tanh"},
    "Gemma2": {"sliding_window": WINDOW, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16},
    "GptOss": {"sliding_window": WINDOW, **_EXPERTS},
    "Mixtral": {"sliding_window": WINDOW, **_EXPERTS},
    "Qwen3Moe": {
        "moe_intermediate_size": 24,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "norm_topk_prob": False,
        "mlp_only_layers": [1],
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "experts_implementation": "batched_mm",
    },
}


def _make_model(family: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    configuration = getattr(transformers, f"{family}Config")(
        **(_SHARED | CONFIGURATIONS[family] | {"attn_implementation": "eager"} | more)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        model = getattr(transformers, f"{family}ForCausalLM")(configuration)
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("norm", "sinks", "bias")):
                parameter.data += 0.3 * torch.randn_like(parameter)
    return model.to(DEVICE, dtype).eval()


@pytest.fixture
def make_model() -> Callable[..., Any]:
    """Makes a family's model, the same one each time, with norms, sinks and biases that are not neutral."""
    return _make_model


@pytest.fixture
def tokens() -> Callable[[int, int], torch.Tensor]:
    """Random tokens, the same ones each time, none of them special."""

    def draw(rows: int, length: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(7 * rows + length)
        return torch.randint(2, 95, (rows, length), generator=generator).to(DEVICE)

    return draw


@pytest.fixture
def rotary() -> bool:
    """Whether rotary positions can be replaced: only with the package kernels, of a version that transformers takes."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    return isinstance(apply_rotary_pos_emb, torch.nn.Module)


@pytest.fixture(params=CONFIGURATIONS)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def switched_off() -> Iterator[None]:
    yield
    integration.disable()
    if "torch._dynamo" in sys.modules:
        # all models are traced through one wrapper of transformers, whose graphs add up to dynamo's limit
        torch.compiler.reset()


@pytest.fixture
def counted() -> Callable[[], dict[tuple[str, str], int]]:
    """The calls and traces by op and reason since the test began."""

    def totals() -> Counter[tuple[str, str]]:
        found = Counter[tuple[str, str]]()
        for row in integration.report():
            found[row.op, row.refused] += row.calls + row.traces
        return found

    before = totals()
    return lambda: dict(totals() - before)
