"""Plugins and backends: discovery without importing, isolation of broken ones, hooks."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import inspect
import logging
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from portakernel import hookspecs
from portakernel.errors import ManifestError, PluginApiError, PluginError, nearest
from portakernel.locks import make_lock
from portakernel.manifest import BackendManifest, PluginManifest
from portakernel.manifest_file import Loaded, load_manifest

GROUP = "portakernel"
FIRST_PARTY = "portakernel"
# How long a hook may take, the import of its module included, before `portakernel doctor` speaks of it.
SLOW_HOOK_S = 5.0
_log = logging.getLogger("portakernel")


@dataclass(frozen=True, slots=True)
class Package:
    """One entry point of the group ``portakernel``: a plugin, a backend, or both in one folder."""

    name: str
    module: str
    distribution: str
    version: str
    folder: Path | None

    @property
    def first_party(self) -> bool:
        """Whether it ships with portakernel itself."""
        return self.distribution == FIRST_PARTY

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})"


@dataclass(frozen=True, slots=True)
class Broken:
    """A package, or a part of it, that cannot be used: at which stage, why, and the traceback where there is one."""

    package: Package
    stage: str
    reason: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Slow:
    """A hook that took longer than hooks may: everybody waits for it who asks what is there."""

    package: Package
    hook: str
    seconds: float


def installed_packages() -> tuple[Package, ...]:
    """Every entry point of the group, found without importing any of them."""
    found = []
    for entry_point in importlib.metadata.entry_points(group=GROUP):
        distribution = entry_point.dist
        name, version = _named(distribution, "Name"), _named(distribution, "Version")
        module = entry_point.value.partition(":")[0].strip()
        found.append(Package(entry_point.name, module, name, version, find_folder(module)))
    return tuple(sorted(found, key=lambda package: (not package.first_party, package.distribution, package.name)))


def _named(distribution: importlib.metadata.Distribution | None, field: str) -> str:
    """A field of a distribution's metadata; an interrupted uninstall leaves distributions that have none."""
    known = distribution is not None and field in distribution.metadata
    return distribution.metadata[field] if distribution is not None and known else "unknown"


def find_folder(module: str) -> Path | None:
    """The folder of a package, looked up without importing it or its parents (``importlib.util.find_spec`` would)."""
    path: list[str] | None = None
    origin: str | None = None
    parts = module.split(".")
    for depth, part in enumerate(parts):
        try:
            spec = _find_spec(".".join(parts[: depth + 1]), path)
        except KeyError:  # a namespace package inside another looks its parent up among the imported modules
            inner = [Path(folder, part) for folder in path or ()]
            path, origin = [str(folder) for folder in inner if folder.is_dir()], None
            continue
        if spec is None:
            return None
        path, origin = list(spec.submodule_search_locations or ()), spec.origin
    if path:
        return Path(path[0])
    return Path(origin).parent if origin else None


