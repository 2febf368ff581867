"""Plugins and backends: discovery without importing, isolation of broken ones, hooks."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import re
import time
import traceback
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from portakernel import hookspecs
from portakernel.errors import CalledBackError, ManifestError, NotReturnedError, PluginApiError, PluginError, nearest
from portakernel.host.distributions import EntryPoint, Unreadable, entry_points
from portakernel.host.distributions import find_folder as find_folder  # noqa: PLC0414 - for those who look for it here
from portakernel.host.foreign import PATIENCE_S, Raised, Returned, call_bounded, is_within
from portakernel.host.forks import unsplit, was_interrupted
from portakernel.host.locks import KeyedLocks, make_lock
from portakernel.host.passing import is_exhausted, is_passing
from portakernel.manifest.loading import Loaded, load_manifest
from portakernel.manifest.models import BackendManifest, PluginManifest
from portakernel.text.printable import brief, logger, one_line, printable

GROUP = "portakernel"
# What portakernel's own distribution is called. Anybody's may be called so: it makes nobody first-party.
DISTRIBUTION = "portakernel"
_OWN = {"plugins": "portakernel_plugins", "backends": "portakernel_backends"}
# How long a hook may take, the import of its module included, before `portakernel doctor` speaks of it.
SLOW_HOOK_S = 5.0
# How much a hook's answer may yield: one that is made while it is read could have no end.
MAX_ANSWERS = 100_000
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_log = logger()


@dataclass(frozen=True, slots=True)
class Package:
    """One entry point of the group ``portakernel``: a plugin, a backend, or both in one folder.

    ``first_party``: it ships with portakernel itself, as its place says (``is_own``).
    """

    name: str
    module: str
    distribution: str
    version: str
    folder: Path | None
    first_party: bool = False

    def __post_init__(self) -> None:
        # an entry point and a METADATA file may say anything
        for name in ("name", "module", "distribution", "version"):
            object.__setattr__(self, name, one_line(getattr(self, name)))

    def __repr__(self) -> str:
        return brief(f"<Package {self}>")

    @property
    def is_impostor(self) -> bool:
        """Whether it calls its distribution portakernel, and is none of portakernel's."""
        return self.distribution == DISTRIBUTION and not self.first_party

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})"


@dataclass(frozen=True, slots=True)
class Broken:
    """A package, or a part of it, that cannot be used: at which stage, why, and the traceback where there is one."""

    package: Package
    stage: str
    reason: str
    traceback: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", printable(self.reason))
        object.__setattr__(self, "traceback", printable(self.traceback))

    def __repr__(self) -> str:
        return brief(f"<Broken {self.package} at {self.stage}: {self.reason}>")


@dataclass(frozen=True, slots=True)
class Slow:
    """A hook that took longer than hooks may: everybody waits for it who asks what is there."""

    package: Package
    hook: str
    seconds: float


def installed_packages() -> tuple[Package, ...]:
    """Every entry point of the group, found without importing any of them, and all that ships with portakernel.

    Raises:
        OSError: the process or the host has run out of descriptors or memory.
    """
    return _discovered()[0]


def _discovered() -> tuple[tuple[Package, ...], tuple[Unreadable, ...]]:
    """The installed packages, and the distributions that may have some and cannot be read."""
    registered, unreadable = entry_points(GROUP)
    ours: dict[tuple[str, str], Package] = {}
    strangers: list[Package] = []
    for package in map(_package, registered):
        if package.first_party:
            ours.setdefault((package.name, package.module), package)  # whoever else registers it
        else:
            strangers.append(package)
    ours |= {(package.name, package.module): package for package in _shipped(ours.keys())}
    ranked = sorted((*ours.values(), *strangers), key=lambda package: (package.distribution, package.name))
    return tuple(sorted(ranked, key=lambda package: not package.first_party)), tuple(unreadable)


def _shipped(registered: Collection[tuple[str, str]]) -> Iterator[Package]:
    """The packages in our own folders: a distribution that calls itself portakernel may hide our entry points.

    Those whose name and module are ``registered`` are left out.
    """
    for own in _own_folders():
        for folder in own.iterdir() if own.is_dir() else ():
            module = f"{own.name}.{folder.name}"
            manifests = (folder / "plugin.yaml").is_file() or (folder / "backend.yaml").is_file()
            if manifests and (folder.name, module) not in registered and is_own(find_folder(module)):
                yield Package(folder.name, module, DISTRIBUTION, "unknown", folder, first_party=True)


