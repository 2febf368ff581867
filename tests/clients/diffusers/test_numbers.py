"""Models with portakernel's attention give the numbers of diffusers' native attention, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cxx import needs_cxx
from torch import Tensor

pytest.importorskip("diffusers", reason="make clients CLIENTS=diffusers runs these")

from portakernel.integrations import diffusers as integration
from portakernel.integrations.first_calls import LARGER, shortfall
from portakernel.runtime import contract_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
    # diffusers asks for torch's version in its forward
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a .functools.lru_cache:UserWarning"),
]

# Attention calls in one forward.
CALLS = {"Flux": 2, "Wan": 4, "UNet": 8}

MakeModel = Callable[[str], Any]
Counted = Callable[[], dict[str, tuple[int, int]]]


def rms(distance: Tensor) -> float:
    return float(distance.double().square().mean().sqrt())


def agree(result: Tensor, native: Tensor, exact: Tensor) -> None:
    """As near to float64 as native attention, by the op's rule; in bfloat16, 1.05 times native's error at most."""
    assert shortfall(result, native, exact, contract_of("attention").tolerance) == ""
    if native.dtype == torch.bfloat16:
        assert rms(result - exact) <= LARGER * rms(native - exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_is_enabled_gives_native_s_numbers(
    kind: str, dtype: torch.dtype, make_model: MakeModel, counted: Counted
) -> None:
    with torch.no_grad():
        exact = make_model(kind)()
        model = make_model(kind).at(dtype)
        native = model()
        integration.enable(model.module)
        result = model()
    assert counted() == {"": (CALLS[kind], 0)}
    agree(result, native, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_compiled_model_gives_native_s_numbers_in_one_graph(
    kind: str, dtype: torch.dtype, make_model: MakeModel, counted: Counted
) -> None:
    with torch.no_grad():
        exact = make_model(kind)()
        model = make_model(kind).at(dtype)
        native = model()
        integration.enable(model.module)
        compiled = torch.compile(model.module, backend="aot_eager", fullgraph=True)
        result = model(compiled)
        assert torch.equal(model(compiled), result)
    assert counted() == {"": (0, CALLS[kind])}
    agree(result, native, exact)


@needs_cxx
def test_a_model_that_inductor_compiles_gives_native_s_numbers(make_model: MakeModel, counted: Counted) -> None:
    with torch.no_grad():
        exact = make_model("Flux")()
        model = make_model("Flux").at(torch.float32)
        native = model(torch.compile(model.module, fullgraph=True))
        integration.enable(model.module)
        result = model(torch.compile(model.module, fullgraph=True))
    assert counted() == {"": (0, CALLS["Flux"])}
    agree(result, native, exact)


def test_gradients_are_those_of_native_attention(kind: str, make_model: MakeModel) -> None:
    model = make_model(kind).at(torch.float32)
    gradients = []
    for enabled in (False, True):
        if enabled:
            integration.enable(model.module)
        model.module.zero_grad()
        model().square().mean().backward()
        gradients.append([each.grad for each in model.module.parameters() if each.grad is not None])
    for mine, native in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(mine, native, rtol=1e-4, atol=1e-5 * float(native.abs().max()) + 1e-9)
