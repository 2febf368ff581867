"""The wishes for the whole process: of the environment, of policy files, and of ``set_policy``."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.config import Config
from portakernel.deciding.policies import NAMING, AllowList, Layer, environment_layer
from portakernel.deciding.shadow_wishes import ShadowWishes
from portakernel.deciding.sources import unread_store
from portakernel.deciding.unmet import unlisted_names
from portakernel.errors import ConfigWarning
from portakernel.host.call_site import callers_level
from portakernel.host.locks import make_lock
from portakernel.registry.kernel import Kernel
from portakernel.registry.plugin_manager import Package
from portakernel.registry.registry import Registry

if TYPE_CHECKING:
    from portakernel.deciding.policy_file import Draft, PolicyFile

DOUBT_REMEDY = "correct it, or leave it as it is if it is meant for other machines"


class ProcessWishes:
    """The process's own layers, and what they keep from being imported.

    ``allow`` are the lists of plugins that were in force at the beginning, each with its place. They hold for good:
    what they leave out was not imported, and the keys of calls do not read its claims.
    """

    def __init__(self, config: Config, drafts: Sequence[Draft], registry: Registry) -> None:
        self.disabled = frozenset(config.disable)
        self.environment = environment_layer(config)
        self._doubts = (*config.strangers, *filter(None, [unread_store(config)]))
        self.above: Layer | None = None
        self.files: tuple[PolicyFile, ...] = ()
        self.strict_names = False
        self._registry = registry
        self._warned: set[tuple[str, ...]] = set()
        self._lock = make_lock()
        self.set_files(drafts, named_by="PORTAKERNEL_POLICY")
        self.allow: tuple[AllowList, ...] = tuple(
            (layer.plugins, layer.place("plugins")) for layer in self.layers() if layer.plugins
        )

    def layers(self) -> tuple[Layer, ...]:
        """The layers, strongest first: ``set_policy``, the environment, the policy files with the last one first."""
        above = () if self.above is None else (self.above,)
        below = [layer for file in reversed(self.files) for layer in file.layers]
        return (*above, self.environment, *below)

    @property
    def shadow(self) -> ShadowWishes | None:
        """What the last file that speaks of shadow verification says of it."""
        return next((file.shadow for file in reversed(self.files) if file.shadow is not None), None)

    def accepted(self, layer: Layer) -> Layer:
        """``layer`` itself, the names known that have to be: those under ``use``, or all where names are strict.

        Raises:
            UnknownNameError: one is not.
        """
        return layer.check(self._registry, NAMING if self.strict_names else ("use",))

    def set_files(self, drafts: Sequence[Draft], *, named_by: str) -> None:
        """Puts policy files in the place of those before.

        Raises:
            PolicyFileError: one cannot be accepted; those before stay in force.
            UnknownNameError: names are strict now, and a variable has one that nothing here has.
        """
        files: tuple[PolicyFile, ...] = ()
        strict = False
        if drafts:
            from portakernel.deciding.policy_file import names_are_strict, resolve_drafts  # as in `read`

            files = resolve_drafts(drafts, self._registry, named_by=named_by)
            strict = names_are_strict(drafts)
        self.environment.check(self._registry, NAMING if strict else ("use",))
        for error in unlisted_names(self.environment, self.disabled, self._registry) if strict else ():
            raise error
        self.files, self.strict_names = files, strict

    def switched_off(self, kernel: Kernel, allow: Sequence[AllowList] = ()) -> list[Rejection]:
        """Why ``kernel`` may not be imported: the variable that names it, the lists of plugins that do not."""
        rejections = list[Rejection]()
        if named := self.disabled & {kernel.name, kernel.plugin}:
            rejections.append(Rejection(ReasonCode.DISABLED, f"PORTAKERNEL_DISABLE names {', '.join(sorted(named))}"))
        for plugins, where in dict.fromkeys((*self.allow, *allow)):
            if kernel.plugin not in plugins and not kernel.is_reference:
                rejections.append(Rejection(ReasonCode.NOT_ALLOWED, f"{where} allows only {', '.join(plugins)}"))
        return rejections

    def why_off(self, package: Package) -> str:
        """Who keeps ``package`` from being imported, each list of plugins by its place; empty where nobody does."""
        lists = [f"{where} allows only {', '.join(names)}" for names, where in self.allow if package.name not in names]
        off = self._registry.manager.why_off(package)
        return " and ".join(lists) if off and lists and package.name not in self.disabled else off

    def warn_of_doubts(self) -> None:
        """Warns, once, of variables that mean nothing, stores that cannot be read, and unknown names in files."""
        in_files = (f"{doubt}: {DOUBT_REMEDY}" for file in self.files for doubt in file.doubts)
        for doubt in (*self._doubts, *in_files):
            self.warn_once(doubt)

    def warn_once(self, text: str, *about: str) -> None:
        """Warns of a wish that cannot be followed: once of each place and name that it is ``about``."""
        about = about or (text,)
        with self._lock:
            new = about not in self._warned
            self._warned.add(about)
        if new:
            warnings.warn(text, ConfigWarning, stacklevel=callers_level())


def read(paths: Sequence[str | Path]) -> tuple[Draft, ...]:
    """The policy files at ``paths``, whatever is wrong with them."""
    if not paths:
        return ()
    from portakernel.deciding.policy_file import read_drafts  # its models cost those who have no such file nothing

    return read_drafts(paths)


def allowed_plugins(config: Config, drafts: Sequence[Draft]) -> frozenset[str] | None:
    """The plugins on every list that the environment and the policy files give; None where there is no list.

    No plugin at all while a file cannot be read whole: nothing shall be imported that its list might leave out.
    """
    if any(draft.problems for draft in drafts):
        return frozenset()
    lists = [frozenset(names) for names in (config.plugins, *(draft.plugins for draft in drafts)) if names]
    return functools.reduce(frozenset.intersection, lists) if lists else None
