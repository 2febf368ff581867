"""The form of a policy file: the keys that it may have, and what each accepts.

The models are its one description: ``schema/policy.schema.json`` is generated from them. ``docs/policy.md`` shows a
whole file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from portakernel.claims.capability import Property
from portakernel.deciding.policies import ReferenceMode
from portakernel.deciding.shadow_wishes import ON_MISMATCH, OnMismatch, bytes_of, seconds_of, share_of
from portakernel.errors import nearest
from portakernel.manifest.loading import shown
from portakernel.words.graph_forms import GRAPH_FORMS, GraphForm

_PROPERTIES: tuple[str, ...] = get_args(Property)
_MODES: tuple[str, ...] = get_args(ReferenceMode)


def _several(value: Any) -> Any:
    if value == [] or not isinstance(value, (str, list)):
        raise ValueError(f"{_at_fault(value)}; write one name, or a list of names")
    return [value] if isinstance(value, str) else value


def _one_of(words: tuple[str, ...]) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value not in words:
            raise ValueError(f"{_at_fault(value)}; {nearest(str(value), words)}")
        return value

    return BeforeValidator(check)


def _at_fault(value: Any) -> str:
    return "is empty" if value in (None, []) else f"found {shown(value)}"


def _property(name: str) -> str:
    if name not in _PROPERTIES:
        raise ValueError(f"unknown property {name!r}; {nearest(name, _PROPERTIES)}")
    return name


def _plugin(name: str) -> str:
    if "." in name:
        raise ValueError(f"names the kernel {name!r}; write plugins, such as {name.partition('.')[0]!r}")
    return name


def _one_or_list(item: Mapping[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [item, {"type": "array", "items": item, "minItems": 1}]})


NameList = Annotated[list[str], BeforeValidator(_several), _one_or_list({"type": "string"})]
PropertyList = Annotated[
    list[Annotated[str, AfterValidator(_property)]],
    BeforeValidator(_several),
    _one_or_list({"enum": list(_PROPERTIES)}),
]
PluginList = Annotated[
    list[Annotated[str, AfterValidator(_plugin)]], BeforeValidator(_several), _one_or_list({"type": "string"})
]
# None stands for a key that is not there; a key without a value is an error.
ReferenceField = Annotated[ReferenceMode | None, _one_of(_MODES), WithJsonSchema({"enum": list(_MODES)})]
FormField = Annotated[GraphForm | None, _one_of(GRAPH_FORMS), WithJsonSchema({"enum": list(GRAPH_FORMS)})]


class Section(BaseModel):
    """Wishes: kernels or plugins by name, required properties, the reference, compiled graphs."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    use: NameList = Field(default=[], description="these kernels, or an error; strict for the ops that they are of")
    prefer: NameList = Field(default=[], description="first these, best first, where they can serve")
    deny: NameList = Field(default=[], description="never these; adds up over all sources")
    require: PropertyList = Field(
        default=[], description="properties that every chosen kernel must declare; adds up over all sources"
    )
    reference: ReferenceField = Field(default=None, description="whether the references may serve on accelerators")
    compiled: FormField = Field(
        default=None, description="the form that kernels first have in graphs of torch.compile, where they have it"
    )

    @model_validator(mode="after")
    def _says_something(self) -> Section:
        if not self.model_fields_set:
            raise ValueError(f"is empty; give {', '.join(type(self).model_fields)}")
        return self


class TargetSection(Section):
    """Wishes, and those about single ops, which go before them."""

    ops: dict[str, Section] = Field(default_factory=dict, description="wishes by op")


def _folder(value: Any) -> Any:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{_at_fault(value)}; write the path of a folder")
    return value


class ShadowSection(BaseModel):
    """Shadow verification: some calls' results are held against the reference while the process serves."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    every: Annotated[
        float, BeforeValidator(seconds_of), WithJsonSchema({"type": "string", "pattern": r"^[0-9.]+ ?(ms|s|min|h)$"})
    ] = Field(
        default=30.0,
        description="at most one call in that time is looked at: 30s, 500ms, 2min, 1h",
        json_schema_extra={"default": "30s"},
    )
    bytes: Annotated[
        int, BeforeValidator(bytes_of), WithJsonSchema({"type": "string", "pattern": r"^[0-9.]+ ?(B|KiB|MiB|GiB)$"})
    ] = Field(
        default=256 << 20,
        description="calls with more bytes in arguments and results are passed over: 256 MiB",
        json_schema_extra={"default": "256 MiB"},
    )
    share: Annotated[
        float,
        BeforeValidator(share_of),
        WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
    ] = Field(default=0.001, description="the share of the time that copies and checks may take")
    on_mismatch: Annotated[OnMismatch, _one_of(ON_MISMATCH), WithJsonSchema({"enum": list(ON_MISMATCH)})] = Field(
        default="report", description="after a wrong result: warn and count, or also let the next kernel serve"
    )
    folder: Annotated[str, BeforeValidator(_folder)] = Field(
        default="", description="where tensors of wrong calls are written; nowhere without it"
    )

    @model_validator(mode="after")
    def _says_something(self) -> ShadowSection:
        if not self.model_fields_set:
            raise ValueError(f"is empty; give {', '.join(type(self).model_fields)}")
        return self


class PolicyDocument(TargetSection):
    """``policy.yaml``."""

    schema_version: Annotated[int, Field(ge=1)]
    strict_names: bool = Field(
        default=False, description="whether a name that nothing here has is an error, where it is no use either"
    )
    plugins: PluginList = Field(
        default=[], description="the plugins that may serve; no other is imported, and of several lists all hold"
    )
    targets: dict[str, TargetSection] = Field(
        default_factory=dict,
        description="wishes by vendor (amd) or vendor and archs (nvidia:sm_90+); the first that fits goes before",
    )
    shadow: ShadowSection | None = Field(
        default=None, description="some calls' results are held against the reference while the process serves"
    )
