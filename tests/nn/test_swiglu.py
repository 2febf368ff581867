"""SwiGLU has the weights of a gated MLP, and its numbers, whichever way its products are written."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from cxx import needs_cxx
from torch.nn import functional

from portakernel import nn


def exact(module: nn.SwiGLU, x: torch.Tensor) -> torch.Tensor:
    """The formula in float64."""
    module, x = copy.deepcopy(module).double(), x.double()
    result: torch.Tensor = module.down_proj(functional.silu(module.gate_proj(x)) * module.up_proj(x))
    return result


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "recorded"])
@pytest.mark.parametrize("shape", [(5, 24), (2, 3, 24), (24,)], ids=str)
def test_numbers_are_those_of_the_formula(bias: bool, grad: bool, shape: tuple[int, ...]) -> None:
    module, x = nn.SwiGLU(24, 40, 16, bias=bias), torch.randn(shape)
    with torch.set_grad_enabled(grad):
        got = module(x)
    assert got.shape == (*shape[:-1], 16)
    torch.testing.assert_close(got.double(), exact(module, x), rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_the_formula() -> None:
    module, x = nn.SwiGLU(12, 20), torch.randn(4, 12)
    reference = copy.deepcopy(module).double()
    module(x).sum().backward()
    gated = functional.silu(reference.gate_proj(x.double())) * reference.up_proj(x.double())
    reference.down_proj(gated).sum().backward()
    for got, wanted in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got.grad.double(), wanted.grad, rtol=1e-5, atol=1e-6)


def test_a_hook_on_a_projection_is_called_in_inference_too() -> None:
    module, seen = nn.SwiGLU(8, 8), list[tuple[int, ...]]()
    module.gate_proj.register_forward_hook(lambda layer, given, result: seen.append(tuple(result.shape)))
    with torch.no_grad():
        module(torch.randn(2, 8))
    assert seen == [(2, 8)]


@needs_cxx
def test_a_whole_graph_compiles() -> None:
    module, x = nn.SwiGLU(8, 16), torch.randn(3, 8)
    torch.testing.assert_close(torch.compile(module, fullgraph=True)(x), module(x))


def test_autocast_computes_products_in_its_dtype() -> None:
    module, x = nn.SwiGLU(16, 32), torch.randn(3, 16)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        got = module(x)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), exact(module, x), rtol=0.05, atol=0.02)


def test_the_weights_of_transformers_llama_load() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(hidden_size=16, intermediate_size=24, num_attention_heads=4)
    theirs, module, x = llama.LlamaMLP(config), nn.SwiGLU(16, 24), torch.randn(3, 16)
    module.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(module(x), theirs(x))
    theirs.load_state_dict(nn.SwiGLU(16, 24).state_dict())


def test_it_is_made_on_meta_copied_and_pickled() -> None:
    module, x = nn.SwiGLU(8, 16, bias=True, device="meta"), torch.randn(2, 8)
    assert module(torch.empty(2, 8, device="meta")).shape == (2, 8)
    module.to_empty(device="cpu").reset_parameters()
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(copied(x), module(x))


def test_its_repr_says_the_sizes() -> None:
    assert repr(nn.SwiGLU(8, 16)).splitlines()[1] == "  8, hidden_features=16, out_features=8"
