"""SGLang's layers on a CPU without its kernels, and hooks as they were before each test."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

HAS_SGLANG = importlib.util.find_spec("sglang") is not None

# SGLang imports torchvision, of which PyPI has a CUDA build: beside a CPU torch its operators are missing, of which it
# describes these two when it is imported.
TORCHVISION = """
import torch
for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
if HAS_SGLANG and "torchvision" not in sys.modules:
    exec(TORCHVISION)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a CPU has not
        import sglang.srt.layers.activation
        import sglang.srt.layers.layernorm
        import sglang.srt.layers.logits_processor
        import sglang.srt.layers.rotary_embedding.base
    # what SGLANG_USE_CPU_ENGINE=1 says; with it SGLang imports its kernels, which are not here
    sglang.srt.layers.rotary_embedding.base._is_cpu = True


@pytest.fixture(autouse=True)
def switched_off() -> Iterator[None]:
    yield
    if HAS_SGLANG and "portakernel.integrations.sglang.switch" in sys.modules:
        from sglang.srt.plugins.hook_registry import HookRegistry

        from portakernel.integrations import sglang as integration
        from portakernel.integrations.client import client

        integration.disable()
        assert not HookRegistry._hooks
        assert not HookRegistry._patched
        client.cache_clear()
        torch.compiler.reset()


LAYERS = (
    "RMSNorm",
    "RMSNorm with a residual",
    "GemmaRMSNorm",
    "GemmaRMSNorm with a residual",
    "SiluAndMul",
    "GeluAndMul, tanh",
    "GeluAndMul, erf",
    "RotaryEmbedding, halves",
    "RotaryEmbedding, pairs, part of each head",
    "Llama3RotaryEmbedding",
    "YaRNScalingRotaryEmbedding",
)


@pytest.fixture(params=LAYERS)
def layer_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make_layer() -> Callable[[str, torch.dtype], tuple[Any, tuple[Any, ...]]]:
    """Makes a layer of SGLang with weights that are not neutral, and arguments of one call."""
    return _make


def _make(name: str, dtype: torch.dtype) -> tuple[Any, tuple[Any, ...]]:
    from sglang.srt.layers import activation, layernorm, rotary_embedding

    generator = torch.Generator().manual_seed(27)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    kind, _, form = name.partition(" with ") if " with " in name else name.partition(", ")
    if kind in ("RMSNorm", "GemmaRMSNorm"):
        layer: Any = getattr(layernorm, kind)(96, eps=1e-5)
        layer.weight.data = (0.5 + torch.rand(96, generator=generator)).to(dtype)
        return layer, (draw(33, 96), draw(33, 96)) if form else (draw(33, 96),)
    if kind == "SiluAndMul":
        return activation.SiluAndMul(), (draw(33, 128),)
    if kind == "GeluAndMul":
        return activation.GeluAndMul("tanh" if form == "tanh" else "none"), (draw(33, 128),)
    halves, width = form != "pairs, part of each head", 16 if form == "pairs, part of each head" else 32
    given = (32, width, 256, 10000, halves)
    if kind == "Llama3RotaryEmbedding":
        layer = rotary_embedding.rope_variant.Llama3RotaryEmbedding(*given, dtype, 8.0, 1.0, 4.0, 64)
    elif kind == "YaRNScalingRotaryEmbedding":
        layer = rotary_embedding.yarn.YaRNScalingRotaryEmbedding(*given, 4.0, dtype)
    else:
        layer = rotary_embedding.base.RotaryEmbedding(*given, dtype)
    positions = torch.randint(0, 256, (33,), generator=generator)
    return layer, (positions, draw(33, 4 * 32), draw(33, 2 * 32))
