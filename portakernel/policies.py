"""What a person prefers, allows or forbids, and which source decides.

Sources, strongest first: an argument of the call, context managers (the innermost first), ``set_policy`` for the
process, the environment. A policy file, then a plan, then measurements take their place as weaker layers. For each op,
the strongest layer that mentions it decides between ``use`` and ``prefer``; ``deny`` and ``require`` add up over all.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from portakernel.capability import Property
from portakernel.config import Config
from portakernel.errors import ConfigError, UnknownNameError
from portakernel.kernel import Kernel
from portakernel.registry import Registry

ReferenceMode = Literal["allow", "warn", "forbid"]
Names = str | tuple[str, ...] | list[str]


@dataclass(frozen=True, slots=True)
class Layer:
    """One source's wishes. ``source`` is how reasons name it."""

    source: str
    use: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    require: frozenset[str] = frozenset()
    reference: ReferenceMode | None = None

    def check(self, registry: Registry) -> Layer:
        """The layer itself, every name in it known.

        Raises:
            UnknownNameError: a name that is no kernel and no plugin.
        """
        for key in ("use", "prefer", "deny"):
            for name in getattr(self, key):
                registry.named(name, where=f"{self.source}: {key}")
        return self


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a policy says of one op: kernels by name, each with the source that named it."""

    use: Mapping[str, str]
    prefer: Mapping[str, str]
    deny: Mapping[str, str]
    reference: ReferenceMode
    reference_source: str


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """Layers, strongest first. Interned: equal layers are one object, which serves as its own key."""

    layers: tuple[Layer, ...]

    @property
    def require(self) -> frozenset[str]:
        """Properties that every chosen kernel must declare."""
        return frozenset().union(*(layer.require for layer in self.layers))

    def wishes(self, op: str, registry: Registry) -> Wishes:
        """What this policy says of ``op``."""
        return _wishes(self, op, registry)


@functools.lru_cache(maxsize=1024)
def _wishes(policy: Policy, op: str, registry: Registry) -> Wishes:
    use: dict[str, str] = {}
    prefer: dict[str, str] = {}
    for layer in policy.layers:
        use = _named(layer.use, op, registry, layer.source)
        prefer = _named(layer.prefer, op, registry, layer.source)
        if use or prefer:
            break
    deny: dict[str, str] = {}
    for layer in reversed(policy.layers):
        deny |= _named(layer.deny, op, registry, layer.source)
    speaking = next((layer for layer in policy.layers if layer.reference is not None), None)
    if speaking is None or speaking.reference is None:
        return Wishes(use, prefer, deny, "warn", "default")
    return Wishes(use, prefer, deny, speaking.reference, speaking.source)


def _named(names: tuple[str, ...], op: str, registry: Registry, source: str) -> dict[str, str]:
    kernels: list[Kernel] = [kernel for name in names for kernel in registry.named(name) if kernel.op == op]
    return {kernel.name: source for kernel in kernels}


@functools.lru_cache(maxsize=4096)
def intern_policy(layers: tuple[Layer, ...]) -> Policy:
    """The one policy with these layers."""
    return Policy(layers)


def environment_layer(config: Config) -> Layer:
    """The layer that the ``PORTAKERNEL_*`` variables make."""
    reference: ReferenceMode | None = next((mode for mode in get_args(ReferenceMode) if mode == config.reference), None)
    return Layer("environment", config.use, config.prefer, config.deny, reference=reference)


def make_layer(
    source: str,
    use: Names = (),
    prefer: Names = (),
    deny: Names = (),
    require: Names = (),
    reference: ReferenceMode | None = None,
) -> Layer:
    """A layer from a caller's arguments; one name may be given as a plain string.

    Raises:
        UnknownNameError: ``require`` or ``reference`` is not one of the accepted words.
        ConfigError: the names are not strings.
    """

    def names(key: str, value: Names) -> tuple[str, ...]:
        given: Any = value
        several = tuple(given) if isinstance(given, (list, tuple)) else (given,)
        if not all(isinstance(name, str) for name in several):
            raise ConfigError(f"{source}: {key} takes names of kernels or plugins as strings; this is {value!r}")
        return several

    required = names("require", require)
    for name in required:
        if name not in get_args(Property):
            raise UnknownNameError("property", name, get_args(Property), where=source)
    if reference is not None and reference not in get_args(ReferenceMode):
        raise UnknownNameError("reference mode", str(reference), get_args(ReferenceMode), where=source)
    return Layer(
        source, names("use", use), names("prefer", prefer), names("deny", deny), frozenset(required), reference
    )  # fmt: skip