def _find_spec(name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    candidates = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((candidate for candidate in candidates if candidate is not None), None)


class PluginManager:
    """The installed packages with their manifests; modules are imported when a hook of theirs is needed.

    A package that cannot be used is kept in ``broken`` and never stops another one.
    """

    def __init__(
        self, packages: Iterable[Package] | None = None, *, disabled: frozenset[str] = frozenset(), strict: bool = False
    ) -> None:
        self.packages = tuple(installed_packages() if packages is None else packages)
        self.disabled = disabled
        self.plugins: dict[str, tuple[Package, Loaded[PluginManifest]]] = {}
        self.backends: dict[str, tuple[Package, Loaded[BackendManifest]]] = {}
        self.broken: list[Broken] = []
        self.slow: list[Slow] = []
        self._lock = make_lock()
        self._modules: dict[str, ModuleType | None] = {}
        self._pluggy = pluggy.PluginManager(hookspecs.PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        for package in self._uniquely_named():
            self._read(package, strict)

    def _uniquely_named(self) -> Iterator[Package]:
        by_name: dict[str, list[Package]] = {}
        for package in self.packages:
            by_name.setdefault(package.name, []).append(package)
        for name, rivals in by_name.items():
            ours = [package for package in rivals if package.first_party]
            winner = ours[0] if len(ours) == 1 else rivals[0] if len(rivals) == 1 else None
            if winner is not None:
                yield winner
            for package in rivals:
                if package is not winner:
                    others = " and ".join(
                        f"{rival.distribution} {rival.version}" for rival in rivals if rival is not package
                    )
                    self._break(
                        package, "name", f"the name {name!r} is taken by {others}; rename one of the entry points"
                    )

    def _read(self, package: Package, strict: bool) -> None:
        if package.folder is None:
            self._break(
                package, "discovery", f"module {package.module!r} cannot be found; reinstall {package.distribution}"
            )
            return
        plugin_file, backend_file = package.folder / "plugin.yaml", package.folder / "backend.yaml"
        try:
            if not plugin_file.exists() and not backend_file.exists():
                self._break(package, "manifest", f"{package.folder} holds neither plugin.yaml nor backend.yaml")
            if plugin_file.exists():
                plugin = load_manifest(PluginManifest, plugin_file, strict=strict)
                self._check_name(package, plugin, "plugin", plugin.manifest.plugin)
                self.plugins[package.name] = package, plugin
            if backend_file.exists():
                backend = load_manifest(BackendManifest, backend_file, strict=strict)
                self._check_name(package, backend, "backend", backend.manifest.backend)
                self.backends[package.name] = package, backend
        except (ManifestError, OSError) as error:
            self.plugins.pop(package.name, None)
            stage = "api_version" if isinstance(error, PluginApiError) else "manifest"
            self._break(package, stage, str(error), error)

    def _check_name(self, package: Package, loaded: Loaded[Any], key: str, name: str) -> None:
        if name != package.name:
            entry_point = f"the entry point of {package.distribution} is named {package.name!r}"
            text = f"is {name!r}, but {entry_point}; they must be equal"
            raise ManifestError(loaded.document.path, [loaded.problem((key,), text)])

    def _break(self, package: Package, stage: str, reason: str, error: BaseException | None = None) -> None:
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        self.broken.append(Broken(package, stage, reason, trace))
        _log.debug("%s is broken at %s: %s", package, stage, reason)

    def report_broken(self, package: Package, stage: str, reason: str, error: BaseException | None = None) -> None:
        """Keeps a fault that was found after discovery, once."""
        with self._lock:
            if not any(known.package == package and known.reason == reason for known in self.broken):
                self._break(package, stage, reason, error)

    def broken_names(self) -> frozenset[str]:
        """The names of packages with at least one fault."""
        return frozenset(broken.package.name for broken in self.broken)

    def _hooks(self, package: Package) -> frozenset[str]:
        declared = set(self.plugins[package.name][1].manifest.hooks) if package.name in self.plugins else set[str]()
        if package.name in self.backends:
            declared.add("portakernel_targets")
        return frozenset(declared)

    def call(self, hook: str, **arguments: Any) -> list[tuple[Package, Any]]:
        """What each package that implements ``hook`` returns; one that fails is kept as broken and left out."""
        results: list[tuple[Package, Any]] = []
        for package in self.packages:
            owned = package.name in self.plugins or package.name in self.backends
            if not owned or package.name in self.disabled or hook not in self._hooks(package):
                continue
            entry = self.plugins.get(package.name) or self.backends[package.name]
            start = time.perf_counter()
            module = self._module(package) if entry[0] is package else None
            if module is None:
                continue
            others = [registered for registered in self._pluggy.get_plugins() if registered is not module]
            try:
                answers = self._pluggy.subset_hook_caller(hook, others)(**arguments)
                results.append((package, answers[0] if answers else None))  # pluggy leaves a None away
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the plugin border: the reason is kept
                self.report_broken(package, "hook", f"{hook} raised {type(error).__name__}: {error}", error)
            if (seconds := time.perf_counter() - start) > SLOW_HOOK_S:
                self.slow.append(Slow(package, hook, seconds))
        return results

    def _module(self, package: Package) -> ModuleType | None:
        with self._lock:
            if package.name not in self._modules:
                self._modules[package.name] = self._import(package)
            return self._modules[package.name]

    def _import(self, package: Package) -> ModuleType | None:
        try:
            module = importlib.import_module(package.module)
            self._check_hooks(package, module)
            self._pluggy.register(module, name=package.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the plugin border: the reason is kept
            self._break(package, "import", f"importing {package.module} raised {type(error).__name__}: {error}", error)
            return None
        return module

    def _check_hooks(self, package: Package, module: ModuleType) -> None:
        implemented = set[str]()
        for name, member in inspect.getmembers(module, inspect.isroutine):
            marked = hasattr(member, f"{hookspecs.PROJECT}_impl")
            if marked and name not in hookspecs.HOOKS:
                raise self._error(package, f"hook {name!r} does not exist; {nearest(name, hookspecs.HOOKS)}")
            if name in hookspecs.HOOKS and not marked:
                raise self._error(package, f"{name} lacks the decorator @portakernel.hookspecs.hookimpl")
            if marked:
                implemented.add(name)
        if missing := sorted(self._hooks(package) - implemented):
            raise self._error(
                package, f"{package.module} does not implement {', '.join(missing)}, as its manifest says"
            )
        if unlisted := sorted(implemented - self._hooks(package)):
            raise self._error(
                package, f"{package.module} implements {', '.join(unlisted)}; list it under `hooks:` in plugin.yaml"
            )

    def _error(self, package: Package, text: str) -> PluginError:
        return PluginError(text, plugin=package.name, distribution=package.distribution, version=package.version)
