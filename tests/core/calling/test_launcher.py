"""A launch where there are several devices: on the request's, and back."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from portakernel.calling import launcher as launcher_module
from portakernel.calling.launcher import launcher
from portakernel.claims.request import Phase


@pytest.fixture
def current(monkeypatch) -> list[int]:
    """The index of the current device of two that are not there."""
    held = [0]

    def exchange(index: int) -> int:
        before, held[0] = held[0], index
        return before

    monkeypatch.setattr(torch, "get_device_module", lambda _device: SimpleNamespace(device_count=lambda: 2))
    monkeypatch.setattr(launcher_module, "device_switch", lambda _type: (lambda: held[0], exchange, exchange))
    return held


@pytest.fixture
def launch(ops, monkeypatch, current):
    """``add``'s launch on the second device; its kernel tells which device it saw."""
    from raw_kernels import kernels

    def add(x, _y, *, out=None):
        if not x.numel():
            raise ZeroDivisionError("nothing to add")
        return current[0]

    monkeypatch.setattr(kernels, "add", add)
    caller, x = ops.caller("add"), torch.ones(3)
    request = caller.arguments.request((x, x), (), Phase.INFERENCE)
    assert request.device is not None
    request = replace(request, device=replace(request.device, torch_device="cuda:1"))
    return launcher(caller.contract, ops.dispatcher.registry.kernels["raw_kernels.add"], request, ops.dispatcher)


def test_a_kernel_runs_on_its_arguments_device_and_the_current_one_is_restored(launch, current):
    x = torch.ones(3)
    assert (launch(x, x, None), current) == (1, [0])
    current[0] = 1
    assert (launch(x, x, None), current) == (1, [1])


def test_an_error_restores_the_current_device(launch, current):
    x = torch.ones(0)
    with pytest.raises(ZeroDivisionError):
        launch(x, x, None)
    assert current == [0]
