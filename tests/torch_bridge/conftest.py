"""A dispatcher of its own for each test, in which kernels that read raw memory win."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from portakernel.calling.caller import OpCaller
from portakernel.calling.public import public_function
from portakernel.config import Config
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.plugin_manager import Package, PluginManager, find_folder
from portakernel.registry.registry import Registry
from portakernel.torch_bridge.registration import Bridge

DATA = Path(__file__).parents[1] / "data"
_namespaces = itertools.count()


@dataclass
class Ops:
    """The ops of one dispatcher, registered under a namespace of their own."""

    dispatcher: Dispatcher
    bridges: dict[str, Bridge]

    def caller(self, op: str) -> OpCaller:
        return self.bridges[op].caller

    def __post_init__(self) -> None:
        self.add: Callable[..., Any] = public_function(self.caller("add"))
        self.rms_norm: Callable[..., Any] = public_function(self.caller("rms_norm"))

    def served(self, op: str, phase: str = "inference") -> dict[str, int]:
        """Calls by kernel."""
        counts: dict[str, int] = {}
        for use, calls in self.caller(op).table.counts().items():
            if use.phase == phase:
                counts[use.kernel] = counts.get(use.kernel, 0) + calls
        return counts


def package(name: str, module: str, distribution: str = "portakernel") -> Package:
    return Package(name, module, distribution, "1.0", find_folder(module), first_party=distribution == "portakernel")


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> Ops:
    monkeypatch.syspath_prepend(DATA)
    packages = [
        package("raw_kernels", "raw_kernels"),
        package("torch", "portakernel_plugins.torch"),
        package("cpu", "portakernel_backends.cpu"),
    ]
    dispatcher = Dispatcher(Registry(PluginManager(packages)), Config())
    assert dispatcher.registry.manager.broken == []
    namespace = f"portakernel_test_{next(_namespaces)}"
    callers = {op: OpCaller(contract(op), dispatcher, namespace) for op in ("add", "rms_norm")}
    return Ops(dispatcher, {op: Bridge(caller) for op, caller in callers.items()})


@pytest.fixture
def calls(ops: Ops) -> list[str]:
    """What the raw kernels were called for, from now on."""
    from raw_kernels import kernels

    kernels.CALLS.clear()
    return kernels.CALLS
