"""What a person prefers, allows or forbids, and which source decides.

Sources, strongest first: an argument of the call, context managers (the innermost first), ``set_policy`` for the
process, the environment, the policy files (the last one first; what one says of a target or an op before what it says
of all). For each op, the strongest layer that mentions it decides between ``use`` and ``prefer``; ``deny`` and
``require`` add up over all, and of lists of ``plugins`` all hold. Plans and measurements (``routes``) are heard of ops
for which no layer names a kernel.

A name that nothing here has is nothing to decide by: ``deny`` of it is fulfilled, ``prefer`` skips it (``unmet`` says
so), and ``use`` of it is an error where it is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from portakernel.claims.capability import Property, Rejection
from portakernel.config import PREFIX, Config
from portakernel.errors import ConfigError, UnknownNameError
from portakernel.registry.registry import Registry
from portakernel.text.printable import brief
from portakernel.words.arch import ArchSpace, Selector
from portakernel.words.graph_forms import GRAPH_FORMS, GraphForm
from portakernel.words.target import Target

ReferenceMode = Literal["allow", "warn", "forbid"]
Names = str | tuple[str, ...] | list[str]
# What names kernels where no policy does.
Followed = Literal["", "plan", "measured"]
Naming = Literal["use", "prefer", "deny"]
NAMING: tuple[Naming, ...] = get_args(Naming)
# Plugins that may serve, and where they are listed.
AllowList = tuple[tuple[str, ...], str]
_ANY = Selector(("any",))


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of wishes: one op or all, one vendor's archs or every target."""

    op: str | None = None
    vendor: str | None = None
    archs: Selector = _ANY

    def covers(self, op: str, target: Target, spaces: Mapping[str, ArchSpace]) -> bool:
        """Whether calls of ``op`` on ``target`` are among it."""
        if self.op not in (None, op):
            return False
        if self.vendor is None:
            return True
        # nothing is known of a vendor without a backend: its archs are those that are spelt alike
        space = spaces.get(self.vendor) or ArchSpace(self.vendor, (), {}, open_ended=True)
        return self.vendor == target.vendor and space.membership(self.archs, target.arch).inside

    def __str__(self) -> str:
        archs = f":{self.archs}" if self.archs != _ANY else ""
        return " on ".join(filter(None, (self.op, f"{self.vendor}{archs}" if self.vendor else "")))


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one wish: ``where`` is how reasons name it (``policy.yaml:7``, ``PORTAKERNEL_DENY``).

    ``name`` is empty where the whole key is meant: the reference's mode, a list of plugins.
    """

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
    # The form in which compiled graphs hold kernels, where these have it.
    compiled: GraphForm | None = None
    # The plugins that may serve, where they are listed.
    plugins: tuple[str, ...] = ()
    scope: Scope = Scope()
    # Whether it only says what a trace chose: who speaks of the call when it runs goes before it, a plan among them.
    traced: bool = False
    # Not spelled out in the name of a compiled graph: a comment added to a file must not compile it again.
    places: tuple[Place, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        wishes = [f"{key} {', '.join(names)}" for key in ("use", "prefer", "deny") if (names := getattr(self, key))]
        wishes += [f"require {', '.join(sorted(self.require))}"] if self.require else []
        wishes += [f"reference {self.reference}"] if self.reference else []
        wishes += [f"compiled {self.compiled}"] if self.compiled else []
        wishes += [f"plugins {', '.join(self.plugins)}"] if self.plugins else []
        scope = f" for {self.scope}" if str(self.scope) else ""
        return f"{self.source}{scope}: {'; '.join(wishes) or 'no wishes'}"

    def __repr__(self) -> str:
        return brief(f"<Layer {self}>")

    def place(self, key: str, name: str = "") -> str:
        """How reasons name the wish ``key`` of ``name``."""
        return next((place.where for place in self.places if (place.key, place.name) == (key, name)), self.source)

    def about(self, key: str, name: str) -> str:
        """How messages name the wish: its variable, or its place and key."""
        place = self.place(key, name)
        return place if place.startswith(PREFIX) else f"{place}: {key}"

    def check(self, registry: Registry, keys: Sequence[Naming] = NAMING) -> Layer:
        """The layer itself, every name under ``keys`` known.

        Raises:
            UnknownNameError: a name that is no kernel and no plugin.
        """
        for key in keys:
            for name in getattr(self, key):
                registry.named(name, where=self.about(key, name))
        return self


@dataclass(frozen=True, slots=True)
class Wishes:
    """A policy's wishes for one op on one target: kernels and properties by name, each with the source that named it.

    Every chosen kernel must declare the properties in ``require``, and be of a plugin on each list of ``allow``.
    ``words`` has, best first, the name by which each kernel is used or preferred: its own, or its plugin's. Who names
    them is ``followed``, where that is no policy. ``reasons`` say what speaks for kernels that a measurement prefers;
    ``locked`` names a plan that has to cover every call, and does not cover this one: ``uncovered`` says what it has
    instead.
    """

    use: Mapping[str, str]
    prefer: Mapping[str, str]
    words: Mapping[str, str]
    deny: Mapping[str, str]
    require: Mapping[str, str]
    reference: ReferenceMode
    reference_source: str
    compiled: GraphForm | None = None
    compiled_source: str = ""
    allow: tuple[AllowList, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    followed: Followed = ""
    locked: str = ""
    uncovered: str = ""

    def rank(self, kernel: str) -> int:
        """The place of ``kernel`` in the order of names: one word's kernels share theirs, those not named come last."""
        named = list(dict.fromkeys(self.words.values()))
        return named.index(self.words[kernel]) if kernel in self.words else len(named)

    def spelled(self, kernels: Iterable[str]) -> list[str]:
        """The words that stand for ``kernels``, each once."""
        return list(dict.fromkeys(self.words[kernel] for kernel in kernels))

    def sourced(self, rejection: Rejection) -> Rejection:
        """``rejection``, with the source that required the property where it is for lack of one."""
        source = self.require.get(rejection.parameter or "")
        return replace(rejection, text=f"{rejection.text} (required by {source})") if source else rejection


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """Layers, strongest first. Interned: equal layers are one object, which serves as its own key."""

    layers: tuple[Layer, ...]

    def __repr__(self) -> str:
        wishing = [str(layer) for layer in self.layers if layer != Layer(layer.source)]
        return brief(f"<Policy: {' | '.join(wishing) or 'no wishes'}>")

    def covering(self, op: str, target: Target, registry: Registry) -> list[Layer]:
        """The layers that speak of ``op`` on ``target``, strongest first."""
        return [layer for layer in self.layers if layer.scope.covers(op, target, registry.spaces)]

    def wishes(self, op: str, target: Target, registry: Registry) -> Wishes:
        """This policy's wishes for ``op`` on ``target``.

        Raises:
            UnknownNameError: it uses, on this target, what is not here.
        """
        return _wishes(self, op, target, registry)

    def named(self, op: str, registry: Registry) -> frozenset[str]:
        """The kernels of ``op`` that some layer uses or prefers, on whatever target."""
        layers = [layer for layer in self.layers if layer.scope.op in (None, op)]
        return frozenset().union(*(_named(layer, key, op, registry) for layer in layers for key in ("use", "prefer")))


