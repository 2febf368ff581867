"""Whether a kernel is installed and usable here: modules looked up, probes run once per device, entries imported."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from portakernel.capability import ReasonCode, Rejection
from portakernel.capture import is_capturing
from portakernel.errors import CaptureError, PortakernelError
from portakernel.kernel import Kernel, load_entry
from portakernel.locks import make_lock
from portakernel.plugin_manager import PluginManager, find_folder
from portakernel.request import Request
from portakernel.target import Device


@dataclass(frozen=True, slots=True)
class Usable:
    """A probe's answer for a device that can be used, where something has to be said of that.

    ``notes`` are sentences for decisions and ``doctor``, what to do standing after the last semicolon. The plugin may
    add to them later.
    """

    notes: Sequence[str] = ()


class Readiness:
    """What was found out about plugins' code in this process; each answer is kept.

    This is the border to plugins' code: whatever it raises becomes a reason, and is kept for ``doctor``. While a stream
    is captured only what is known already is answered; anything else is a ``CaptureError``.
    """

    def __init__(self, manager: PluginManager) -> None:
        self._manager = manager
        self._lock = make_lock()
        self._probed: dict[tuple[str, Device], Rejection | Usable] = {}
        self._loaded: dict[str, Any] = {}

    def entry(self, entry: str) -> Any:
        """The function that ``module:function`` names, imported once; what the import raises propagates."""
        with self._lock:
            self._known_in_capture(entry in self._loaded, f"{entry} would have to be imported")
            if entry not in self._loaded:
                self._loaded[entry] = load_entry(entry)
            return self._loaded[entry]

    def replacing(self, entry: str, function: Any) -> Readiness:
        """These answers, with another function in the place of what ``entry`` names."""
        changed = copy.copy(self)
        changed._loaded = {**self._loaded, entry: function}
        return changed

    def _known_in_capture(self, known: bool, otherwise: str) -> None:
        """Nothing, unless an answer is not known and a stream is being captured."""
        if not known and is_capturing():
            raise CaptureError(otherwise)

    def not_installed(self, kernel: Kernel) -> list[Rejection]:
        """The required modules that are missing or of another version."""
        found = []
        for module, specifier, version in required(kernel):
            needs = f"needs {module} {specifier}".rstrip()
            if version is None:
                found.append(Rejection(ReasonCode.NOT_INSTALLED, f"{needs}; it is not installed", module))
            elif not _admits(specifier, version):
                found.append(Rejection(ReasonCode.NOT_INSTALLED, f"{needs}; {version} is installed", module))
        return found

    def probe(self, kernel: Kernel, device: Device) -> Rejection | None:
        """What the plugin's ``ready`` says of ``device``, asked once."""
        if kernel.ready is None:
            return None
        key = (kernel.plugin, device)
        with self._lock:
            self._known_in_capture(key in self._probed, f"{kernel.name} would have to be probed on {device.name}")
            if key not in self._probed:
                self._probed[key] = self._ask(kernel, kernel.ready, "probe", {}, device)
            answer = self._probed[key]
        return answer if isinstance(answer, Rejection) else None

    def notes(self, kernel: Kernel, device: Device) -> tuple[str, ...]:
        """What the plugin's probe, or the plugin since, has to say of ``device``; nothing where it was not asked."""
        answer = self._probed.get((kernel.plugin, device))
        return tuple(answer.notes) if isinstance(answer, Usable) else ()

    def check(self, kernel: Kernel, values: Mapping[str, int | None]) -> Rejection | None:
        """What the kernel's own ``check`` says of a request's values."""
        if kernel.check is None:
            return None
        named = {name.replace(".", "_"): value for name, value in values.items()}
        answer = self._ask(kernel, kernel.check.entry, "check", named)
        return answer if isinstance(answer, Rejection) else None

    def built(self, kernel: Kernel, request: Request) -> Rejection | None:
        """Why what the kernel's ``build`` makes does not serve ``request``, whichever process it was to make it."""
        if kernel.built is None:
            return None
        if (failure := self.load(kernel, kernel.built)) is not None:
            return failure
        answer = self._ask(kernel, kernel.built, "built", {}, request)
        return answer if isinstance(answer, Rejection) else None

    def load(self, kernel: Kernel, entry: str) -> Rejection | None:
        """Why ``entry`` cannot be imported; None where it is."""
        self._known_in_capture(entry in self._loaded, f"{kernel.name} would have to be imported ({entry})")
        try:
            self.entry(entry)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the plugin border: the reason is kept
            reason = f"importing {entry} raised {type(error).__name__}: {error}"
            self._report(kernel, "import", reason, error)
            return Rejection(ReasonCode.IMPORT_FAILED, f"{reason}; see `portakernel doctor`")
        return None

    def _ask(
        self, kernel: Kernel, entry: str, what: str, values: Mapping[str, Any], *arguments: Any
    ) -> Rejection | Usable:
        if what == "check" and (failure := self.load(kernel, entry)) is not None:
            return failure
        try:
            answer = self.entry(entry)(*arguments, **values)
            if answer is not None and not isinstance(answer, (Rejection, Usable) if what == "probe" else Rejection):
                raise PortakernelError(f"returned {answer!r}; it must return None or a Rejection")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the plugin border: the reason is kept
            self._report(kernel, "ready" if what == "probe" else what, _raised(entry, error), error)
            text = f"its {what} raised {type(error).__name__}: {error}; see `portakernel doctor`"
            return Rejection(ReasonCode.PROBE_FAILED, text)
        return Usable() if answer is None else answer

    def _report(self, kernel: Kernel, stage: str, reason: str, error: BaseException) -> None:
        if kernel.package is not None:
            self._manager.report_broken(kernel.package, stage, reason, error)


def _raised(entry: str, error: BaseException) -> str:
    return f"{entry} raised {type(error).__name__}: {error}"


@functools.lru_cache(maxsize=256)
def _admits(specifier: str, version: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except InvalidVersion:
        return False


def required(kernel: Kernel) -> Iterator[tuple[str, str, str | None]]:
    """The modules that ``kernel`` needs, in which versions, and the version that is installed, if any."""
    for module, specifier in kernel.requires.items():
        yield module, specifier, installed_version(module, kernel.distributions.get(module, ""))


@functools.lru_cache(maxsize=256)
def installed_version(module: str, distribution: str = "") -> str | None:
    """The version of the distribution that provides the import name ``module``; None when it cannot be imported.

    ``distribution`` is its name where it is known to be another: to find that out reads the files of all that is
    installed.
    """
    if find_folder(module) is None:
        return None
    for name in (distribution or module, module):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    providers = _providers().get(module, [])
    return importlib.metadata.version(providers[0]) if providers else "0"


@functools.cache
def _providers() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()
