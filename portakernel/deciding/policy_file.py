"""Policy files: what a deployment prefers, allows or forbids, read from YAML and turned into layers of a policy.

Files are read before the registry is made, because the plugins that they list are the only ones to be imported, and
their names are looked up after that, because they are the registry's.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from portakernel.contracts import contracts
from portakernel.deciding.kernel_argument import check_ships
from portakernel.deciding.policies import NAMING, Layer, Place, Scope
from portakernel.deciding.policy_document import PolicyDocument, Section, TargetSection
from portakernel.deciding.policy_targets import read_target
from portakernel.deciding.shadow_wishes import KIT, NEEDS_KIT, ShadowWishes
from portakernel.deciding.unmet import known_plugins
from portakernel.errors import ArgumentValueError, ManifestError, PolicyFileError, UnknownNameError
from portakernel.manifest.loading import Loaded, load_manifest, load_what_is_known
from portakernel.manifest.yaml_file import KeyPath
from portakernel.registry.registry import Registry

FILE_NAME = "policy.yaml"


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A policy file as read: where it is, who named it, and its wishes, strongest first.

    ``doubts``: what it says of ops or hardware that nothing here knows; it may be written for a newer portakernel.
    ``shadow`` is what it says of shadow verification, if anything.
    """

    path: Path
    named_by: str
    layers: tuple[Layer, ...]
    doubts: tuple[str, ...] = ()
    shadow: ShadowWishes | None = None

    def sentences(self) -> tuple[str, ...]:
        """Every wish with its place, strongest first: ``rms_norm on amd: use triton (policy.yaml:7)``."""
        texts = []
        for layer in self.layers:
            about = f"{layer.scope}: " if str(layer.scope) else ""
            for place in layer.places:
                whole = ", ".join(layer.plugins) if place.key == "plugins" else getattr(layer, place.key)
                wish = f"{place.key} {place.name}" if place.name else f"{place.key}: {whole}"
                texts.append(f"{about}{wish} ({place.where})")
        return tuple(texts)


@dataclass(frozen=True, slots=True)
class Draft:
    """A policy file whose form is read, and whose names are not: ``label`` is how reasons name it."""

    path: str
    label: str
    loaded: Loaded[PolicyDocument] | None
    problems: tuple[str, ...]

    @property
    def plugins(self) -> tuple[str, ...]:
        """The plugins that it allows; none where it lists none."""
        return tuple(self.loaded.manifest.plugins) if self.loaded is not None else ()


def read_drafts(paths: Sequence[str | Path]) -> tuple[Draft, ...]:
    """The policy files at ``paths``, whatever is wrong with them."""
    labels = _labels([Path(path) for path in paths])
    return tuple(_draft(path, label) for path, label in zip(paths, labels, strict=True))


def names_are_strict(drafts: Sequence[Draft]) -> bool:
    """Whether a name that nothing here has is an error: the last file that speaks of it decides."""
    manifests = [draft.loaded.manifest for draft in drafts if draft.loaded is not None]
    said = [manifest.strict_names for manifest in manifests if "strict_names" in manifest.model_fields_set]
    return said[-1] if said else False


def resolve_drafts(
    drafts: Sequence[Draft], registry: Registry, *, named_by: str = "", strict: bool | None = None
) -> tuple[PolicyFile, ...]:
    """The files, their names held against ``registry``; ``named_by`` is who asked for them.

    ``strict``: every name has to be known, by default where ``strict_names`` says so. Otherwise only those under
    ``use``, outside ``targets``, have to be.

    Raises:
        PolicyFileError: one cannot be accepted; holds every problem that was found in any.
    """
    strict = names_are_strict(drafts) if strict is None else strict
    files, problems, wrong = list[PolicyFile](), list[str](), list[str]()
    for draft in drafts:
        layers, doubts, of_names = tuple[Layer, ...](), tuple[str, ...](), list[str]()
        shadow: ShadowWishes | None = None
        if draft.loaded is not None:
            reader = _LayerReader(draft.loaded, draft.label, registry, strict=strict)
            layers, shadow = tuple(reader.layers()), reader.shadow()
            of_names, doubts = reader.problems(), reader.doubts()
        if draft.problems or of_names:
            problems += [*draft.problems, *of_names]
            wrong.append(draft.path)
        files.append(PolicyFile(Path(draft.path).expanduser().absolute(), named_by, layers, doubts, shadow))
    if problems:
        raise PolicyFileError(os.pathsep.join(wrong), problems, named_by=named_by)
    return tuple(files)


def load_policy_file(
    path: str | Path, registry: Registry, *, named_by: str = "", strict: bool | None = None
) -> PolicyFile:
    """The policy file at ``path`` (``resolve_drafts``).

    Raises:
        PolicyFileError: it cannot be accepted; holds every problem found.
    """
    return resolve_drafts(read_drafts([path]), registry, named_by=named_by, strict=strict)[0]


def _draft(path: str | Path, label: str) -> Draft:
    file = Path(path).expanduser()
    try:
        return Draft(str(path), label, load_manifest(PolicyDocument, file, strict=True), ())
    except ManifestError as error:
        return Draft(str(path), label, _readable(file), error.problems)


def _labels(paths: Sequence[Path]) -> list[str]:
    """The files' names, with as many of their folders as it takes to tell them apart."""
    labels = [path.name for path in paths]
    for depth in range(2, 1 + max((len(path.parts) for path in paths), default=0)):
        if len(set(labels)) == len(set(paths)):
            break
        again = {label for label in labels if labels.count(label) > 1}
        labels = [
            str(Path(*path.parts[-depth:])) if label in again else label
            for path, label in zip(paths, labels, strict=True)
        ]
    return labels


