"""A stream that is said to be captured, and ops whose kernels can be told apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

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


class Stream:
    """What torch is made to say of the current stream; ``asked`` counts how often it had to."""

    def __init__(self) -> None:
        self.captured, self.asked = False, 0

    def is_capturing(self) -> bool:
        self.asked += 1
        return self.captured

    @contextmanager
    def capturing(self):
        self.captured = True
        try:
            yield
        finally:
            self.captured = False


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    made = Stream()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", made.is_capturing)
    return made


@dataclass
class Ops:
    """The ops of one dispatcher, registered under a namespace of their own."""

    dispatcher: Dispatcher
    bridges: dict[str, Bridge]

    def __post_init__(self) -> None:
        self.add: Callable[..., Any] = public_function(self.caller("add"))
        self.rms_norm: Callable[..., Any] = public_function(self.caller("rms_norm"))

    def caller(self, op: str) -> OpCaller:
        return self.bridges[op].caller

    def served(self, op: str) -> dict[str, int]:
        """Calls by kernel."""
        counts: dict[str, int] = {}
        for use, calls in self.caller(op).table.counts().items():
            counts[use.kernel] = counts.get(use.kernel, 0) + calls
        return counts


@pytest.fixture
def make_ops(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ops]:
    """Ops over packages of ``tests/data`` and portakernel's own, whose device says that it is torch's ``cuda:0``."""
    monkeypatch.syspath_prepend(DATA)

    def make(*names: str, modules: tuple[str, ...] = ()) -> Ops:
        found = [(name, f"portakernel_plugins.{name}") for name in names if name != "raw_kernels"]
        found += [("raw_kernels", "raw_kernels")] if "raw_kernels" in names else []
        found += [("cpu", "portakernel_backends.cpu"), *((module, module) for module in modules)]
        packages = [
            Package(name, module, "portakernel", "1.0", find_folder(module), first_party=True) for name, module in found
        ]
        dispatcher = Dispatcher(Registry(PluginManager(packages)), Config())
        assert dispatcher.registry.manager.broken == []
        namespace = f"portakernel_graphs_{next(_namespaces)}"
        callers = {op: OpCaller(contract(op), dispatcher, namespace) for op in ("add", "rms_norm")}
        for caller in callers.values():
            caller.arguments.request = _on_cuda(caller.arguments.request)
        return Ops(dispatcher, {op: Bridge(caller) for op, caller in callers.items()})

    return make


def _on_cuda(request: Callable[..., Any]) -> Callable[..., Any]:
    def asked(*arguments: Any, **named: Any) -> Any:
        found = request(*arguments, **named)
        return replace(found, device=replace(found.device, torch_device="cuda:0"))

    return asked
