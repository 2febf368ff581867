"""The policy file: what a deployment prefers, allows or forbids, in YAML.

The models are its one description: ``schema/policy.schema.json`` is generated from them. ``docs/policy.md`` shows a
whole file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from portakernel.arch import Selector
from portakernel.capability import Property
from portakernel.contracts import contracts
from portakernel.errors import ArgumentValueError, ManifestError, PolicyFileError, UnknownNameError, nearest
from portakernel.manifest_file import Loaded, load_manifest, load_what_is_known, shown
from portakernel.naming import check_ships
from portakernel.policies import Layer, Place, ReferenceMode, Scope
from portakernel.registry import Registry
from portakernel.yaml_file import KeyPath

FILE_NAME = "policy.yaml"
_NAMING = ("use", "prefer", "deny")
_PROPERTIES: tuple[str, ...] = get_args(Property)
_MODES: tuple[str, ...] = get_args(ReferenceMode)


def _several(value: Any) -> Any:
    if value == [] or not isinstance(value, (str, list)):
        raise ValueError(f"{_found(value)}; write one name, or a list of names")
    return [value] if isinstance(value, str) else value


def _mode(value: Any) -> Any:
    if value not in _MODES:
        raise ValueError(f"{_found(value)}; {nearest(str(value), _MODES)}")
    return value


def _found(value: Any) -> str:
    return "is empty" if value in (None, []) else f"found {shown(value)}"


def _property(name: str) -> str:
    if name not in _PROPERTIES:
        raise ValueError(f"unknown property {name!r}; {nearest(name, _PROPERTIES)}")
    return name


def _one_or_list(item: Mapping[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [item, {"type": "array", "items": item, "minItems": 1}]})


NameList = Annotated[list[str], BeforeValidator(_several), _one_or_list({"type": "string"})]
PropertyList = Annotated[
    list[Annotated[str, AfterValidator(_property)]],
    BeforeValidator(_several),
    _one_or_list({"enum": list(_PROPERTIES)}),
]
# None stands for a key that is not there; a key without a value is an error.
Mode = Annotated[ReferenceMode | None, BeforeValidator(_mode), WithJsonSchema({"enum": list(_MODES)})]


class Section(BaseModel):
    """Wishes: kernels (``triton.rms_norm``) or plugins (``triton``) by name, required properties, the reference."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    use: NameList = Field(default=[], description="these kernels, or an error; strict for the ops that they are of")
    prefer: NameList = Field(default=[], description="first these, best first, where they can serve")
    deny: NameList = Field(default=[], description="never these; adds up over all sources")
    require: PropertyList = Field(
        default=[], description="properties that every chosen kernel must declare; adds up over all sources"
    )
    reference: Mode = Field(default=None, description="whether the references may serve on accelerators")

    @model_validator(mode="after")
    def _says_something(self) -> Section:
        if not self.model_fields_set:
            raise ValueError(f"is empty; give {', '.join(type(self).model_fields)}")
        return self


class TargetSection(Section):
    """Wishes, and those about single ops, which go before them."""

    ops: dict[str, Section] = Field(default_factory=dict, description="wishes by op")


