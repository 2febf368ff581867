"""SGLang's layers by portakernel's ops give SGLang's own numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("sglang", reason="make clients CLIENTS=sglang runs these")

from portakernel.integrations import sglang as integration
from portakernel.integrations.first_calls import LARGER, shortfall
from portakernel.runtime import contract_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
]

MakeLayer = Callable[[str, torch.dtype], tuple[Any, tuple[Any, ...]]]
RESIDUAL = "residual: SGLang norms the sum in float32, the op the one that is rounded, which is less exact"


def tensors(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else result


def copied(given: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each.clone() for each in given)


def exact(layer: Any, given: tuple[Any, ...]) -> Any:
    """SGLang's own forward_native of the same numbers in float64; norms compute in float32 whatever they are given."""
    numbers = [each.double() if each.is_floating_point() else each for each in given]
    if hasattr(layer, "variance_epsilon"):
        summed = numbers[0] + numbers[1] if len(numbers) > 1 else numbers[0]
        weight = layer.weight.double() + (1.0 if type(layer).__name__ == "GemmaRMSNorm" else 0.0)
        y = summed * (summed.square().mean(-1, keepdim=True) + layer.variance_epsilon).rsqrt() * weight
        return (y, summed) if len(numbers) > 1 else y
    if hasattr(layer, "cos_sin_cache"):
        kept, layer.cos_sin_cache = layer.cos_sin_cache, layer.cos_sin_cache.double()
        result = layer.forward_native(*numbers)
        layer.cos_sin_cache = kept
        return result
    return layer.forward_native(*numbers)


def rms(distance: Tensor) -> float:
    return float(distance.double().square().mean().sqrt())


def agree(result: Any, native: Any, truth: Any, op: str) -> None:
    assert shortfall(result, native, truth, contract_of(op).tolerance) == ""
    for mine, own, right in zip(tensors(result), tensors(native), tensors(truth), strict=True):
        if own.dtype == torch.float32:
            torch.testing.assert_close(mine, own, rtol=2e-6, atol=2e-6)
        else:
            assert rms(mine - right) <= LARGER * rms(own - right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_layer_that_is_hooked_gives_its_own_numbers(
    layer_name: str, dtype: torch.dtype, make_layer: MakeLayer
) -> None:
    integration.enable()
    layer, given = make_layer(layer_name, dtype)
    with torch.no_grad():
        native, truth = layer.forward_native(*copied(given)), exact(layer, given)
        result = layer(*copied(given))
        again = layer(*copied(given))
    (row,) = (row for row in integration.report() if row.calls)
    assert (row.layer, row.calls) == (type(layer).__name__, 2)
    if layer_name == "RMSNorm with a residual" and dtype != torch.float32:
        assert row.refused == RESIDUAL
        assert all(torch.equal(*pair) for pair in zip(result, native, strict=True))
        return
    assert row.outcome == "served", str(row)
    agree(result, native, truth, row.op)
    for one, other in zip(tensors(result), tensors(again), strict=True):
        assert torch.equal(one, other)


def test_a_rounded_sum_is_less_exact_than_sglang_s_own(make_layer: MakeLayer) -> None:
    from portakernel import ops

    layer, (x, residual) = make_layer("RMSNorm with a residual", torch.bfloat16)
    with torch.no_grad():
        own, _ = layer.forward_native(x, residual)
        ours, _ = ops.add_rms_norm(x, residual, layer.weight.data, eps=layer.variance_epsilon)
        truth, _ = exact(layer, (x, residual))
    assert rms(ours - truth) > LARGER * rms(own - truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_compiled_layer_is_served_in_one_graph(layer_name: str, dtype: torch.dtype, make_layer: MakeLayer) -> None:
    integration.enable()
    layer, given = make_layer(layer_name, dtype)
    holder = torch.nn.ModuleList([layer])  # as a part of a model, which is when it is noticed
    layer.enter_torch_compile(33)  # as SGLang does
    run = torch.compile(holder[0], backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        native, truth = layer.forward_native(*copied(given)), exact(layer, given)
        result = run(*copied(given))
    (row,) = (row for row in integration.report() if row.traces)
    if layer_name == "RMSNorm with a residual" and dtype != torch.float32:
        assert row.refused == RESIDUAL
        return
    assert (row.layer, row.outcome, row.calls, row.traces) == (type(layer).__name__, "served", 0, 1)
    agree(result, native, truth, row.op)


def test_queries_and_keys_may_have_a_dimension_of_heads(make_layer: MakeLayer) -> None:
    integration.enable()
    layer, (positions, query, key) = make_layer("RotaryEmbedding, halves", torch.float32)
    with torch.no_grad():
        side_by_side = layer(positions, query, key)
        apart = layer(positions, query.view(33, 4, 32), key.view(33, 2, 32))
    for one, other in zip(side_by_side, apart, strict=True):
        assert torch.equal(one, other.flatten(1))
