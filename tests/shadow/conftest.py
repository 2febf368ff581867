"""Kernels that tests plant, a clock that they drive, and the sampler over both."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from portakernel.calling.caller import OpCaller
from portakernel.calling.public import public_function
from portakernel.config import Config
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.shadow_wishes import ShadowWishes
from portakernel.registry.plugin_manager import Package, PluginManager, find_folder
from portakernel.registry.registry import Registry
from portakernel.shadow.counts import Counts
from portakernel.shadow.process import judge
from portakernel.shadow.sampler import Sampler
from portakernel.torch_bridge.registration import Bridge

_numbers = itertools.count()


@dataclass
class Clock:
    """Stands still but for what tests, and judges of theirs, add."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Planted:
    """``add`` and ``rms_norm`` by a kernel that is right for its first ``right`` calls, and the kernels behind it."""

    dispatcher: Dispatcher
    bridges: dict[str, Bridge]
    right: int = 1
    calls: int = 0
    clock: Clock = field(default_factory=Clock)
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.add: Callable[..., Any] = public_function(self.caller("add"))
        self.rms_norm: Callable[..., Any] = public_function(self.caller("rms_norm"))
        self.write_kv_cache: Callable[..., Any] = public_function(self.caller("write_kv_cache"))

    def caller(self, op: str) -> OpCaller:
        return self.bridges[op].caller

    def sampler(self, *, judging: Any = judge, **wishes: Any) -> Sampler:
        """A sampler of all of it; by default it may take all of the time."""
        whole = ShadowWishes(**{"every_s": 1.0, "share": 1.0, "place": "policy.yaml:2", **wishes})
        made = Sampler(whole, lambda: [self.caller(op) for op in self.bridges], judging, self.counts, self.clock)
        self.clock.now += 1.0
        return made

    def spoil(self, result: torch.Tensor) -> torch.Tensor:
        """The result, wrong in one element once the kernel has gone wrong."""
        self.calls += 1
        if self.calls > self.right:
            result.view(-1)[-1] += 1.0
        return result

    def placement(self, op: str = "add") -> Any:
        (placement,) = self.caller(op).table.entries.values()
        return placement


def _module(name: str, planted: list[Planted]) -> types.ModuleType:
    module = types.ModuleType(name)

    def add(x: Any, y: Any, *, out: Any = None) -> Any:
        return planted[0].spoil(torch.add(x, y, out=out))

    def rms_norm(x: Any, weight: Any, *, eps: float, weight_offset: float = 0.0, out: Any = None) -> Any:
        y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight + weight_offset, eps)
        return planted[0].spoil(y if out is None else out.copy_(y))

    def write_kv_cache(key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any) -> None:
        for new, cache in ((key, key_cache), (value, value_cache)):
            cache.view(-1, *new.shape[1:])[slot_mapping] = new
        planted[0].spoil(key_cache)

    for function in (add, rms_norm, write_kv_cache):
        setattr(module, function.__name__, function)
    return module


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    name = f"planted_{next(_numbers)}"
    folder = tmp_path / name
    folder.mkdir()
    manifest = {
        "schema_version": 1,
        "plugin": "planted",
        "defaults": {"targets": {"cpu": "any"}, "properties": {"deterministic": True, "inplace": True}},
        "kernels": [
            {"op": "add", "entry": f"{name}:add", "dtypes": {"x": ["float32"], "y": ["x"]}, "priority": 99},
            {
                "op": "rms_norm", "entry": f"{name}:rms_norm", "dtypes": {"x": ["float32"], "weight": ["x"]},
                "priority": 99,
            },
            {
                "op": "write_kv_cache", "entry": f"{name}:write_kv_cache", "priority": 99,
                "dtypes": {
                    "key": ["float32"], "value": ["key"], "key_cache": ["key"], "value_cache": ["key"],
                    "slot_mapping": ["int64"],
                },
            },
        ],
    }  # fmt: skip
    (folder / "plugin.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    held: list[Planted] = []
    monkeypatch.setitem(sys.modules, name, _module(name, held))
    packages = [
        Package("planted", name, "portakernel", "1.0", folder, first_party=True),
        *(
            Package(short, module, "portakernel", "1.0", find_folder(module), first_party=True)
            for short, module in (("torch", "portakernel_plugins.torch"), ("cpu", "portakernel_backends.cpu"))
        ),
    ]
    dispatcher = Dispatcher(Registry(PluginManager(packages)), Config())
    assert dispatcher.registry.manager.broken == []
    namespace = f"portakernel_shadow_{next(_numbers)}"
    ops = ("add", "rms_norm", "write_kv_cache")
    made = Planted(dispatcher, {op: Bridge(OpCaller(contract(op), dispatcher, namespace)) for op in ops})
    held.append(made)
    return made