def _readable(file: Path) -> Loaded[PolicyDocument] | None:
    """The file without its unknown keys, so that one misspelling does not hide what else is wrong."""
    try:
        return load_what_is_known(PolicyDocument, file)
    except ManifestError:
        return None


class _LayerReader:
    """Turns a document into layers; collects what is wrong, or in doubt, with the names in it."""

    def __init__(self, loaded: Loaded[PolicyDocument], label: str, registry: Registry, *, strict: bool) -> None:
        self._loaded = loaded
        self._registry = registry
        self._file = label
        self._strict = strict
        self._problems: list[tuple[KeyPath, str]] = []
        self._doubts: list[tuple[KeyPath, str]] = []

    def problems(self) -> list[str]:
        """The problems, from the top of the file down."""
        return [self._loaded.problem(path, text) for path, text in self._sorted(self._problems)]

    def doubts(self) -> tuple[str, ...]:
        """The doubts, about what is not known here, from the top of the file down."""
        return tuple(f"{self._where(path)}: {text}" for path, text in self._sorted(self._doubts))

    def _sorted(self, problems: list[tuple[KeyPath, str]]) -> list[tuple[KeyPath, str]]:
        return sorted(problems, key=lambda problem: self._loaded.document.line(problem[0]))

    def layers(self) -> Iterator[Layer]:
        """The file's layers, strongest first: single targets before all, and in each single ops before all."""
        document = self._loaded.manifest
        for text, section in document.targets.items():
            path = ("targets", text)
            yield from self._section(path, section, self._scope(path, text))
        yield from self._section((), document, Scope())

    def shadow(self) -> ShadowWishes | None:
        """What the file says of shadow verification; a relative folder is beside the file."""
        section, path = self._loaded.manifest.shadow, ("shadow",)
        if section is None:
            return None
        if importlib.util.find_spec(KIT) is None:
            self._problem(path, NEEDS_KIT)
        folder = section.folder and os.path.join(os.path.dirname(self._loaded.document.path), section.folder)
        return ShadowWishes(section.every, section.bytes, section.share, section.on_mismatch, folder, self._where(path))

    def _section(self, path: KeyPath, section: TargetSection, scope: Scope) -> Iterator[Layer]:
        for op, wishes in section.ops.items():
            here = (*path, "ops", op)
            if op not in contracts():
                self._unknown(here, UnknownNameError("op", op, contracts()), "Its wishes are left out")
                continue
            yield from self._layer(here, wishes, Scope(op, scope.vendor, scope.archs))
        yield from self._layer(path, section, scope)

    def _layer(self, path: KeyPath, section: Section, scope: Scope) -> Iterator[Layer]:
        places: list[Place] = []
        for key in (*NAMING, "require"):
            for i, name in enumerate(getattr(section, key)):
                here = self._item((*path, key), i)
                places.append(Place(key, name, self._where(here)))
                # what is said of targets is asked for where they are
                if key in NAMING and (self._strict or (key == "use" and scope.vendor is None)):
                    self._check_name(here, name, scope.op)
        words = (key for key in ("reference", "compiled") if getattr(section, key) is not None)
        places += [Place(key, "", self._where((*path, key))) for key in words]
        plugins = tuple(section.plugins) if isinstance(section, PolicyDocument) else ()
        if plugins:
            places.append(Place("plugins", "", self._where((*path, "plugins"))))
        if self._strict:
            self._check_plugins((*path, "plugins"), plugins)
        if places:
            use, prefer, deny = tuple(section.use), tuple(section.prefer), tuple(section.deny)
            require = frozenset(section.require)
            yield Layer(
                self._file, use, prefer, deny, require, section.reference, section.compiled, plugins,
                scope=scope, places=tuple(places),
            )  # fmt: skip

    def _scope(self, path: KeyPath, text: str) -> Scope:
        try:
            scope, unknown, otherwise = read_target(text, self._registry.spaces)
        except ArgumentValueError as error:
            self._problem(path, str(error))
            return Scope(vendor=text)
        if unknown is not None:
            self._unknown(path, unknown, otherwise)
        return scope

    def _unknown(self, path: KeyPath, error: UnknownNameError, otherwise: str) -> None:
        """Notes an op or hardware that nothing here knows: a problem, or of a file for many machines a doubt."""
        if self._strict:
            self._problem(path, str(error))
        else:
            stop = "" if str(error).endswith(("?", ".")) else "."
            self._doubts.append((path, f"{'.'.join(map(str, path))}: {error}{stop} {otherwise}"))

    def _check_name(self, path: KeyPath, name: str, op: str | None) -> None:
        try:
            self._registry.named(name)
            if op is not None:
                check_ships(self._registry, op, name)
        except (UnknownNameError, ArgumentValueError) as error:
            self._problem(path, str(error).removeprefix(f"{op}: "))

    def _check_plugins(self, path: KeyPath, names: Sequence[str]) -> None:
        for i, name in enumerate(names):
            known = known_plugins(self._registry)
            if name not in known:
                self._problem(self._item(path, i), str(UnknownNameError("plugin", name, known)))

    def _item(self, path: KeyPath, i: int) -> KeyPath:
        """The place of the ``i``-th name: in a list, or after the key where it stands alone."""
        return (*path, i) if (*path, i) in (self._loaded.document.lines or {}) else path

    def _where(self, path: KeyPath) -> str:
        return f"{self._file}:{self._loaded.document.line(path)}"

    def _problem(self, path: KeyPath, text: str) -> None:
        self._problems.append((path, text))
