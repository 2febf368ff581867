"""The kernels that a manifest or a hook lists, checked against the ops' contracts and the vendors' archs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from portakernel.claims.capability import Capability, Saves
from portakernel.claims.request import Phase
from portakernel.contract import Contract
from portakernel.contracts import contracts
from portakernel.errors import ManifestError, nearest
from portakernel.manifest.loading import Loaded
from portakernel.manifest.models import Claim, KernelEntry, PluginManifest, PriorityRuleModel, TargetTerms, terms
from portakernel.manifest.yaml_file import KeyPath
from portakernel.registry.kernel import Check, InGraphs, Kernel, Priority, PriorityRule
from portakernel.registry.plugin_manager import Package
from portakernel.words.arch import ArchSpace, Selector
from portakernel.words.dtypes import DTYPES
from portakernel.words.target import Target


@dataclass(frozen=True, slots=True)
class Judged:
    """A kernel of a manifest, and the keys of its entry with which something is wrong: of these it says too little."""

    kernel: Kernel
    faulty: frozenset[str]


def plugin_kernels(
    package: Package, loaded: Loaded[PluginManifest], spaces: Mapping[str, ArchSpace]
) -> tuple[Kernel, ...]:
    """The kernels of a manifest, without those for ops that nobody here has (``resting_entries``).

    Raises:
        ManifestError: something in it does not fit; holds every problem found.
    """
    return _KernelBuilder(package, loaded, spaces, "kernels").build(loaded.manifest.kernels, resting=True)


def resting_entries(loaded: Loaded[PluginManifest]) -> Iterator[str]:
    """A text for each entry for an op that nobody here has: it rests, and until when."""
    for i, entry in enumerate(loaded.manifest.kernels):
        if entry.op not in contracts():
            text = f"no op here is called {entry.op!r}; {nearest(entry.op, contracts())}. The entry rests: upgrade"
            yield loaded.problem(("kernels", i, "op"), f"{text} portakernel, or install what ships the op")


def judged_kernels(
    package: Package, loaded: Loaded[PluginManifest], spaces: Mapping[str, ArchSpace], refused: Mapping[str, str]
) -> tuple[tuple[Judged | None, ...], tuple[str, ...]]:
    """The kernels of a manifest, None for those of ops that are not known, and every problem found.

    ``refused`` has the manifest's own ops that are at fault, each with its place; one whose name cannot be told has an
    empty one. That their kernels' op is not known is no second problem.
    """
    builder = _KernelBuilder(package, loaded, spaces, "kernels", refused)
    kernels = builder.judge(loaded.manifest.kernels)
    judged = (None if kernel is None else Judged(kernel, builder.faulty_keys(i)) for i, kernel in enumerate(kernels))
    return tuple(judged), tuple(dict.fromkeys(builder.problems))


def listed_kernels(
    package: Package, loaded: Loaded[PluginManifest], spaces: Mapping[str, ArchSpace], entries: Sequence[KernelEntry]
) -> tuple[Kernel, ...]:
    """The kernels that a plugin's ``portakernel_kernels`` hook returned, checked alike."""
    return _KernelBuilder(package, loaded, spaces, "portakernel_kernels").build(entries)


