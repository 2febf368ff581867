"""vLLM's fp8 linear layers by ``scaled_mm``: chosen first, near to float64, left where the op lacks a form."""

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from client_environment import require
from torch import nn

require("vllm")

from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config  # noqa: E402 - after the skip
from vllm.model_executor.kernels import linear as kernels  # noqa: E402
from vllm.model_executor.layers.quantization.utils import quant_utils as keys  # noqa: E402

from portakernel.errors import ClientWarning  # noqa: E402
from portakernel.integrations import vllm as integration  # noqa: E402
from portakernel.integrations.client import client  # noqa: E402
from portakernel.integrations.ledger import Ledger  # noqa: E402
from portakernel.integrations.vllm import linear, switch  # noqa: E402

ROWS, WIDTH, RESULTS = 9, 128, 96
ACTIVATIONS = {
    "a dynamic scale": keys.kFp8DynamicTensorSym,
    "a scale a token": keys.kFp8DynamicTokenSym,
    "a static scale": keys.kFp8StaticTensorSym,
}
WEIGHTS = {"one scale": keys.kFp8StaticTensorSym, "a scale a channel": keys.kFp8StaticChannelSym}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Each test begins with the linear layers enabled, and ends without portakernel under vLLM."""
    linear.left.clear()
    integration.enable(["scaled_mm"])
    yield
    integration.disable()
    switch.switch.cache_clear()
    linear.left.clear()
    record = client("vllm")
    record.ledger = Ledger()
    record._made.clear()
    record._warned.clear()
    gc.collect()


def _kernel(activation: Any, weight: Any, dtype: torch.dtype) -> Any:
    with set_current_vllm_config(VllmConfig(compilation_config=CompilationConfig(custom_ops=["none"]))):
        return kernels.init_fp8_linear_kernel(
            activation_quant_key=activation,
            weight_quant_key=weight,
            weight_shape=(RESULTS, WIDTH),
            input_dtype=dtype,
            out_dtype=dtype,
        )


def _layer(activation: Any, weight: Any) -> tuple[nn.Module, torch.Tensor]:
    numbers = torch.randn(RESULTS, WIDTH)
    scale = numbers.abs().amax(-1, keepdim=True) / 448
    if weight.scale.group_shape.is_per_tensor():
        scale = scale.amax().reshape(1)
    layer = nn.Module()
    layer.weight = (numbers / scale).to(torch.float8_e4m3fn).t()
    layer.weight_scale = scale
    layer.input_scale = torch.tensor([0.02]) if activation.scale.static else None
    layer.input_scale_ub = None
    return layer, layer.weight.t().double() * scale.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_layer_is_served_as_near_to_float64_as_vllms_own(
    activation: str, weight: str, bias: bool, dtype: torch.dtype
) -> None:
    of_input, of_weight = ACTIVATIONS[activation], WEIGHTS[weight]
    kernel = _kernel(of_input, of_weight, dtype)
    assert type(kernel) is linear.PortakernelFP8ScaledMMLinearKernel
    layer, numbers = _layer(of_input, of_weight)
    x, added = torch.randn(ROWS, WIDTH).to(dtype), torch.randn(RESULTS).to(dtype) if bias else None
    found = kernel.apply_weights(layer, x, added)
    q, scale = kernel.quant_fp8(x, layer.input_scale)
    exact = (q.double() * scale.double()) @ numbers.t() + (0.0 if added is None else added.double())
    scales = (each.reshape(()) if each.numel() == 1 else each for each in (scale, layer.weight_scale))
    own = linear.SCALED_MM.own(kernel, q, layer.weight.t(), *scales, added)
    assert found.shape == own.shape == (ROWS, RESULTS)
    assert found.dtype == dtype
    errors = [float((each.double() - exact).square().mean().sqrt()) for each in (found, own)]
    # float32 sums in another order are a few units in the last place of the largest apart
    assert errors[0] <= 1.05 * errors[1] + 3e-7 * float(exact.abs().max())
    (row,) = (row for row in integration.report() if row.calls)
    assert (row.layer, row.op, row.outcome, row.calls) == (linear.LAYER, "scaled_mm", "served", 1)


def test_scales_in_each_others_place_stand_back_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    real = linear.ops.scaled_mm
    monkeypatch.setattr(linear.ops, "scaled_mm", lambda a, b, x, y, **named: real(a, b, x.flip(0), y, **named))
    of_input, of_weight = keys.kFp8DynamicTokenSym, keys.kFp8StaticChannelSym
    kernel, (layer, _) = _kernel(of_input, of_weight, torch.float32), _layer(of_input, of_weight)
    with pytest.warns(ClientWarning, match=f"^vllm's {linear.LAYER} computes for itself, portakernel stands back: "):
        kernel.apply_weights(layer, torch.randn(ROWS, WIDTH))


def test_a_result_of_another_dtype_is_vllms_and_told() -> None:
    kernel = _kernel(keys.kFp8DynamicTensorSym, keys.kFp8StaticTensorSym, torch.float64)
    assert type(kernel) is not linear.PortakernelFP8ScaledMMLinearKernel
    reasons = [row.refused for row in integration.report() if row.layer == linear.LAYER]
    assert "has no result of torch.float64 (asked 1 times)" in reasons


def test_blocks_are_told_to_be_vllms() -> None:
    scales = SimpleNamespace(
        dtype=torch.float8_e4m3fn,
        scale2=None,
        symmetric=True,
        scale=SimpleNamespace(group_shape=keys.GroupShape(128, 128)),
    )
    config = SimpleNamespace(weight_quant_key=scales, activation_quant_key=scales, out_dtype=torch.bfloat16)
    answer = linear.PortakernelFP8ScaledMMLinearKernel.can_implement(config)
    assert answer == (False, "needs one weight scale for the tensor or for each row")
    assert linear.BLOCKS in [left.reason for left in integration.enable(["scaled_mm"]).left]


def test_batch_invariance_is_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    answer = linear.PortakernelFP8ScaledMMLinearKernel.is_supported()
    assert answer == (False, "VLLM_BATCH_INVARIANT asks for a kernel of vLLM's")


def test_disabling_leaves_vllms_list_as_it_was() -> None:
    integration.disable()
    before = {platform: list(listed) for platform, listed in kernels._POSSIBLE_FP8_KERNELS.items()}
    integration.enable(["scaled_mm"])
    integration.enable(["scaled_mm"])
    ours = [name for listed in kernels._POSSIBLE_FP8_KERNELS.values() for name in listed]
    assert ours.count(linear.PortakernelFP8ScaledMMLinearKernel) == 1
    integration.disable()
    assert before == kernels._POSSIBLE_FP8_KERNELS