def is_own(folder: Path | None) -> bool:
    """Whether a package's folder is among those that ship with this portakernel, whoever registers it."""
    return folder is not None and not _own_folders().isdisjoint(folder.resolve().parents)


@functools.cache
def _own_folders() -> frozenset[Path]:
    """The packages of plugins and of backends beside this one: where a wheel has them, or the repository."""
    root = Path(__file__).resolve().parents[2]
    beside = [(root / name, root / folder / name) for folder, name in _OWN.items()]
    return frozenset(installed if installed.is_dir() else in_repository for installed, in_repository in beside)


def _package(entry_point: EntryPoint) -> Package:
    module = entry_point.value.partition(":")[0].strip()
    try:
        folder = find_folder(module) if _MODULE.fullmatch(module) else None
    except OSError as error:
        if is_exhausted(error):
            raise
        folder = None
    return Package(entry_point.name, module, *entry_point.distribution.named(), folder, is_own(folder))


class PluginManager:
    """The installed packages with their manifests; modules are imported when a hook of theirs is needed.

    A package that cannot be used is kept in ``broken`` and never stops another one; in ``broken_but_off`` where it may
    not be imported anyway, so that nobody has to mend it.
    """

    def __init__(
        self,
        packages: Iterable[Package] | None = None,
        *,
        disabled: frozenset[str] = frozenset(),
        allowed: frozenset[str] | None = None,
        strict: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.packages, self.unreadable = _discovered() if packages is None else (tuple(packages), ())
        self.disabled = disabled
        self.allowed = allowed
        self.patience_s = patience_s
        self.plugins: dict[str, tuple[Package, Loaded[PluginManifest]]] = {}
        self.backends: dict[str, tuple[Package, Loaded[BackendManifest]]] = {}
        self.broken: list[Broken] = []
        self.broken_but_off: list[Broken] = []
        self.slow: list[Slow] = []
        # What did not return, by the package's name, and as what: its code is called no more.
        self.resting: dict[str, str] = {}
        self._lock = make_lock()
        self._importing = KeyedLocks()
        self._modules: dict[str, Returned[ModuleType] | Raised] = {}
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
            text = f"module {package.module!r} cannot be found; reinstall {package.distribution}"
            if not _MODULE.fullmatch(package.module):
                text = f"the entry point {package.name!r} of {package.distribution} names no module, but"
                text += f" {package.module!r}; write the dotted name of the package that holds plugin.yaml"
            self._break(package, "discovery", text)
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
            if is_exhausted(error):
                raise
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
        (self.broken_but_off if self.is_off(package) else self.broken).append(Broken(package, stage, reason, trace))
        _log.debug("%s is broken at %s: %s", package, stage, reason)

    def report_broken(self, package: Package, stage: str, reason: str, error: BaseException | None = None) -> None:
        """Keeps a fault that was found after discovery, once."""
        with self._lock:
            known = (*self.broken, *self.broken_but_off)
            if not any(fault.package == package and fault.reason == reason for fault in known):
                self._break(package, stage, reason, error)

    def is_off(self, package: Package) -> bool:
        """Whether ``package`` may not be imported: it is disabled, or not among the plugins that are allowed.

        The backends that ship with portakernel need not be: without them it would find no device.
        """
        if package.name in self.disabled or self.allowed is None:
            return package.name in self.disabled
        ships = package.first_party and package.name not in self.plugins
        return package.name not in self.allowed and not ships

    def why_off(self, package: Package) -> str:
        """Who keeps ``package`` from being imported; empty where nobody does."""
        if not self.is_off(package):
            return ""
        switched = package.name in self.disabled
        return "PORTAKERNEL_DISABLE switches it off" if switched else "a list of plugins leaves it out"

    def broken_names(self) -> frozenset[str]:
        """The names of packages with at least one fault."""
        return frozenset(broken.package.name for broken in self.broken)

    def _hooks(self, package: Package) -> frozenset[str]:
        declared = set(self.plugins[package.name][1].manifest.hooks) if package.name in self.plugins else set[str]()
        if package.name in self.backends:
            declared.add("portakernel_targets")
        return frozenset(declared)

    def implementing(self, hook: str) -> Iterator[Package]:
        """The packages that say they implement ``hook``, those left out that are switched off."""
        for package in self.packages:
            entry = self.plugins.get(package.name) or self.backends.get(package.name)
            if entry and entry[0] is package and not self.is_off(package) and hook in self._hooks(package):
                yield package

    def call(self, hook: str, **arguments: Any) -> list[tuple[Package, Any]]:
        """The answers of all packages that implement ``hook``; one that fails is kept as broken and left out."""
        asked = [(package, self.ask(package, hook, **arguments)) for package in self.implementing(hook)]
        return [(package, outcome.value) for package, outcome in asked if isinstance(outcome, Returned)]

    def ask(self, package: Package, hook: str, **arguments: Any) -> Returned[Any] | Raised:
        """One package's answer to ``hook``, or why there is none.

        Raises:
            CalledBackError: this very hook asks, for what only it can answer.
        """
        what = f"{hook} of {package}"
        if is_within(what):
            if hook == "portakernel_decided":  # of a decision that the hook itself is the cause of
                return Returned(None)
            raise CalledBackError(f"{what} asks portakernel for what it is to answer; ask once it has returned")
        start = time.perf_counter()
        imported = self._module(package)
        if isinstance(imported, Raised):
            return imported
        if (resting := self.rest(package)) is not None:
            return Raised(resting)
        others = [registered for registered in self._pluggy.get_plugins() if registered is not imported.value]
        caller = self._pluggy.subset_hook_caller(hook, others)
        outcome = call_bounded(what, partial(_answer, package, caller, arguments), self.patience_s)
        if isinstance(outcome, Raised):
            self.contain(package, "hook", hook, outcome)
        if (seconds := time.perf_counter() - start) > SLOW_HOOK_S:
            self.slow.append(Slow(package, hook, seconds))
        return outcome

    def rest(self, package: Package) -> NotReturnedError | None:
        """Why nothing of a package is called any more; None where it is."""
        return NotReturnedError(self.patience_s) if package.name in self.resting else None

    def contain(self, package: Package, stage: str, what: str, outcome: Raised) -> None:
        """Keeps what became of foreign code: a fault that does not pass, or that it rests."""
        if isinstance(outcome.error, NotReturnedError):
            self.resting.setdefault(package.name, what)
        if is_passing(outcome.error):
            _log.warning("%s: %s %s; it is asked again", package, what, outcome)
        else:
            self.report_broken(package, stage, f"{what} {outcome}", outcome.error)

    def _module(self, package: Package) -> Returned[ModuleType] | Raised:
        if package.name in self._modules:
            return self._modules[package.name]
        what = f"importing {package.module}"
        with self._importing.holding(package.name, f"{what} of {package}"):
            if package.name in self._modules:
                return self._modules[package.name]
            with unsplit(what):
                imported = call_bounded(f"{what} of {package}", partial(self._imported, package), self.patience_s)
            if isinstance(imported, Raised):
                self.contain(package, "import", what, imported)
            if isinstance(imported, Returned) or not is_passing(imported.error):
                self._modules[package.name] = imported
            return imported

    def _imported(self, package: Package) -> ModuleType:
        if was_interrupted(f"importing {package.module}"):
            text = "another thread was importing it when this process was forked, and nobody can end that import"
            raise self._error(package, text)
        module = importlib.import_module(package.module)
        self._check_hooks(package, module)
        self._pluggy.register(module, name=package.name)
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


def _answer(package: Package, caller: Any, arguments: Any) -> Any:
    answers = caller(**arguments)
    answer = answers[0] if answers else None  # pluggy leaves a None away
    if not isinstance(answer, Iterator):
        return answer
    listed = list(itertools.islice(answer, MAX_ANSWERS + 1))
    if len(listed) > MAX_ANSWERS:
        text = f"yielded more than {MAX_ANSWERS} answers; give a list that ends"
        raise PluginError(text, plugin=package.name, distribution=package.distribution, version=package.version)
    return listed
