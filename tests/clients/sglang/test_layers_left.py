"""What an op cannot compute is SGLang's own, with its numbers, and counted with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("sglang", reason="make clients CLIENTS=sglang runs these")

from portakernel.integrations import sglang as integration

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
]

MakeLayer = Callable[[str, torch.dtype], tuple[Any, tuple[Any, ...]]]
NORMS = [
    ({"var_hidden_size": 32}, "var_hidden_size: the op's mean is that of the whole row"),
    ({"has_weight": False}, "no weight: the op multiplies by one"),
    ({"cast_x_before_out_mul": True}, "cast_x_before_out_mul: the op rounds once, after the weight"),
    (
        {"override_orig_dtype": torch.bfloat16},
        "override_orig_dtype=torch.bfloat16: the op's result has the input's dtype",
    ),
    (
        {"force_native": True},
        "SGLang pinned this instance to its forward_native, or called it before portakernel was enabled",
    ),
    (
        {"weight_dtype": torch.float64},
        "a weight of torch.float64 beside an input of torch.float32: the op takes the latter or float32",
    ),
]


def refusals() -> dict[str, int]:
    return {row.refused: row.calls for row in integration.report() if row.calls}


@pytest.mark.parametrize(("given", "reason"), NORMS)
def test_a_norm_that_the_op_is_not_is_sglang_s_own(given: dict[str, Any], reason: str) -> None:
    from sglang.srt.layers.layernorm import RMSNorm

    integration.enable()
    layer, x = RMSNorm(64, **given), torch.randn(5, 64)
    with torch.no_grad():
        assert torch.equal(layer(x), layer.forward_native(x))
    assert refusals() == {reason: 1}


def test_an_addition_after_the_residual_is_not_lost() -> None:
    from sglang.srt.layers.layernorm import RMSNorm

    integration.enable()
    layer, x = RMSNorm(64), torch.randn(3, 5, 64).unbind()
    with torch.no_grad():
        for result in (layer(*x), layer(x[0], x[1], post_residual_addition=x[2])):
            for mine, own in zip(result, layer.forward_native(*x), strict=True):
                assert torch.equal(mine, own)
    assert refusals() == {"post_residual_addition: the op has no such argument": 2}


def test_offsets_of_positions_are_not_lost(make_layer: MakeLayer) -> None:
    integration.enable()
    layer, (positions, query, key) = make_layer("RotaryEmbedding, halves", torch.float32)
    offsets = torch.randint(0, 8, positions.shape)
    positions = positions.clamp(max=200)
    result = layer(positions, query, key, offsets=offsets)
    for mine, own in zip(result, layer.forward_native(positions, query, key, offsets), strict=True):
        assert torch.equal(mine, own)
    assert refusals() == {"offsets: the op has no such argument": 1}


def test_a_backend_that_a_caller_asks_for_is_sglang_s() -> None:
    from sglang.kernels.spec import KernelBackend
    from sglang.srt.layers.activation import SiluAndMul

    integration.enable()
    layer, x = SiluAndMul(), torch.randn(5, 64)
    assert torch.equal(layer(x, backend=KernelBackend.TORCH), layer.forward_native(x))
    assert refusals() == {"backend: the op has no such argument": 1}


def test_a_backend_that_is_forced_is_sglang_s() -> None:
    from sglang.kernels.fused_op import set_fused_op_backend
    from sglang.kernels.spec import KernelBackend
    from sglang.srt.layers.activation import SiluAndMul

    integration.enable()
    layer, x = SiluAndMul(), torch.randn(5, 64)
    set_fused_op_backend(KernelBackend.TORCH)
    try:
        assert torch.equal(layer(x), layer.forward_native(x))
    finally:
        set_fused_op_backend(None)
    assert refusals() == {"SGLANG_FORCE_FUSED_OP_BACKEND=torch; unset it to have the op serve": 1}


def test_batch_invariance_is_sglang_s(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.batch_invariant_ops import batch_invariant_ops
    from sglang.srt.layers.activation import SiluAndMul

    integration.enable()
    monkeypatch.setattr(batch_invariant_ops, "_batch_invariant_MODE", True)
    layer, x = SiluAndMul(), torch.randn(5, 64)
    assert torch.equal(layer(x), layer.forward_native(x))
    assert refusals() == {"SGLang's batch invariant mode: kernels may differ between batches": 1}


def test_a_subclass_with_a_formula_of_its_own_is_sglang_s() -> None:
    from sglang.srt.layers.rotary_embedding.mrope import MRotaryEmbedding

    integration.enable()
    layer = MRotaryEmbedding(32, 32, 128, 10000, True, torch.float32, [4, 6, 6])
    given = torch.randint(0, 128, (3, 9)), torch.randn(9, 64), torch.randn(9, 64)
    for mine, own in zip(layer(*given), layer.forward_native(*given), strict=True):
        assert torch.equal(mine, own)
    assert {(row.layer, row.refused) for row in integration.report() if row.calls} == {
        ("MRotaryEmbedding", "MRotaryEmbedding has its own forward_cpu")
    }


def test_a_layer_made_before_is_served_from_its_next_call_on() -> None:
    from sglang.srt.layers.activation import SiluAndMul

    layer, x = SiluAndMul(), torch.randn(5, 64)
    integration.enable()
    layer(x)
    assert refusals() == {"": 1}
    integration.disable()
    assert not [name for name in vars(layer) if "portakernel" in name]


def test_words_name_what_is_hooked() -> None:
    from sglang.srt.layers.activation import GeluAndMul, SiluAndMul

    integration.enable(["silu_and_mul"])
    x = torch.randn(5, 64)
    SiluAndMul()(x), GeluAndMul()(x)
    assert [(row.layer, row.outcome) for row in integration.report()] == [("SiluAndMul", "served")]
    integration.enable(["gelu_and_mul"])
    GeluAndMul()(x)
    assert {(row.layer, row.outcome) for row in integration.report()} == {
        ("SiluAndMul", "served"),
        ("GeluAndMul", "served"),
    }