class _KernelBuilder:
    """Turns entries into kernels; ``base`` is the key under which they stand."""

    def __init__(
        self,
        package: Package,
        loaded: Loaded[PluginManifest],
        spaces: Mapping[str, ArchSpace],
        base: str,
        refused: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.package, self.loaded, self.spaces, self.base = package, loaded, spaces, base
        self.refused = refused
        self.problems: list[str] = []
        self._faulty: set[tuple[int, KeyPath]] = set()
        self._now = -1  # the entry that is being judged

    def build(self, entries: Sequence[KernelEntry], *, resting: bool = False) -> tuple[Kernel, ...]:
        kernels = self.judge(entries, resting=resting)
        if self.problems:
            # what is wrong under `defaults` is wrong for each kernel
            raise ManifestError(self.loaded.document.path, list(dict.fromkeys(self.problems)))
        return tuple(kernel for kernel in kernels if kernel is not None)

    def judge(self, entries: Sequence[KernelEntry], *, resting: bool = False) -> list[Kernel | None]:
        """The kernels; where entries for ops that nobody has are ``resting``, nothing of them is a problem."""
        kernels: list[Kernel | None] = []
        for self._now, entry in enumerate(entries):
            rests = resting and entry.op not in contracts()
            kernels.append(None if rests else self.kernel(entry, (self.base, self._now)))
        self._now = -1
        names: dict[str, int] = {}
        for i, kernel in enumerate(kernels):
            if kernel is not None and names.setdefault(kernel.name, i) != i:
                self.problem((self.base, i), f"is a second kernel named {kernel.name!r}; give it a `name` of its own")
        if self.loaded.manifest.ready is not None:
            self.check_entry(self.loaded.manifest.ready, ("ready",))
        for name, mode in self.loaded.manifest.modes.items():
            self.check_entry(mode.context, ("modes", name, "context"))
        if self.loaded.manifest.offline is not None:
            self.check_entry(self.loaded.manifest.offline, ("offline",))
        if self.loaded.manifest.units is not None:
            self.check_entry(self.loaded.manifest.units, ("units",))
        return kernels

    def problem(self, path: KeyPath, text: str) -> None:
        self.problems.append(self.loaded.problem(path, text))
        self._faulty.add((self._now, path))

    def faulty_keys(self, entry: int) -> frozenset[str]:
        """The keys of an entry, its variants and the defaults that are wrong, or were taken out for being wrong."""
        places = [path for judged, path in self._faulty if judged == entry]
        keys = set[str]()
        for path in (*places, *self.loaded.taken_out):
            if path[:1] == ("defaults",):
                keys.update(map(str, path[1:2]))
            elif path[:2] == (self.base, entry):
                inner = path[4:5] if path[2:3] == ("variants",) else path[2:3]
                keys.update(map(str, inner or ("entry",)))
        return frozenset(keys)

    def check_entry(self, entry: str, path: KeyPath) -> None:
        module = entry.partition(":")[0]
        if module != self.package.module and not module.startswith(f"{self.package.module}."):
            self.problem(path, f"{entry!r} is outside the plugin's own package {self.package.module!r}")

    def kernel(self, entry: KernelEntry, path: KeyPath) -> Kernel | None:
        contract = contracts().get(entry.op) if entry.op not in self.refused else None
        if contract is None and entry.op not in self.refused:
            places = " and ".join(self.refused.values())
            own = f"; mend {places} first, which may be it" if places else ""
            self.problem((*path, "op"), f"unknown op {entry.op!r}; {nearest(entry.op, contracts())}{own}")
        for key in ("entry", "backward", "build", "built"):
            if (value := getattr(entry, key)) is not None:
                self.check_entry(value, (*path, key))
        if entry.check is not None:
            self.check_entry(entry.check.entry, (*path, "check", "entry"))
        layers: list[tuple[Claim, KeyPath]] = [(self.loaded.manifest.defaults, ("defaults",)), (entry, path)]
        if contract is None:
            inner = [(variant, (*path, "variants", i)) for i, variant in enumerate(entry.variants)]
            for claim, place in (*layers, *inner):
                self.check_words(claim, place)
            return None
        if entry.check is not None:
            known = (*contract.limitable(), *(p.name for p in contract.parameters if not p.optional))
            self.check_known("dimension, fact or parameter", entry.check.reads, known, (*path, "check", "reads"))
        if entry.backward is not None and contract.gradient != "kernel":
            self.problem(
                (*path, "backward"), f"op {entry.op} has no backward kernel (its gradient is: {contract.gradient})"
            )
        saves: Saves = entry.saves or ("contract" if entry.backward and contract.saved else "none")
        variants = [
            (
                variant.name or f"variant {i + 1}",
                self.capability(contract, [*layers, (variant, (*path, "variants", i))], entry, saves),
            )
            for i, variant in enumerate(entry.variants)
        ] or [("", self.capability(contract, layers, entry, saves))]
        required = [self.loaded.manifest.requires, *([entry.requires] if entry.requires else [])]
        return Kernel(
            name=f"{self.package.name}.{entry.name or entry.op}",
            op=entry.op,
            plugin=self.package.name,
            package=self.package,
            entry=entry.entry,
            variants=tuple(variants),
            priority=self.priority(entry.priority, contract, (*path, "priority")),
            in_graphs=self.in_graphs(entry, contract, path),
            backward=entry.backward,
            saves=saves,
            check=Check(entry.check.entry, tuple(entry.check.reads)) if entry.check else None,
            build=entry.build,
            built=entry.built,
            disabled=entry.disabled,
            requires={module: needs for requires in required for module, needs in requires.modules.items()},
            distributions={module: name for requires in required for module, name in requires.distributions.items()},
            optional=frozenset(module for requires in required if requires.optional for module in requires.modules),
            ready=self.loaded.manifest.ready,
            evidence=entry.evidence,
        )

    def capability(
        self, contract: Contract, layers: Sequence[tuple[Claim, KeyPath]], entry: KernelEntry, saves: Saves
    ) -> Capability:
        """The claim that the layers make together, the last one that has a key deciding it."""
        targets, targets_path = _merged(layers, "targets", {})
        dtypes, dtypes_path = _merged(layers, "dtypes", {})
        formats, formats_path = _merged(layers, "formats", {})
        limits, limits_path = _merged(layers, "limits", {})
        features, features_path = _merged(layers, "features", [])
        values, values_path = _merged(layers, "values", {})
        properties, _ = _merged(layers, "properties", {})
        prebuilt, _ = _merged(layers, "prebuilt", False)
        self.check_dtypes(contract, dtypes, features, dtypes_path)
        self.check_formats(contract, formats, formats_path)
        self.check_known("dimension or layout fact", limits, contract.limitable(), limits_path)
        self.check_known("feature", features, [feature.name for feature in contract.features], features_path)
        self.check_values(contract, values, values_path)
        return Capability(
            targets=self.targets(targets, targets_path),
            dtypes={name: tuple(accepted) for name, accepted in dtypes.items()},
            formats={name: tuple(accepted) for name, accepted in formats.items()},
            limits=tuple(limit.limit(parameter) for parameter, limit in limits.items()),
            features=frozenset(features),
            values={name: tuple(accepted) for name, accepted in values.items()},
            properties=frozenset(name for name, holds in properties.items() if holds),
            prebuilt=prebuilt,
            saves=saves,
            has_backward=entry.backward is not None,
            forward_ad=entry.forward_ad,
        )

    def check_dtypes(
        self, contract: Contract, claimed: Mapping[str, Sequence[str]], features: Sequence[str], path: KeyPath
    ) -> None:
        """Dtypes are claimed of every tensor, but for features that are not, and of no other argument."""
        unlisted = {feature.name for feature in contract.features if feature.name not in features}
        for name in contract.typed:
            if name not in claimed and name not in unlisted:
                self.problem(path, f"lacks {name}: {', '.join(contract.typed)} each need their dtypes")
        self.check_known("tensor argument", claimed, contract.typed, path)
        for name, accepted in claimed.items():
            self.check_known("dtype", accepted, [*DTYPES, *contract.typed], (*path, name))
            self.check_accepted(contract, name, accepted, (*path, name))

    def check_formats(self, contract: Contract, claimed: Mapping[str, Sequence[str]], path: KeyPath) -> None:
        """Formats are claimed of every tensor that has scales, and of no other."""
        for name in contract.formats:
            if name not in claimed:
                self.problem(path, f"lacks {name}: {', '.join(contract.formats)} each need their scale formats")
        self.check_known("tensor with a scale format", claimed, contract.formats, path)

    def check_words(self, claim: Claim, path: KeyPath) -> None:
        """Judges what can be judged of a claim for an op that is not known."""
        if claim.targets is not None:
            self.targets(claim.targets, (*path, "targets"))
        arguments = {name for contract in contracts().values() for name in contract.typed}
        for name, accepted in (claim.dtypes or {}).items():
            for i, dtype in enumerate(accepted):
                if dtype not in DTYPES and dtype not in arguments:  # the name of one: as that argument
                    self.problem((*path, "dtypes", name, i), f"unknown dtype {dtype!r}; {nearest(dtype, DTYPES)}")

    def check_accepted(self, contract: Contract, name: str, claimed: Sequence[str], path: KeyPath) -> None:
        """A dtype that the op refuses before any kernel is asked cannot be claimed."""
        if name not in contract.typed:
            return
        accepted = contract.possible_dtypes(name)
        for i, dtype in enumerate(claimed):
            if dtype in DTYPES and dtype not in accepted:
                self.problem((*path, i), f"op {contract.op} takes {', '.join(accepted)} for {name}, not {dtype}")

    def check_values(self, contract: Contract, claimed: Mapping[str, Sequence[object]], path: KeyPath) -> None:
        """Values are claimed of parameters that have few, and only those that the op takes."""
        valued = {p.name: p for p in contract.parameters if p.kind in ("bool", "text")}
        self.check_known("parameter with values to choose from", claimed, tuple(valued), path)
        for name, parameter in valued.items():
            for value in (value for value in claimed.get(name, ()) if value not in parameter.possible()):
                text = f"op {contract.op} takes {parameter.accepted()} for {name}, not {value!r}"
                self.problem((*path, name), text)

    def targets(self, claimed: Mapping[str, TargetTerms], path: KeyPath) -> dict[str, Selector]:
        if not claimed:
            self.problem(path[:-1], "claims no targets; add `targets:` to it or to `defaults:`")
        selectors = dict[str, Selector]()
        for vendor, value in claimed.items():
            # a vendor that no installed backend knows is no error: its backend may be installed later
            space = self.spaces.get(vendor) or ArchSpace(vendor, (), {}, open_ended=True)
            placed = list(terms(value))
            wrong = [((*path, vendor, *place), error) for place, term in placed for error in space.faults(term)]
            for place, error in wrong:
                self.problem(place, str(error))
            if not wrong:
                include = tuple(term for place, term in placed if place[:1] != ("not",))
                selectors[vendor] = Selector(include, tuple(term for place, term in placed if place[:1] == ("not",)))
        return selectors

    def listed(self, selectors: Mapping[str, Selector]) -> frozenset[Target]:
        """The listed targets that the selectors hold: of a later arch nothing was measured."""
        spaces = [(self.spaces[vendor], selector) for vendor, selector in selectors.items() if vendor in self.spaces]
        return frozenset(
            Target(space.vendor, arch)
            for space, selector in spaces
            for arch in space.archs
            if space.membership(selector, arch).inside
        )

    def in_graphs(self, entry: KernelEntry, contract: Contract, path: KeyPath) -> InGraphs:
        given = entry.compiled.priority
        own = None if given is None else self.priority(given, contract, (*path, "compiled", "priority"))
        return InGraphs(entry.compiled.form, own)

    def priority(self, given: int | list[PriorityRuleModel] | None, contract: Contract, path: KeyPath) -> Priority:
        value = given if given is not None else self.loaded.manifest.defaults.priority
        if value is None or isinstance(value, int):
            return Priority((PriorityRule(value if value is not None else 0),))
        rules = []
        for i, rule in enumerate(value):
            self.check_known("dimension", rule.when, contract.dims, (*path, i, "when"))
            self.check_values(contract, rule.values, (*path, i, "values"))
            known = [feature.name for feature in contract.features]
            self.check_known("feature", rule.features, known, (*path, i, "features"))
            self.check_known("feature", rule.without, known, (*path, i, "without"))
            conditions = (rule.when, rule.values, rule.features, rule.without, rule.phases, rule.targets)
            if not any(conditions) and i + 1 < len(value):
                keys = "`when`, `values`, `features`, `without`, `phases` or `targets`"
                text = f"has no {keys}, so that the rules after it never apply"
                self.problem((*path, i), text)
            limits = tuple(limit.limit(name) for name, limit in rule.when.items())
            selected = self.targets(rule.targets, (*path, i, "targets")) if rule.targets else None
            values = tuple((name, tuple(accepted)) for name, accepted in rule.values.items())
            listed = None if selected is None else self.listed(selected)
            phases = tuple(map(Phase, rule.phases))
            asked = tuple(rule.features), tuple(rule.without)
            rules.append(PriorityRule(rule.priority, limits, listed, values, phases, *asked))
        return Priority(tuple(rules))

    def check_known(self, kind: str, names: Iterator[str] | Any, known: Sequence[str], path: KeyPath) -> None:
        for i, name in enumerate(names):
            if name not in known:
                here = (*path, i) if isinstance(names, (list, tuple)) else (*path, name)
                self.problem(here, f"unknown {kind} {name!r}; {nearest(name, known)}")


def _merged(layers: Sequence[tuple[Claim, KeyPath]], key: str, default: Any) -> tuple[Any, KeyPath]:
    """The value that the last layer with the key has under it, and where that stands."""
    for layer, path in reversed(layers):
        if (value := getattr(layer, key)) is not None:
            return value, (*path, key)
    return default, (*layers[-1][1], key)
