"""What all clients share: layers that are tried, counted, bypassed or left, whoever the client is."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from portakernel import ops
from portakernel.contract import Tolerance
from portakernel.errors import ClientWarning
from portakernel.integrations.client import Client, EnabledLayer, client
from portakernel.integrations.first_calls import shortfall
from portakernel.integrations.ledger import Row
from portakernel.integrations.served_layer import ServedLayer

CLIENT = "a client of these tests"


class OwnNorm(nn.Module):
    """A norm as a client has it, which rounds before its weight."""

    def __init__(self, size: int, dtype: torch.dtype = torch.float32, layer: str = "Norm") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size, dtype=dtype) + 0.5, requires_grad=False)
        self.eps = 1e-5
        self.layer = layer
        client(CLIENT).born(layer, self)

    def native(self, x: Tensor) -> Tensor:
        numbers = x.float()
        return (numbers * torch.rsqrt(numbers.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight

    def forward(self, x: Tensor) -> Any:
        return client(CLIENT).adapter(self.layer)(self, x)


class Norm(ServedLayer):
    """Serves ``OwnNorm`` as it should be served."""

    def refusal(self, module: Any, x: Tensor) -> str:
        return "" if x.dim() == 2 else f"x has {x.dim()} dimensions, 2 are served"

    def ours(self, module: Any, x: Tensor) -> Any:
        return ops.rms_norm(x, module.weight, eps=module.eps)

    def own(self, module: Any, x: Tensor) -> Any:
        return module.native(x)

    def exact(self, module: Any, x: Tensor) -> Any:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + module.eps) * module.weight.double()


class OtherEpsilon(Norm):
    def ours(self, module: Any, x: Tensor) -> Any:
        return ops.rms_norm(x, module.weight, eps=2 * module.eps)


class SwappedRows(Norm):
    def ours(self, module: Any, x: Tensor) -> Any:
        return ops.rms_norm(x.flip(0), module.weight, eps=module.eps)


class AnotherFormula(Norm):
    """What the op computes, and what the adapter takes for the client's formula, is not what the client computes."""

    def ours(self, module: Any, x: Tensor) -> Any:
        return ops.rms_norm(x, torch.ones_like(module.weight), eps=module.eps)

    def exact(self, module: Any, x: Tensor) -> Any:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + module.eps)


class Failing(Norm):
    def ours(self, module: Any, x: Tensor) -> Any:
        raise RuntimeError("out of something")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from portakernel.integrations import client as module

    fresh = Client(CLIENT)
    monkeypatch.setattr(module, "client", lambda name: fresh)
    for user in ("portakernel.integrations.served_layer.client", f"{__name__}.client"):
        monkeypatch.setattr(user, lambda name: fresh)
    yield
    torch.compiler.reset()


def enabled(served: type[ServedLayer], layer: str = "Norm") -> None:
    served(CLIENT, layer, "rms_norm")
    client(CLIENT).enable(EnabledLayer(layer, "rms_norm", 'set custom_layers to "all"'))


def outcomes() -> dict[str, int]:
    return {row.outcome: row.calls for row in client(CLIENT).report()}


def test_a_layer_that_is_right_is_served_and_counted() -> None:
    enabled(Norm)
    norm, x = OwnNorm(48), torch.randn(5, 48)
    for _ in range(3):
        torch.testing.assert_close(norm(x), norm.native(x))
    assert client(CLIENT).report() == (Row("rms_norm", "", 3, 0, "Norm"),)
    assert str(client(CLIENT).report()[0]).split() == ["Norm", "(rms_norm)", "3", "calls", "0", "traces", "served"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("served", "reason"), [
    (OtherEpsilon, "where the client's own code is"),
    (SwappedRows, "where the client's own code is"),
    (AnotherFormula, "the client's own code computes something else"),
    (Failing, "the op failed: RuntimeError: out of something"),
])  # fmt: skip
def test_a_layer_that_is_worse_stands_back_loudly_and_stays_right(
    served: type[ServedLayer], reason: str, dtype: torch.dtype
) -> None:
    enabled(served)
    norm, x = OwnNorm(48, dtype), torch.randn(5, 48, dtype=dtype)
    with pytest.warns(ClientWarning, match="Norm computes for itself, portakernel stands back"):
        first = norm(x)
    assert torch.equal(first, norm.native(x))
    assert torch.equal(norm(x), norm.native(x))
    (row,) = client(CLIENT).report()
    assert (row.outcome, row.calls) == ("left to the client", 2)
    assert reason in row.refused


@pytest.mark.parametrize(("served", "outcome"), [(Norm, "served"), (OtherEpsilon, "left to the client")])
def test_in_a_graph_the_trial_is_held_outside_of_it(served: type[ServedLayer], outcome: str) -> None:
    enabled(served)
    model = nn.Sequential(OwnNorm(32), OwnNorm(32))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    x = torch.randn(7, 32)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        result = compiled(x)
    torch.testing.assert_close(result, model[1].native(model[0].native(x)))
    assert sum(row.traces for row in client(CLIENT).report()) == 2
    assert {row.outcome for row in client(CLIENT).report()} == {outcome}
    assert bool([each for each in given if each.category is ClientWarning]) == (outcome != "served")


