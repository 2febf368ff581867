"""Gated MLPs: how gate and up come to lie side by side, and what of the layers' own is kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

from portakernel.integrations import transformers as integration  # noqa: E402 - after the skip
from portakernel.integrations.transformers import layers  # noqa: E402


@pytest.fixture
def mlp(make_model):
    model = make_model("Llama")
    integration.enable(model, ("silu_and_mul",))
    return model.model.layers[0].mlp


@pytest.fixture
def written(monkeypatch):
    """How often both products were written into one tensor."""
    calls: list[torch.Tensor] = []
    real = layers.written_into_one
    monkeypatch.setattr(layers, "written_into_one", lambda *given: calls.append(given[-1]) or real(*given))
    return calls


def own(mlp, x):
    return mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x))


@pytest.mark.parametrize("shape", [(2, 5), (1,), (0, 3), (2, 3, 4)])
def test_where_nothing_is_differentiated_both_products_are_written_side_by_side(mlp, written, shape):
    x = torch.randn(*shape, 64, device=mlp.gate_proj.weight.device)
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), own(mlp, x), rtol=1e-4, atol=1e-4)
    assert len(written) == 1


def _hooked(mlp):
    mlp.gate_proj.register_forward_hook(lambda _module, _given, result: result * 2)


def _replaced(mlp):
    mlp.up_proj.forward = lambda x: nn.functional.linear(x, mlp.up_proj.weight) + 1


def _biased(mlp):
    mlp.up_proj.bias = nn.Parameter(torch.randn(80, device=mlp.up_proj.weight.device))


def _parametrized(mlp):
    nn.utils.parametrizations.weight_norm(mlp.gate_proj)


@pytest.mark.parametrize("change", [_hooked, _replaced, _biased, _parametrized])
def test_layers_that_do_more_than_a_product_are_called(mlp, written, change):
    change(mlp)
    x = torch.randn(2, 5, 64, device=mlp.down_proj.weight.device)
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), own(mlp, x), rtol=1e-4, atol=1e-4)
    assert not written


def test_a_hook_of_all_modules_sees_the_layers(mlp, written):
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    try:
        with torch.no_grad():
            mlp(torch.randn(2, 64, device=mlp.down_proj.weight.device))
    finally:
        handle.remove()
    assert seen.count("Linear") == 3
    assert not written


def test_gradients_go_through_the_layers(mlp, written):
    x = torch.randn(2, 5, 64, device=mlp.down_proj.weight.device, requires_grad=True)
    found = torch.autograd.grad(mlp(x).square().sum(), [x, mlp.gate_proj.weight])
    wanted = torch.autograd.grad(own(mlp, x).square().sum(), [x, mlp.gate_proj.weight])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    assert not written


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_a_compiled_graph_holds_the_models_own_formula_and_says_why(mlp, written):
    x = torch.randn(2, 5, 64, device=mlp.down_proj.weight.device)
    with torch.no_grad():
        torch.testing.assert_close(
            torch.compile(mlp, fullgraph=True, backend="aot_eager")(x), own(mlp, x), rtol=1e-4, atol=1e-4
        )
    assert not written
    traced = [row for row in integration.report() if "Inductor fuses the model's own" in row.refused]
    assert any(row.op == "silu_and_mul" and row.traces > 0 for row in traced)
