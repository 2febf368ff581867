"""Wishes that nothing here can follow: names that are not installed, are broken, or may not serve.

None of them stops a process: one policy serves a fleet whose machines differ, and a plugin may be uninstalled under it.
A preference that is skipped is warned of, once; what is denied, or not on a list, needs nothing, and `doctor` notes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from portakernel.deciding.kernel_argument import check_ships
from portakernel.deciding.policies import AllowList, Layer, Naming, Policy
from portakernel.errors import ArgumentValueError, UnknownNameError, close_to
from portakernel.registry.kernel import Kernel
from portakernel.registry.registry import Registry
from portakernel.words.target import Target

_DISABLED = "PORTAKERNEL_DISABLE switches it off"
_UNKNOWN = "correct the name, or install what has it"


@dataclass(frozen=True, slots=True)
class Unmet:
    """One wish of a layer that means nothing here: the key and name, where it stands, why, and what to do.

    ``near``: the name is close to one that is known, and perhaps misspelt.
    """

    key: str
    name: str
    where: str
    why: str
    remedy: str
    near: bool = False

    def __str__(self) -> str:
        stop = "" if self.why.endswith(("?", ".")) else "."
        return f"{self.where}: {self.why}{stop}"


def unknown_names(layer: Layer, keys: tuple[Naming, ...], registry: Registry) -> Iterator[Unmet]:
    """The names that nothing here has or, where the layer is about one op, that have no kernel of it."""
    for key in keys:
        for name in getattr(layer, key):
            where = layer.about(key, name)
            try:
                registry.named(name)
                if layer.scope.op is not None:
                    check_ships(registry, layer.scope.op, name)
            except (UnknownNameError, ArgumentValueError) as error:
                why = str(error).removeprefix(f"{layer.scope.op}: ")
                broken = name.partition(".")[0] in registry.manager.broken_names()
                remedy = "`portakernel doctor` says how to mend the plugin" if broken else _UNKNOWN
                yield Unmet(key, name, where, why, remedy, isinstance(error, UnknownNameError) and is_near(error))


def unknown_plugins(layer: Layer, registry: Registry) -> Iterator[Unmet]:
    """The plugins on a layer's list that are not here."""
    known = known_plugins(registry)
    for name in layer.plugins:
        if name not in known:
            error = UnknownNameError("plugin", name, known)
            yield Unmet("plugins", name, layer.about("plugins", ""), str(error), _UNKNOWN, is_near(error))


def unlisted_names(environment: Layer, disabled: Iterable[str], registry: Registry) -> Iterator[UnknownNameError]:
    """An error for each name in ``PORTAKERNEL_PLUGINS`` and ``PORTAKERNEL_DISABLE`` that nothing here has."""
    known = known_plugins(registry)
    where = environment.about("plugins", "")
    yield from (
        UnknownNameError("plugin", name, known, where=where) for name in environment.plugins if name not in known
    )
    yield from unknown_switches(disabled, registry)


def unknown_switches(names: Iterable[str], registry: Registry) -> list[UnknownNameError]:
    """An error for each name in ``PORTAKERNEL_DISABLE`` that nothing here has: to be raised, or reported."""
    known = {*registry.kernels, *registry.backends, *known_plugins(registry)}
    kind, where = "kernel, plugin or backend", "PORTAKERNEL_DISABLE"
    return [UnknownNameError(kind, name, known, where=where) for name in names if name not in known]


def known_plugins(registry: Registry) -> list[str]:
    """The names that a list of plugins may hold: every package that is here, and the references."""
    return [*(package.name for package in registry.manager.packages), *registry.plugins()]


@functools.lru_cache(maxsize=1024)
def skipped_preferences(
    policy: Policy, op: str, target: Target, registry: Registry, disabled: frozenset[str], allow: tuple[AllowList, ...]
) -> tuple[Unmet, ...]:
    """The preferences for ``op`` on ``target`` that cannot be followed, or that the policy itself rules out whole."""
    layers = policy.covering(op, target, registry)
    rules: list[tuple[str, Callable[[Kernel], bool]]] = []
    off: dict[str, str] = {}
    lists = (*allow, *((layer.plugins, layer.place("plugins")) for layer in layers if layer.plugins))
    if disabled:
        rules.append((_DISABLED, lambda k: not disabled.isdisjoint((k.name, k.plugin))))
    for names, where in lists:
        rules.append((_allows(names, where), _outside(names)))
    # what could not be read has no kernels to hold against the rules
    for plugin in {fault.package.name for fault in registry.manager.broken_but_off}:
        listed = (_allows(names, where) for names, where in lists if plugin not in names)
        off[plugin] = _DISABLED if plugin in disabled else next(listed, "")
    for layer in layers:
        if layer.scope.op is None:
            rules += [(f"{layer.place('deny', name)} denies it", _called(name)) for name in layer.deny]
    skipped: list[Unmet] = []
    for layer in layers:
        unknown = {wish.name: wish for wish in unknown_names(layer, ("prefer",), registry)}
        for name in layer.prefer:
            ruled = off.get(name.partition(".")[0], "")
            if name in unknown and not ruled:
                skipped.append(unknown[name])
                continue
            if ruled := ruled or next((text for text, holds in rules if all(map(holds, registry.find(name)))), ""):
                text, remedy = f"{name!r} cannot go first: {ruled}", "take one of the two back"
                skipped.append(Unmet("prefer", name, layer.about("prefer", name), text, remedy))
    return tuple(skipped)


def is_near(error: UnknownNameError) -> bool:
    """Whether the name is close to one that is known, and perhaps misspelt."""
    return bool(close_to(error.unknown, error.known))


def _allows(names: tuple[str, ...], where: str) -> str:
    return f"{where} allows only {', '.join(names)}"


def _outside(names: tuple[str, ...]) -> Callable[[Kernel], bool]:
    return lambda kernel: not kernel.is_reference and kernel.plugin not in names


def _called(name: str) -> Callable[[Kernel], bool]:
    return lambda kernel: name in (kernel.name, kernel.plugin)
