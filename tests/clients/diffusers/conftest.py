"""Tiny models of random weights, and diffusers as it was before each test."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

HAS_DIFFUSERS = importlib.util.find_spec("diffusers") is not None


@dataclass(frozen=True)
class Model:
    """A model with the arguments of one forward, all in float64."""

    module: Any
    given: dict[str, Any]

    def at(self, dtype: torch.dtype) -> Model:
        given = {
            name: each.to(dtype) if each.is_floating_point() and name not in ("img_ids", "txt_ids") else each
            for name, each in self.given.items()
        }
        return Model(self.module.to(dtype), given)

    def __call__(self, by: Any = None) -> Tensor:
        run = self.module if by is None else by
        result: Tensor = run(**self.given, return_dict=False)[0]
        return result


def _make(kind: str) -> Model:
    import diffusers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(27)
        if kind == "Flux":
            module: Any = diffusers.FluxTransformer2DModel(
                patch_size=1,
                in_channels=4,
                num_layers=1,
                num_single_layers=1,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=32,
                pooled_projection_dim=32,
                axes_dims_rope=[4, 4, 8],
            )
            given = {
                "hidden_states": torch.randn(2, 16, 4),
                "encoder_hidden_states": torch.randn(2, 8, 32),
                "pooled_projections": torch.randn(2, 32),
                "timestep": torch.tensor([0.3, 0.9]),
                "img_ids": torch.randn(16, 3),
                "txt_ids": torch.randn(8, 3),
            }
        elif kind == "Wan":
            module = diffusers.WanTransformer3DModel(
                patch_size=(1, 2, 2),
                num_attention_heads=2,
                attention_head_dim=12,
                in_channels=4,
                out_channels=4,
                text_dim=16,
                freq_dim=32,
                ffn_dim=32,
                num_layers=2,
                cross_attn_norm=True,
                qk_norm="rms_norm_across_heads",
                rope_max_seq_len=32,
            )
            given = {
                "hidden_states": torch.randn(2, 4, 2, 8, 8),
                "encoder_hidden_states": torch.randn(2, 12, 16),
                "timestep": torch.tensor([500, 20]),
            }
        else:
            module = diffusers.UNet2DConditionModel(
                block_out_channels=(8, 16),
                layers_per_block=1,
                sample_size=16,
                in_channels=4,
                out_channels=4,
                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
                up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
                cross_attention_dim=32,
                norm_num_groups=2,
                attention_head_dim=2,
            )
            given = {
                "sample": torch.randn(2, 4, 16, 16),
                "timestep": torch.tensor([10]),
                "encoder_hidden_states": torch.randn(2, 6, 32),
                "encoder_attention_mask": torch.tensor([[1, 1, 1, 0, 0, 1], [1, 0, 1, 1, 1, 0]], dtype=torch.bool),
            }
        for parameter in module.parameters():  # scores that are no ties
            parameter.data.mul_(2.0)
    return Model(module.eval(), given).at(torch.float64)


@pytest.fixture
def make_model() -> Callable[[str], Model]:
    """Makes the model of a kind, the same one each time, in float64."""
    return _make


@pytest.fixture(params=["Flux", "Wan", "UNet"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def switched_off() -> Iterator[None]:
    yield
    if HAS_DIFFUSERS and "portakernel.integrations.diffusers.switch" in sys.modules:
        from portakernel.integrations import diffusers as integration
        from portakernel.integrations.client import client

        integration.disable()
        client.cache_clear()
        torch.compiler.reset()


@pytest.fixture
def counted() -> Callable[[], dict[str, tuple[int, int]]]:
    """Calls and traces by reason, empty for those that were served."""

    def rows() -> dict[str, tuple[int, int]]:
        from portakernel.integrations import diffusers as integration

        return {row.refused: (row.calls, row.traces) for row in integration.report()}

    return rows
