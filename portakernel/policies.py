"""What a person prefers, allows or forbids, and which source decides.

Sources, strongest first: an argument of the call, context managers (the innermost first), ``set_policy`` for the
process, the environment, the policy file (what it says of a target or an op before what it says of all). A plan, then
measurements take their place as weaker layers. For each op, the strongest layer that mentions it decides between
``use`` and ``prefer``; ``deny`` and ``require`` add up over all.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from portakernel.arch import ArchSpace, Selector
from portakernel.capability import Property, Rejection
from portakernel.config import Config
from portakernel.errors import ConfigError, UnknownNameError
from portakernel.registry import Registry
from portakernel.target import Target

ReferenceMode = Literal["allow", "warn", "forbid"]
Names = str | tuple[str, ...] | list[str]
_ANY = Selector(("any",))


@dataclass(frozen=True, slots=True)
class Scope:
    """What wishes are about: one op or all, one vendor's archs or every target."""

    op: str | None = None
    vendor: str | None = None
    archs: Selector = _ANY

    def covers(self, op: str, target: Target, spaces: Mapping[str, ArchSpace]) -> bool:
        """Whether calls of ``op`` on ``target`` are among it."""
        if self.op not in (None, op):
            return False
        if self.vendor is None:
            return True
        return self.vendor == target.vendor and spaces[self.vendor].membership(self.archs, target.arch).inside

    def __str__(self) -> str:
        archs = f":{self.archs}" if self.archs != _ANY else ""
        return " on ".join(filter(None, (self.op, f"{self.vendor}{archs}" if self.vendor else "")))


@dataclass(frozen=True, slots=True)
class Place:
    """Where one wish stands: ``where`` is how reasons name it (``policy.yaml:7``), ``name`` is empty for the mode."""

    key: str
    name: str
    where: str


@dataclass(frozen=True, slots=True)
class Layer:
    """One source's wishes. ``source`` is how reasons name it, where ``places`` do not say more exactly."""

    source: str
    use: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    require: frozenset[str] = frozenset()
    reference: ReferenceMode | None = None
    scope: Scope = Scope()
    # Not in the repr, which names the policy of a compiled graph: a comment added to a file must not compile it again.
    places: tuple[Place, ...] = field(default=(), repr=False)

    def place(self, key: str, name: str = "") -> str:
        """How reasons name the wish ``key`` of ``name``."""
        return next((place.where for place in self.places if (place.key, place.name) == (key, name)), self.source)

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
    """What a policy says of one op on one target: kernels, and properties, by name, each with the source that named it.

    Every chosen kernel must declare the properties in ``require``.
    """

    use: Mapping[str, str]
    prefer: Mapping[str, str]
    deny: Mapping[str, str]
    require: Mapping[str, str]
    reference: ReferenceMode
    reference_source: str

    def sourced(self, rejection: Rejection) -> Rejection:
        """``rejection``, with the source that required the property where it is for lack of one."""
        source = self.require.get(rejection.parameter or "")
        return replace(rejection, text=f"{rejection.text} (required by {source})") if source else rejection


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """Layers, strongest first. Interned: equal layers are one object, which serves as its own key."""

    layers: tuple[Layer, ...]

    def wishes(self, op: str, target: Target, registry: Registry) -> Wishes:
        """What this policy says of ``op`` on ``target``."""
        return _wishes(self, op, target, registry)

    def named(self, op: str, registry: Registry) -> frozenset[str]:
        """The kernels of ``op`` that some layer uses or prefers, on whatever target."""
        layers = [layer for layer in self.layers if layer.scope.op in (None, op)]
        return frozenset().union(*(_named(layer, key, op, registry) for layer in layers for key in ("use", "prefer")))


@functools.lru_cache(maxsize=1024)
def _wishes(policy: Policy, op: str, target: Target, registry: Registry) -> Wishes:
    layers = [layer for layer in policy.layers if layer.scope.covers(op, target, registry.spaces)]
    use: dict[str, str] = {}
    prefer: dict[str, str] = {}
    for layer in layers:
        use, prefer = _named(layer, "use", op, registry), _named(layer, "prefer", op, registry)
        if use or prefer:
            break
    deny: dict[str, str] = {}
    require: dict[str, str] = {}
    for layer in reversed(layers):
        deny |= _named(layer, "deny", op, registry)
        require |= {name: layer.place("require", name) for name in layer.require}
    mode: ReferenceMode = "warn"
    source = "default"
    for layer in reversed(layers):
        if layer.reference is not None:
            mode, source = layer.reference, layer.place("reference")
    return Wishes(use, prefer, deny, require, mode, source)


def _named(layer: Layer, key: Literal["use", "prefer", "deny"], op: str, registry: Registry) -> dict[str, str]:
    """The kernels of ``op`` that the layer names under ``key``, in its order, each with its place."""
    found: dict[str, str] = {}
    for name in getattr(layer, key):
        for kernel in registry.named(name):
            if kernel.op == op:
                found.setdefault(kernel.name, layer.place(key, name))
    return found


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
