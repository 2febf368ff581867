"""A kernel as its manifest describes it: claims, priority, entry points that are imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from portakernel.claims.capability import Capability, Limit, Saves
from portakernel.claims.request import Phase, Request
from portakernel.contracts import contracts, shipped
from portakernel.errors import PortakernelError, nearest
from portakernel.registry.plugin_manager import Package
from portakernel.text.printable import brief
from portakernel.words.graph_forms import GraphForm
from portakernel.words.target import Target

# Of a priority so many rules are shown in a table.
_MOST_SHOWN = 4


@dataclass(frozen=True, slots=True)
class PriorityRule:
    """A number, the bounds within which it holds, and the targets for which it does; None is every target.

    ``values`` are those that keyword arguments have where it holds, ``features`` those that are asked for, ``without``
    those that are not, ``phases`` what is then asked for; none is any.
    """

    number: int
    limits: tuple[Limit, ...] = ()
    targets: frozenset[Target] | None = None
    values: tuple[tuple[str, tuple[bool | str, ...]], ...] = ()
    phases: tuple[Phase, ...] = ()
    features: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return brief(f"<PriorityRule {self}>")

    def __str__(self) -> str:
        on = f" on {', '.join(sorted(map(str, self.targets))) or 'no target'}" if self.targets is not None else ""
        return f"{self.number}{on}" + (f" where {' and '.join(found)}" if (found := self.conditions()) else "")

    def conditions(self) -> list[str]:
        """What a call has where it holds, in words."""
        values = (f"{name} is {' or '.join(map(repr, accepted))}" for name, accepted in self.values)
        phases = [f"the phase is {' or '.join(self.phases)}"] if self.phases else []
        features = (f"{name} is asked for" for name in self.features)
        without = (f"{name} is not asked for" for name in self.without)
        return [*map(str, self.limits), *values, *features, *without, *phases]


@dataclass(frozen=True, slots=True)
class Priority:
    """The number that orders eligible kernels when nothing stronger speaks; may depend on target and dimensions."""

    rules: tuple[PriorityRule, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.rules))

    def __repr__(self) -> str:
        return brief(f"<Priority {self}>")

    @property
    def summary(self) -> str:
        """All rules as text while they are few, else what they range over."""
        if len(self.rules) <= _MOST_SHOWN:
            return str(self)
        lowest = min(rule.number for rule in self.rules)
        return f"{lowest} to {self.highest}, by {len(self.rules)} rules of its manifest"

    @property
    def highest(self) -> int:
        """The greatest number of its rules, by which lists of kernels are ordered."""
        return max((rule.number for rule in self.rules), default=0)

    def of(self, request: Request) -> int:
        """The priority for ``request``; a rule over an unknown dimension does not apply."""
        for rule in self.rules:
            if rule.targets is not None and request.target not in rule.targets:
                continue
            if rule.phases and request.phase not in rule.phases:
                continue
            if any(request.values.get(name) not in accepted for name, accepted in rule.values):
                continue
            if not request.features.keys() >= set(rule.features) or not request.features.keys().isdisjoint(
                rule.without
            ):
                continue
            values = [(limit, request.value(limit.parameter)) for limit in rule.limits]
            # a symbol of a traced graph is unknown: what steers speed alone must not guard a graph
            if all(type(value) is int and limit.admits(value) for limit, value in values):
                return rule.number
        return 0

    def limits(self) -> frozenset[Limit]:
        """Every bound that the rules test."""
        return frozenset(limit for rule in self.rules for limit in rule.limits)


@dataclass(frozen=True, slots=True)
class InGraphs:
    """How compiled graphs hold a kernel, and how early it goes there: without a number of its own, as elsewhere."""

    form: GraphForm = "call"
    priority: Priority | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A plugin's own test of a request; gets what ``reads`` names, by keyword, dots as underscores."""

    entry: str
    reads: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One implementation of one op, shipped by a plugin. Compared by identity; ``name`` is unique in a registry."""

    name: str
    op: str
    plugin: str
    package: Package | None
    entry: str
    variants: tuple[tuple[str, Capability], ...]
    priority: Priority
    in_graphs: InGraphs = InGraphs()
    backward: str | None = None
    saves: Saves = "none"
    check: Check | None = None
    build: str | None = None
    built: str | None = None
    disabled: str | None = None
    requires: Mapping[str, str] = field(default_factory=dict[str, str])
    distributions: Mapping[str, str] = field(default_factory=dict[str, str])
    # Of the required modules those that nobody has to have.
    optional: frozenset[str] = frozenset()
    ready: str | None = None
    evidence: Mapping[str, str] = field(default_factory=dict[str, str])

    def __repr__(self) -> str:
        vendors = dict.fromkeys(vendor for _, capability in self.variants for vendor in capability.targets)
        return brief(f"<Kernel {self.name} of {self.op} for {', '.join(vendors)}>")

    @property
    def first_party(self) -> bool:
        """Whether it ships with portakernel itself, or with its op."""
        if self.package is None or self.package.first_party:
            return True
        return self.op in shipped() and shipped()[self.op].plugin == self.plugin

    @property
    def is_reference(self) -> bool:
        """Whether it is the core's own formula."""
        return self.package is None

    @property
    def is_paired(self) -> bool:
        """Whether its forward and backward are one choice: it reads what it alone saves, or PyTorch records it."""
        return self.saves in ("own", "autograd")

    @property
    def needs_build(self) -> bool:
        """Whether calls wait for somebody who builds it: it serves none before."""
        return self.build is not None or self.built is not None

    @property
    def features(self) -> frozenset[str]:
        """Every feature that some variant serves."""
        return frozenset().union(*(capability.features for _, capability in self.variants))

    def priority_in(self, form: GraphForm | None, request: Request) -> int:
        """The priority for ``request``, to a compiled graph that would hold it in ``form``."""
        own = self.in_graphs.priority if form == self.in_graphs.form else None
        return (own or self.priority).of(request)

    def serves(self, phase: Phase) -> bool:
        """Whether it has a part in ``phase`` of its op, which the op may not have at all."""
        contract = contracts()[self.op]
        if phase is Phase.INFERENCE:
            return True
        if contract.gradient == "none" or (phase is Phase.BACKWARD and contract.gradient == "identity"):
            return False
        if phase is Phase.TRAINING:
            return self.saves != "none" or not contract.at().saved  # in calls with the defaults
        if phase is Phase.BACKWARD:
            return self.backward is not None or self.saves == "autograd"
        return any(capability.forward_ad for _, capability in self.variants)

    def limits(self) -> frozenset[Limit]:
        """Every bound that decides whether, or how early, this kernel is chosen."""
        claimed = frozenset(limit for _, capability in self.variants for limit in capability.limits)
        return claimed | self.priority.limits()

    def reads(self) -> frozenset[str]:
        """The parameters whose values the claims name, or the priority."""
        claimed = frozenset(name for _, capability in self.variants for name in capability.values)
        return claimed.union(name for rule in self.priority.rules for name, _ in rule.values)


def load_entry(entry: str) -> Callable[..., Any]:
    """The function that ``module:function`` names, imported now.

    Raises:
        PortakernelError: the module has no such function. Whatever the import raises propagates.
    """
    module_name, _, function_name = entry.partition(":")
    module = importlib.import_module(module_name)
    function = getattr(module, function_name, None)
    public = [name for name, member in vars(module).items() if callable(member) and not name.startswith("_")]
    if not callable(function):
        raise PortakernelError(f"{module_name} has no function {function_name!r}; {nearest(function_name, public)}")
    loaded: Callable[..., Any] = function
    return loaded
