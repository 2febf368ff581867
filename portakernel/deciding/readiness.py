"""Whether a kernel is installed and usable here: modules looked up, probes run once per device, entries imported."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.claims.request import Request
from portakernel.errors import CaptureError, PortakernelError
from portakernel.host.distributions import installed_version as installed_version  # noqa: PLC0414 - read here by name
from portakernel.host.foreign import Raised, Returned, call_bounded, call_contained
from portakernel.host.forks import unsplit
from portakernel.host.locks import KeyedLocks
from portakernel.host.passing import is_passing
from portakernel.registry.kernel import Kernel, load_entry
from portakernel.registry.plugin_manager import PluginManager
from portakernel.tensors.capture import is_capturing
from portakernel.text.printable import one_line
from portakernel.words.target import Device, Target


@dataclass(frozen=True, slots=True)
class Usable:
    """A probe's answer for a device that can be used, where something has to be said of that.

    ``notes`` are sentences for decisions and ``doctor``, what to do standing after the last semicolon. The plugin may
    add to them later.
    """

    notes: Sequence[str] = ()


class Readiness:
    """The answers of plugins' code in this process; each is kept, but for faults that pass.

    This is the border to plugins' code: whatever it raises becomes a reason, and is kept for ``doctor``. Imports and
    probes are waited for within a bound. A kernel's ``check`` and ``built`` are not: they are asked for every decision,
    and a thread would cost more than they do. While a stream is captured only what is known already is answered;
    anything else is a ``CaptureError``.
    """

    def __init__(self, manager: PluginManager) -> None:
        self._manager = manager
        self._locks = KeyedLocks()
        self._probed: dict[_Probed, Rejection | Usable] = {}
        self._loaded: dict[str, Any] = {}

    def entry(self, entry: str) -> Any:
        """The function that ``module:function`` names, imported once; what the import raises propagates."""
        imported = self._imported(entry)
        if isinstance(imported, Raised):
            raise imported.error
        return imported.value

    def _imported(self, entry: str) -> Returned[Any] | Raised:
        if entry in self._loaded:
            return Returned(self._loaded[entry])
        self._known_in_capture(False, f"{entry} would have to be imported")
        what = f"importing {entry}"
        with self._locks.holding(entry, what):
            if entry in self._loaded:
                return Returned(self._loaded[entry])
            ours = entry.startswith("portakernel.")  # torch with it, perhaps: nothing goes on without these
            with unsplit(what):
                imported = call_bounded(what, partial(load_entry, entry), 0 if ours else self._manager.patience_s)
            if isinstance(imported, Returned):
                self._loaded[entry] = imported.value
            return imported

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
        rejections = []
        for module, specifier in kernel.requires.items():
            needs = f"needs {module} {specifier}".rstrip()
            try:
                version = installed_version(module, kernel.distributions.get(module, ""))
            except OSError as error:
                text = f"{needs}; what is installed cannot be read now: {error.strerror or error}"
                rejections.append(Rejection(ReasonCode.NOT_INSTALLED, text, module, passing=True))
                continue
            if version is None:
                rejections.append(Rejection(ReasonCode.NOT_INSTALLED, f"{needs}; it is not installed", module))
            elif not _admits(specifier, version):
                rejections.append(Rejection(ReasonCode.NOT_INSTALLED, f"{needs}; {version} is installed", module))
        return rejections

    def probe(self, kernel: Kernel, device: Device) -> Rejection | None:
        """The answer of the plugin's ``ready`` for ``device``, asked once."""
        if kernel.ready is None:
            return None
        key = _key(kernel, device)
        if key not in self._probed:
            self._known_in_capture(False, f"{kernel.name} would have to be probed on {device.name}")
            with self._locks.holding(key, f"the probe of {kernel.plugin} on {device.name}"):
                if key not in self._probed:
                    answer = self._ask(kernel, kernel.ready, "probe", {}, device)
                    if isinstance(answer, Rejection) and answer.passing:
                        return answer
                    self._probed[key] = answer
        answer = self._probed[key]
        return answer if isinstance(answer, Rejection) else None

    def notes(self, kernel: Kernel, device: Device) -> tuple[str, ...]:
        """The notes of the plugin's probe, or of the plugin since, on ``device``; none where it was not asked."""
        answer = self._probed.get(_key(kernel, device))
        return tuple(map(one_line, answer.notes)) if isinstance(answer, Usable) else ()

    def check(self, kernel: Kernel, values: Mapping[str, int | None]) -> Rejection | None:
        """The answer of the kernel's own ``check`` for a request's values."""
        if kernel.check is None:
            return None
        named = {name.replace(".", "_"): value for name, value in values.items()}
        answer = self._ask(kernel, kernel.check.entry, "check", named)
        return answer if isinstance(answer, Rejection) else None

    def built(self, kernel: Kernel, request: Request) -> Rejection | None:
        """The reason why no build of the kernel serves ``request``, whichever process was to make it."""
        if kernel.built is None:
            return None
        if (failure := self.load(kernel, kernel.built)) is not None:
            return failure
        answer = self._ask(kernel, kernel.built, "built", {}, request)
        return answer if isinstance(answer, Rejection) else None

    def load(self, kernel: Kernel, entry: str) -> Rejection | None:
        """Why ``entry`` cannot be imported; None where it is."""
        self._known_in_capture(entry in self._loaded, f"{kernel.name} would have to be imported ({entry})")
        if (rejection := self._rests(kernel)) is not None:
            return rejection
        imported = self._imported(entry)
        if isinstance(imported, Returned):
            return None
        return self._rejection(kernel, ReasonCode.IMPORT_FAILED, "import", f"importing {entry}", imported)

    def _ask(
        self, kernel: Kernel, entry: str, what: str, values: Mapping[str, Any], *arguments: Any
    ) -> Rejection | Usable:
        if what == "check" and (failure := self.load(kernel, entry)) is not None:
            return failure

        def ask() -> Rejection | Usable:
            answer = self.entry(entry)(*arguments, **values)
            if answer is not None and not isinstance(answer, (Rejection, Usable) if what == "probe" else Rejection):
                raise PortakernelError(f"returned {answer!r}; it must return None or a Rejection")
            return Usable() if answer is None else answer

        if what == "probe":
            if (rejection := self._rests(kernel)) is not None:
                return rejection
            outcome = call_bounded(f"{entry} of plugin {kernel.plugin}", ask, self._manager.patience_s)
        else:
            outcome = call_contained(ask)
        if isinstance(outcome, Returned):
            return outcome.value
        stage = "ready" if what == "probe" else what
        return self._rejection(kernel, ReasonCode.PROBE_FAILED, stage, entry, outcome, its=what)

    def _rests(self, kernel: Kernel) -> Rejection | None:
        """Why nothing is asked of a plugin that did not return once."""
        if kernel.package is None or (rest := self._manager.rest(kernel.package)) is None:
            return None
        what = self._manager.resting[kernel.plugin]
        return Rejection(ReasonCode.PROBE_FAILED, f"its {what} {rest}; see `portakernel doctor`")

    def _rejection(
        self, kernel: Kernel, code: ReasonCode, stage: str, what: str, outcome: Raised, *, its: str = ""
    ) -> Rejection:
        if kernel.package is not None:
            self._manager.contain(kernel.package, stage, what, outcome)
        text = f"{f'its {its}' if its else what} {outcome}"
        if is_passing(outcome.error):
            return Rejection(code, f"{text}; it is asked again", passing=True)
        return Rejection(code, f"{text}; see `portakernel doctor`")


# A device for which a plugin was probed: found by its vendor's library or described by torch, it is the same one.
_Probed = tuple[str, Target, str]


def _key(kernel: Kernel, device: Device) -> _Probed:
    return kernel.plugin, device.target, device.torch_device or device.uuid or device.name


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