def test_each_kind_of_call_is_tried_by_itself() -> None:
    class WrongInHalf(Norm):
        def ours(self, module: Any, x: Tensor) -> Any:
            return ops.rms_norm(x, module.weight, eps=module.eps) * (2 if x.dtype is torch.float16 else 1)

    enabled(WrongInHalf)
    plain, half = OwnNorm(32), OwnNorm(32, torch.float16)
    plain(torch.randn(3, 32))
    with pytest.warns(ClientWarning):
        half(torch.randn(3, 32, dtype=torch.float16))
    assert outcomes() == {"served": 1, "left to the client": 1}


def test_what_the_contract_lacks_goes_to_the_client_with_its_reason() -> None:
    enabled(Norm)
    norm, x = OwnNorm(32), torch.randn(2, 3, 32)
    assert torch.equal(norm(x), norm.native(x))
    assert client(CLIENT).report() == (Row("rms_norm", "x has 3 dimensions, 2 are served", 1, 0, "Norm"),)


def test_an_enabled_layer_without_a_call_is_bypassed_and_warned_of_once_with_the_setting() -> None:
    enabled(Norm)
    norms = [OwnNorm(8), OwnNorm(8)]
    expected = '2 made, no call reached them; set custom_layers to "all"'
    assert client(CLIENT).report() == (Row("rms_norm", expected, 0, 0, "Norm", bypassed=True),)
    with pytest.warns(ClientWarning, match="Norm is enabled and bypassed: 2 made"):
        client(CLIENT).stepped()
    client(CLIENT).stepped()  # warnings are errors here: no second one
    norms[0](torch.randn(2, 8))
    assert [row.outcome for row in client(CLIENT).report()] == ["served"]


def test_an_enabled_layer_that_the_model_lacks_is_no_bypass() -> None:
    enabled(Norm)
    client(CLIENT).stepped()
    (row,) = client(CLIENT).report()
    assert (row.outcome, row.refused) == ("left to the client", "no instance was made since it was enabled")


def test_instances_are_not_kept_alive() -> None:
    enabled(Norm)
    norm = OwnNorm(8)
    number = norm._portakernel_number
    assert client(CLIENT).instance(number) is norm
    del norm
    assert client(CLIENT).instance(number) is None


TOLERANCE = Tolerance(forward={"float32": 8.0, "bfloat16": 0.51})


@pytest.mark.parametrize(("ours", "reason"), [
    (torch.zeros(2, 3), "the op returns float32 (2, 3), the client's own code float32 (3, 2)"),
    (torch.zeros(3, 2, dtype=torch.float64), "the op returns float64 (3, 2), the client's own code float32 (3, 2)"),
    ((torch.zeros(3, 2), torch.zeros(1)), "the op returns 2 tensors, the client's own code 1"),
    (torch.full((3, 2), torch.nan), "inf ulp off on average and inf at worst, where the client's own code is 0 and 0"),
])  # fmt: skip
def test_results_of_another_form_are_worse(ours: Any, reason: str) -> None:
    own = torch.ones(3, 2)
    assert shortfall(ours, own, own.double(), TOLERANCE) == reason


def test_whole_numbers_are_equal_or_worse() -> None:
    own = torch.arange(6).view(2, 3)
    assert shortfall(own.clone(), own, own.double(), TOLERANCE) == ""
    assert shortfall(own + 1, own, own.double(), TOLERANCE) == "6 of 6 whole numbers differ from the client's own"


def test_as_far_off_as_the_client_is_as_good() -> None:
    exact = torch.randn(64, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    noise = torch.randn(64, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    own, alike = (exact + 0.02 * noise).bfloat16(), (exact - 0.02 * noise).bfloat16()
    assert shortfall(alike, own, exact, TOLERANCE) == ""
    assert "where the client's own code is" in shortfall((exact + 0.03 * noise).bfloat16(), own, exact, TOLERANCE)


@pytest.mark.parametrize("first", [
    torch.zeros(0, 32), torch.full((4, 32), torch.nan), torch.full((4, 32), -torch.inf),
    torch.cat([torch.full((1, 32), torch.inf), torch.ones(3, 32)]), torch.full((4, 32), 1e30),
], ids=["empty", "NaN", "infinite", "one infinite row", "too large to be squared"])  # fmt: skip
def test_a_first_call_without_telling_numbers_is_no_reason_to_stand_back(first: Tensor) -> None:
    enabled(Norm)
    norm = OwnNorm(32)
    torch.testing.assert_close(norm(first), norm.native(first), equal_nan=True)
    x = torch.randn(4, 32)
    torch.testing.assert_close(norm(x), norm.native(x))
    assert outcomes() == {"served": 2}


def test_a_fault_is_noticed_even_if_the_first_call_has_no_telling_numbers() -> None:
    enabled(OtherEpsilon)
    norm = OwnNorm(32)
    with pytest.warns(ClientWarning):
        norm(torch.full((4, 32), torch.nan))
    assert outcomes() == {"left to the client": 1}


def test_a_result_that_is_not_finite_where_the_client_s_is_is_worse() -> None:
    own = torch.ones(3, 2)
    ours = own.clone()
    ours[1, 0] = torch.nan
    assert "inf ulp off" in shortfall(ours, own, own.double(), TOLERANCE)
