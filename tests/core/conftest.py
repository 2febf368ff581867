"""What tests of the core decide over: fake distributions in a temporary folder, or ops whose kernels read raw memory.

The first, ``world``, make small registries. The second, ``ops``, have a dispatcher and a namespace of their own.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from portakernel.calling.caller import OpCaller
from portakernel.calling.public import public_function
from portakernel.claims.request import Request
from portakernel.config import Config
from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.process_wishes import allowed_plugins, read
from portakernel.registry.plugin_manager import Package, PluginManager, find_folder
from portakernel.registry.registry import Registry
from portakernel.torch_bridge.registration import Bridge
from portakernel.words.target import Device, Target

DATA = Path(__file__).parents[1] / "data"
PREFIX = "fake_"
ALL = {"x": ["float32", "float16", "bfloat16"]}
DTYPES = {"add": {**ALL, "y": ["x"]}, "rms_norm": {**ALL, "weight": ["x", "float32"]}}
_namespaces = itertools.count()


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the developer's shell sets is not what is tested."""
    for name in [name for name in os.environ if name.startswith("PORTAKERNEL_")]:
        monkeypatch.delenv(name)


@dataclass
class Site:
    """A folder on ``sys.path`` with fake packages in it: module ``fake_<name>``, distribution ``<name>-dist 1.0``."""

    folder: Path

    def package(
        self,
        name: str,
        *,
        plugin: str | dict[str, Any] | None = None,
        backend: str | dict[str, Any] | None = None,
        source: str = "",
        distribution: str | None = None,
        version: str = "1.0",
        module: str | None = None,
        files: dict[str, str] | None = None,
        first_party: bool = False,
    ) -> Package:
        """A package as discovery would find it, with the given manifests and source; ours where it is said."""
        module = module or PREFIX + name
        folder = self.folder.joinpath(*module.split("."))
        folder.mkdir(parents=True, exist_ok=True)
        written = {"__init__.py": source, "plugin.yaml": plugin, "backend.yaml": backend, **(files or {})}
        for file, content in written.items():
            if content is not None:
                text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
                (folder / file).write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        distribution = distribution or ("portakernel" if first_party else f"{name}-dist")
        return Package(name, module, distribution, version, folder, first_party)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield Site(folder)
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        del sys.modules[name]


@dataclass
class World:
    """Fake backends and plugins, and the dispatcher over them. Vendor ``acme`` is there from the start.

    They count as portakernel's own; with ``first_party=False`` they are somebody's.
    """

    site: Site
    packages: list[Package] = field(default_factory=list)

    def backend(self, name: str, *, source: str = "", first_party: bool = True, **keys: Any) -> Package:
        """Adds a backend whose vendor has the backend's name; ``keys`` replace those of its manifest."""
        manifest = {"schema_version": 1, "backend": name, "vendor": name, "torch_device": name, **keys}
        archs = [arch for line in manifest.get("lines", ()) for arch in line]
        manifest.setdefault("archs", {arch: {"name": arch, "source": "invented"} for arch in archs})
        hook = "from portakernel.hookspecs import hookimpl\n@hookimpl\ndef portakernel_targets():\n    return []\n"
        package = self.site.package(name, backend=manifest, source=source or hook, first_party=first_party)
        self.packages.append(package)
        return package

    def plugin(
        self, name: str, *kernels: dict[str, Any], source: str = "", first_party: bool = True, **keys: Any
    ) -> Package:
        """Adds a plugin; a kernel needs no more than what a test is about: it is ``add`` on ``acme`` by default."""
        whole = [self.kernel(name, **kernel) for kernel in (kernels or ({},))]
        manifest = {"schema_version": 1, "plugin": name, "kernels": whole, **keys}
        source = f"def run(*a, **k): ...\ndef backward(*a, **k): ...\n{source}"
        package = self.site.package(name, plugin=manifest, source=source, first_party=first_party)
        self.packages.append(package)
        return package

    def kernel(self, plugin: str, *, op: str = "add", **keys: Any) -> dict[str, Any]:
        """One entry of ``kernels:``."""
        default = {"op": op, "entry": f"{PREFIX}{plugin}:run", "targets": {"acme": "any"}, "dtypes": DTYPES.get(op, {})}
        return {**default, **keys}

    def registry(self, *, disabled: frozenset[str] = frozenset(), allowed: frozenset[str] | None = None) -> Registry:
        """The registry of all that was added so far; nothing of it may be broken."""
        manager = PluginManager(self.packages, disabled=disabled, allowed=allowed)
        registry = Registry(manager)
        assert manager.broken == []
        return registry

    def dispatcher(self, **environment: str) -> Dispatcher:
        """A dispatcher over all that was added so far, with ``PORTAKERNEL_*`` variables given without the prefix."""
        config = Config.from_environment({f"PORTAKERNEL_{name}": value for name, value in environment.items()})
        allowed = allowed_plugins(config, read(config.policy))
        made = Dispatcher(self.registry(disabled=frozenset(config.disable), allowed=allowed), config)
        made.process.warn_of_doubts()  # as whoever makes the process's own does
        return made

    def request(
        self,
        op: str = "add",
        target: str = "acme:acme1",
        *,
        present: bool = False,
        dtypes: Any = "float32",
        **keys: Any,
    ) -> Request:
        """A question about ``op``; with ``present``, about the device ``acme:0`` of this machine."""
        found = Target.parse(target)
        device = Device(found, "Acme 1", f"{found.vendor}:0") if present else None
        return ask(contract(op), found, dtypes=dtypes, device=device, **keys)


@pytest.fixture
def world(site: Site) -> World:
    world = World(site)
    world.backend("acme", lines=[["acme1", "acme2"]])
    return world


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


def _package(name: str, module: str, distribution: str = "portakernel") -> Package:
    return Package(name, module, distribution, "1.0", find_folder(module), first_party=distribution == "portakernel")


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> Ops:
    monkeypatch.syspath_prepend(DATA)
    packages = [
        _package("raw_kernels", "raw_kernels"),
        _package("torch", "portakernel_plugins.torch"),
        _package("cpu", "portakernel_backends.cpu"),
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
