"""The op that this package adds: an op like any other, whoever serves it; the kit proves its kernel's numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import opencl_backend.launch
import pytest
import torch
from opencl_backend import log_softmax as implementation
from torch import Tensor

import portakernel
from portakernel.authoring import ArgumentValueError

KERNEL = "opencl.log_softmax"


def log_softmax(x: Tensor, temperature: float = 1.0, kernel: str | None = None) -> Tensor:
    result: Tensor = portakernel.ops.log_softmax(x, temperature=temperature, kernel=kernel)
    return result


def commanded(*words: str) -> Any:
    ran = subprocess.run([sys.executable, "-m", "portakernel", *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("kernel", [KERNEL, "reference.log_softmax"])
@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
def test_numbers_and_gradients_are_those_of_torch(kernel: str, temperature: float) -> None:
    x, grad = torch.randn(5, 700, requires_grad=True), torch.randn(5, 700)
    wanted = torch.log_softmax(x.double() / temperature, -1)
    (slope,) = torch.autograd.grad(wanted, x, grad.double())
    found = log_softmax(x, temperature, kernel)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(torch.autograd.grad(found, x, grad), (slope,), rtol=1e-4, atol=1e-5)


def test_without_a_policy_the_reference_serves_it_and_the_kernel_says_why_it_does_not() -> None:
    decision = portakernel.explain("log_softmax", torch.ones(2, 3))
    assert decision.chosen is not None
    assert decision.chosen.name == "reference.log_softmax"
    assert [str(rejection.code) for rejection in decision.candidate(KERNEL).rejections] == ["attached_target"]


def test_what_a_small_probability_loses_is_kept() -> None:
    x = torch.tensor([[30.0, 0.0]], dtype=torch.float16)
    assert portakernel.ops.softmax(x).log().tolist() == [[0.0, float("-inf")]]
    assert log_softmax(x, kernel=KERNEL).tolist() == [[0.0, -30.0]]


@pytest.mark.parametrize("kernel", [KERNEL, "reference.log_softmax"])
def test_what_is_masked_stays_so_and_a_row_with_nothing_else_is_nan(kernel: str) -> None:
    hidden, nan, inf = float("-inf"), float("nan"), float("inf")
    x = torch.tensor([[0.0, hidden, 0.0], [hidden] * 3, [nan, 1.0, 1.0], [inf, 1.0, 1.0]])
    found = log_softmax(x, kernel=kernel)
    torch.testing.assert_close(found[0], torch.tensor([-0.6931472, hidden, -0.6931472]))
    assert found[1:].isnan().all()


@pytest.mark.parametrize("kernel", [KERNEL, "reference.log_softmax"])
def test_it_compiles_into_one_graph_with_its_gradient(kernel: str) -> None:
    def loss(x: Tensor) -> Tensor:
        return log_softmax(x * 2, 0.5, kernel)[:, 3].sum()

    x = torch.randn(4, 40, requires_grad=True)
    (wanted,) = torch.autograd.grad(loss(x), x)
    value = torch.compile(loss, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(value, loss(x))
    assert torch.equal(torch.autograd.grad(value, x)[0], wanted)


def test_gradcheck_passes() -> None:
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: log_softmax(x, 0.7), x)
    assert torch.autograd.gradgradcheck(lambda x: log_softmax(x, 0.7), x)


def test_rows_in_parts_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x, grad = torch.randn(300, 40), torch.randn(300, 40)
    y, *saved = implementation.log_softmax(x, temperature=2.0, save=True)
    (slope,) = implementation.backward(grad, x, *saved, temperature=2.0)
    assert slope is not None
    monkeypatch.setattr(opencl_backend.launch, "_PART_BYTES", 1024)
    found = implementation.log_softmax(x, temperature=2.0, save=True)
    assert torch.equal(found[0], y)
    assert all(map(torch.equal, found[1:], saved))
    again = implementation.backward(grad, x, *saved, temperature=2.0)[0]
    assert again is not None
    assert torch.equal(again, slope)


def test_a_temperature_that_divides_by_nothing_is_refused_with_what_is_accepted() -> None:
    text = r"^log_softmax: temperature must be a finite number from 0\.01 up; this is 0\.0$"
    with pytest.raises(ArgumentValueError, match=text):
        log_softmax(torch.ones(2, 3), 0.0)


def test_commands_know_it() -> None:
    assert KERNEL in {kernel["kernel"] for kernel in commanded("list", "--op", "log_softmax", "--json")["kernels"]}
    asked = ("--target", "h100", "--dtype", "bfloat16", "--json")
    assert commanded("explain", "log_softmax", *asked)["op"] == "log_softmax"
    [support] = commanded("matrix", "--op", "log_softmax", "--json")["ops"]
    [place] = [place for place in support["places"] if place["vendor"] == "opencl"]
    assert [kernel["kernel"] for kernel in place["kernels"]] == [KERNEL]