class PolicyDocument(TargetSection):
    """``policy.yaml``."""

    schema_version: Annotated[int, Field(ge=1)]
    targets: dict[str, TargetSection] = Field(
        default_factory=dict,
        description="wishes by vendor (amd) or vendor and archs (nvidia:sm_90+); the first that fits goes before",
    )


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A policy file as read: where it is, who named it, and its wishes, strongest first."""

    path: Path
    named_by: str
    layers: tuple[Layer, ...]

    def sentences(self) -> tuple[str, ...]:
        """Every wish with its place, strongest first: ``rms_norm on amd: use triton (policy.yaml:7)``."""
        found = []
        for layer in self.layers:
            about = f"{layer.scope}: " if str(layer.scope) else ""
            for place in layer.places:
                wish = f"{place.key} {place.name}" if place.name else f"{place.key}: {layer.reference}"
                found.append(f"{about}{wish} ({place.where})")
        return tuple(found)


def load_policy_file(path: str | Path, registry: Registry, *, named_by: str = "") -> PolicyFile:
    """The policy file at ``path``, every name in it known to ``registry``; ``named_by`` is who asked for it.

    Raises:
        PolicyFileError: it cannot be accepted; holds every problem found.
    """
    file = Path(path).expanduser()
    problems: list[str] = []
    loaded: Loaded[PolicyDocument] | None
    try:
        loaded = load_manifest(PolicyDocument, file, strict=True)
    except ManifestError as error:
        problems += error.problems
        loaded = _readable(file)
    layers = tuple[Layer, ...]()
    if loaded is not None:
        reader = _Reader(loaded, registry)
        layers = tuple(reader.layers())
        problems += reader.problems()
    if problems:
        raise PolicyFileError(str(path), problems, named_by=named_by)
    return PolicyFile(file.absolute(), named_by, layers)


def _readable(file: Path) -> Loaded[PolicyDocument] | None:
    """What the file says beside its unknown keys, so that one misspelling does not hide what else is wrong."""
    try:
        return load_what_is_known(PolicyDocument, file)
    except ManifestError:
        return None


class _Reader:
    """Turns a document into layers; collects what is wrong with the names in it."""

    def __init__(self, loaded: Loaded[PolicyDocument], registry: Registry) -> None:
        self._loaded = loaded
        self._registry = registry
        self._file = Path(loaded.document.path).name
        self._problems: list[tuple[KeyPath, str]] = []

    def problems(self) -> list[str]:
        """What was found to be wrong, from the top of the file down."""
        found = sorted(self._problems, key=lambda problem: self._loaded.document.line(problem[0]))
        return [self._loaded.problem(path, text) for path, text in found]

    def layers(self) -> Iterator[Layer]:
        """The file's layers, strongest first: single targets before all, and in each single ops before all."""
        document = self._loaded.manifest
        for text, section in document.targets.items():
            path = ("targets", text)
            yield from self._section(path, section, self._scope(path, text))
        yield from self._section((), document, Scope())

    def _section(self, path: KeyPath, section: TargetSection, scope: Scope) -> Iterator[Layer]:
        for op, wishes in section.ops.items():
            here = (*path, "ops", op)
            if op not in contracts():
                self._problem(here, str(UnknownNameError("op", op, contracts())))
                continue
            yield from self._layer(here, wishes, Scope(op, scope.vendor, scope.archs))
        yield from self._layer(path, section, scope)

    def _layer(self, path: KeyPath, section: Section, scope: Scope) -> Iterator[Layer]:
        places: list[Place] = []
        for key in (*_NAMING, "require"):
            for i, name in enumerate(getattr(section, key)):
                here = self._item((*path, key), i)
                places.append(Place(key, name, self._where(here)))
                if key in _NAMING:
                    self._check_name(here, name, scope.op)
        if section.reference is not None:
            places.append(Place("reference", "", self._where((*path, "reference"))))
        if places:
            use, prefer, deny = tuple(section.use), tuple(section.prefer), tuple(section.deny)
            require = frozenset(section.require)
            yield Layer(self._file, use, prefer, deny, require, section.reference, scope, tuple(places))

    def _scope(self, path: KeyPath, text: str) -> Scope:
        vendor, colon, archs = text.partition(":")
        spaces = self._registry.spaces
        if vendor not in spaces:
            self._problem(path, str(UnknownNameError("vendor", vendor, spaces)))
            return Scope()
        if not colon:
            return Scope(vendor=vendor)
        try:
            return Scope(vendor=vendor, archs=spaces[vendor].parse((archs,)))
        except (UnknownNameError, ArgumentValueError) as error:
            self._problem(path, str(error))
            return Scope(vendor=vendor, archs=Selector(()))

    def _check_name(self, path: KeyPath, name: str, op: str | None) -> None:
        try:
            self._registry.named(name)
            if op is not None:
                check_ships(self._registry, op, name)
        except (UnknownNameError, ArgumentValueError) as error:
            self._problem(path, str(error).removeprefix(f"{op}: "))

    def _item(self, path: KeyPath, i: int) -> KeyPath:
        """The place of the ``i``-th name: in a list, or after the key where it stands alone."""
        return (*path, i) if (*path, i) in (self._loaded.document.lines or {}) else path

    def _where(self, path: KeyPath) -> str:
        return f"{self._file}:{self._loaded.document.line(path)}"

    def _problem(self, path: KeyPath, text: str) -> None:
        self._problems.append((path, text))