@functools.lru_cache(maxsize=1024)
def _wishes(policy: Policy, op: str, target: Target, registry: Registry) -> Wishes:
    layers = policy.covering(op, target, registry)
    use: dict[str, str] = {}
    prefer: dict[str, str] = {}
    words: dict[str, str] = {}
    for layer in layers:
        # what a stronger layer has decided, a name that is missing in a weaker one leaves as it is
        layer.check(registry, ("use",))
        use, prefer = _named(layer, "use", op, registry), _named(layer, "prefer", op, registry)
        for word in (*layer.use, *layer.prefer):
            for kernel in registry.find(word):
                words.setdefault(kernel.name, word)
        if use or prefer:
            break
    words = {name: words[name] for name in (*use, *prefer)}
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
    speaking = next((layer for layer in layers if layer.compiled is not None), None)
    form, form_source = (speaking.compiled, speaking.place("compiled")) if speaking is not None else (None, "")
    allow = tuple((layer.plugins, layer.place("plugins")) for layer in layers if layer.plugins)
    return Wishes(use, prefer, words, deny, require, mode, source, form, form_source, allow)


def _named(layer: Layer, key: Naming, op: str, registry: Registry) -> dict[str, str]:
    """The kernels of ``op`` that the layer names under ``key``, in its order, each with its place."""
    places: dict[str, str] = {}
    for name in getattr(layer, key):
        for kernel in registry.find(name):
            if kernel.op == op:
                places.setdefault(kernel.name, layer.place(key, name))
    return places


@functools.lru_cache(maxsize=4096)
def intern_policy(layers: tuple[Layer, ...]) -> Policy:
    """The one policy with these layers."""
    return Policy(layers)


def environment_layer(config: Config) -> Layer:
    """The layer that the ``PORTAKERNEL_*`` variables make; their names are its places."""
    reference: ReferenceMode | None = next((mode for mode in get_args(ReferenceMode) if mode == config.reference), None)
    places = [
        Place(key, name, f"{PREFIX}{key.upper()}") for key in (*NAMING, "require") for name in getattr(config, key)
    ]
    form: GraphForm | None = next((form for form in GRAPH_FORMS if form == config.compiled), None)
    keys = ("reference", "compiled", "plugins")
    places += [Place(key, "", f"{PREFIX}{key.upper()}") for key in keys if getattr(config, key)]
    return Layer(
        "environment", config.use, config.prefer, config.deny, frozenset(config.require), reference, form,
        config.plugins, places=tuple(places),
    )  # fmt: skip


def make_layer(
    source: str,
    use: Names = (),
    prefer: Names = (),
    deny: Names = (),
    require: Names = (),
    reference: ReferenceMode | None = None,
    compiled: GraphForm | None = None,
) -> Layer:
    """A layer from a caller's arguments; one name may be given as a plain string.

    Raises:
        UnknownNameError: ``require``, ``reference`` or ``compiled`` is not one of the accepted words.
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
    if compiled is not None and compiled not in GRAPH_FORMS:
        raise UnknownNameError("form in compiled graphs", str(compiled), GRAPH_FORMS, where=source)
    return Layer(
        source, names("use", use), names("prefer", prefer), names("deny", deny), frozenset(required), reference,
        compiled,
    )  # fmt: skip
