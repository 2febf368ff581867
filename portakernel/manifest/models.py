"""``plugin.yaml`` and ``backend.yaml`` as typed models.

They are the one description of both files: the JSON Schemas in ``schema/`` are generated from them.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from portakernel.claims.capability import Limit
from portakernel.errors import nearest
from portakernel.hookspecs import HOOKS
from portakernel.manifest.yaml_file import KeyPath
from portakernel.words.dtypes import DTYPES, SCALE_FORMATS
from portakernel.words.graph_forms import GraphForm
from portakernel.words.products import spelled

SCHEMA_VERSION = 1


def _known(kind: str, names: typing.Iterable[str]) -> AfterValidator:
    accepted = tuple(names)

    def check(value: str) -> str:
        if value not in accepted:
            raise ValueError(f"unknown {kind} {value!r}; {nearest(value, accepted)}")
        return value

    return AfterValidator(check)


def _specifier(value: str) -> str:
    try:
        SpecifierSet(value)
    except InvalidSpecifier as error:
        raise ValueError(f"{error}; write a version specifier such as '>=3.6'") from error
    return value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    return value


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Entry = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", description="module:function, imported on first use"
    ),
]
ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]
DTypeName = Annotated[str, _known("dtype", DTYPES)]
FormatName = Annotated[str, _known("scale format", SCALE_FORMATS)]
HookName = Annotated[str, _known("hook", HOOKS)]
Specifier = Annotated[str, AfterValidator(_specifier)]
Pattern = Annotated[str, AfterValidator(_pattern)]
# Checked before the rest of a manifest, which another version may write otherwise (manifest_file.load_manifest).
PluginApi = Annotated[
    int, Field(ge=1, description="the plugin API that the package is written for; version 1 when left out")
]


class _Model(BaseModel):
    # built when first used: a model that a command does not need costs it nothing
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class LimitModel(_Model):
    """A bound on a dimension (``N``) or a layout fact (``x.stride_last``)."""

    min: int | None = None
    max: int | None = None
    multiple_of: Annotated[int, Field(gt=0)] | None = None
    one_of: list[int | bool] | None = Field(default=None, alias="in")
    power_of_two: bool = False

    @model_validator(mode="after")
    def _bounds_something(self) -> LimitModel:
        if all(value is None or value is False for value in self.model_dump().values()):
            raise ValueError("is empty; give min, max, multiple_of, in or power_of_two")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is greater than max {self.max}")
        if self.one_of is not None and not self.one_of:
            raise ValueError("`in` lists nothing, so that no request could be served")
        return self

    def limit(self, parameter: str) -> Limit:
        """The bound on ``parameter`` that this declares."""
        one_of = None if self.one_of is None else tuple(self.one_of)
        return Limit(parameter, self.min, self.max, self.multiple_of, one_of, self.power_of_two)


class SelectorModel(_Model):
    """Archs with exceptions."""

    include: Annotated[list[str], Field(min_length=1)] | str = Field(alias="in")
    exclude: list[str] = Field(default_factory=list, alias="not")


TargetTerms = str | Annotated[list[str], Field(min_length=1)] | SelectorModel


def terms(value: TargetTerms) -> Iterator[tuple[KeyPath, str]]:
    """Each term of a vendor's targets, with its place under the vendor; an exception's place begins with ``not``."""
    if isinstance(value, SelectorModel):
        yield from ((("in", *path), term) for path, term in terms(value.include))
        yield from ((("not", i), term) for i, term in enumerate(value.exclude))
    elif isinstance(value, str):
        yield (), value
    else:
        yield from (((i,), term) for i, term in enumerate(value))


class PriorityRuleModel(_Model):
    """A priority for some sizes, values, features, phases or targets; all may be left out in the last rule only."""

    priority: int
    when: dict[str, LimitModel] = Field(default_factory=dict)
    values: dict[Name, Annotated[list[bool | str], Field(min_length=1)]] = Field(
        default_factory=dict, description="of a keyword argument, the values with which it holds"
    )
    features: list[Name] = Field(default_factory=list, description="what a call asks for where it holds, all of them")
    without: list[Name] = Field(default_factory=list, description="features that no call asks for where it holds")
    phases: list[Literal["inference", "training", "backward", "forward_ad"]] = Field(
        default_factory=list, description="what is asked for where it holds; every phase when left out"
    )
    targets: dict[Name, TargetTerms] | None = Field(
        default=None, description="where it holds: of archs that backend.yaml lists; every target when left out"
    )


class CompiledModel(_Model):
    """How graphs of ``torch.compile`` hold the kernel, and how early it goes there."""

    form: GraphForm = Field(
        default="call",
        description="inline: it is made of torch operators, which stand in the graph for Inductor to fuse;"
        " kernel: of Triton kernels, launched by portakernel.authoring.triton, which Inductor launches by itself;"
        " call: one node that calls it",
    )
    priority: int | Annotated[list[PriorityRuleModel], Field(min_length=1)] | None = Field(
        default=None, description="its priority there; that of calls outside of graphs when left out"
    )


class CheckModel(_Model):
    """A function for what limits cannot say; it sees exactly what ``reads`` lists, by keyword.

    That may be dimensions, layout facts and the op's keyword arguments.
    """

    entry: Entry
    reads: Annotated[list[str], Field(min_length=1)]


class Claim(_Model):
    """What a kernel serves. Keys under ``defaults`` hold for every kernel, a kernel's own for each of its variants."""

    targets: dict[Name, TargetTerms] | None = None
    dtypes: dict[Name, Annotated[list[str], Field(min_length=1)]] | None = None
    formats: dict[Name, list[FormatName]] | None = None
    limits: dict[str, LimitModel] | None = None
    features: list[Name] | None = None
    values: dict[Name, Annotated[list[bool | str], Field(min_length=1)]] | None = Field(
        default=None,
        description="of a keyword argument that every kernel honours, the values served; all when left out",
    )
    properties: dict[Literal["deterministic", "batch_invariant", "graph_capture", "inplace"], bool] | None = None
    prebuilt: bool | None = Field(
        default=None, description="machine code shipped ahead: not for archs newer than listed"
    )


class Defaults(Claim):
    """Keys merged into each kernel."""

    priority: int | None = None


class Variant(Claim):
    """One whole alternative; the first that fits names itself in reasons."""

    name: Name | None = None


class Requires(_Model):
    """What must be installed: import names with versions, looked up without importing."""

    modules: dict[str, Specifier] = Field(default_factory=dict)
    distributions: dict[str, str] = Field(
        default_factory=dict, description="what to install for a module that its distribution is not named after"
    )
    optional: bool = Field(
        default=False,
        description="nobody has to have them: without them the plugin, or this kernel, rests, and all is well",
    )

    @model_validator(mode="after")
    def _distributions_are_of_modules(self) -> Requires:
        if strangers := sorted(self.distributions.keys() - self.modules.keys()):
            raise ValueError(f"modules lacks {', '.join(strangers)}, which distributions names")
        return self


class KernelEntry(Claim):
    """One implementation of one op."""

    op: Name
    name: Name | None = Field(default=None, description="the op's name when left out; the full name is plugin.name")
    entry: Entry
    backward: Entry | None = None
    saves: Literal["contract", "own", "none", "autograd"] | None = Field(
        default=None,
        description="what forward saves: the contract's tensors (the default beside a backward), its own, none;"
        " autograd: it is made of torch operators, whose gradient PyTorch records",
    )
    forward_ad: bool = Field(default=False, description="differentiable in forward mode, being made of torch operators")
    check: CheckModel | None = None
    requires: Requires | None = Field(default=None, description="beyond what the plugin requires: a newer version, say")
    build: Entry | None = Field(
        default=None,
        description="compiles the kernel for one request ahead of calls: (request, tensors, values) -> None;"
        " until portakernel.warmup has called it, the kernel is refused with needs_build",
    )
    built: Entry | None = Field(
        default=None,
        description="where what `build` makes outlives the process: whether it was made for calls of such dtypes,"
        " formats and values, on this request's target: (request) -> None or a Rejection (needs_build)",
    )
    evidence: dict[Name, Pattern] = Field(
        default_factory=dict,
        description="by vendor, a regular expression over the assembly: the instruction that the claim implies,"
        " which `portakernel compile` looks for",
    )
    variants: list[Variant] = Field(default_factory=list)
    priority: int | Annotated[list[PriorityRuleModel], Field(min_length=1)] | None = None
    compiled: CompiledModel = CompiledModel.model_construct()
    disabled: Annotated[str, Field(min_length=1)] | None = Field(default=None, description="why it is switched off")

    @model_validator(mode="after")
    def _own_tensors_need_own_backward(self) -> KernelEntry:
        if self.saves == "own" and self.backward is None:
            raise ValueError("saves: own needs a backward, since no other kernel's can read those tensors")
        if self.saves == "autograd" and self.backward is not None:
            raise ValueError("saves: autograd has no backward: the gradient is PyTorch's")
        return self

    @model_validator(mode="after")
    def _what_is_built_has_a_build(self) -> KernelEntry:
        if self.built is not None and self.build is None:
            raise ValueError("built needs a build, which makes what it looks for")
        return self


class Mode(_Model):
    """A way to execute the plugin's kernels without their device, for conformance."""

    context: Entry
    torch_device: str
    allowance_ulp: dict[DTypeName, float] = Field(default_factory=dict)
    max_elements: Annotated[int, Field(gt=0)] | None = None


class OpEntry(_Model):
    """An op that the package ships, with its contract and its reference."""

    contract: Entry = Field(description="module:NAME, a portakernel.authoring.Contract; its module loads no torch")
    reference: ModuleName = Field(description="the module with `forward`, and `backward` where the op has a gradient")


class PluginManifest(_Model):
    """``plugin.yaml``."""

    schema_version: Annotated[int, Field(ge=1)]
    plugin_api: PluginApi = 1
    plugin: Name
    summary: str = ""
    foreign: bool = Field(
        default=False,
        description="the kernels are another package's own, which its users have without portakernel: `portakernel"
        " bench` tells what is lost to them apart",
    )
    hooks: list[HookName] = Field(default_factory=list)
    requires: Requires = Requires.model_construct()
    ready: Entry | None = None
    modes: dict[Name, Mode] = Field(default_factory=dict)
    offline: Entry | None = Field(
        default=None,
        description="compiles for a target that is not here: a context manager (target) -> list of"
        " portakernel.offline.compiled.Compiled; inside, a kernel called on meta tensors adds what it would launch",
    )
    units: Entry | None = Field(
        default=None,
        description="what `portakernel build` compiles for a target: (Target) -> authoring.native.Unit, many",
    )
    ops: list[OpEntry] = Field(default_factory=list, description="ops that the package ships, beside portakernel's")
    defaults: Defaults = Defaults.model_construct()
    kernels: list[KernelEntry] = Field(default_factory=list)


class NativeEmulated(_Model):
    """*Native*: the arch has instructions for it; *emulated*: it runs by conversion."""

    native: list[str] = Field(default_factory=list)
    emulated: list[str] = Field(default_factory=list)


class DTypeSupport(NativeEmulated):
    """Dtypes that an arch computes in."""

    native: list[DTypeName] = Field(default_factory=list)
    emulated: list[DTypeName] = Field(default_factory=list)
    optional: dict[DTypeName, Annotated[list[str], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="an emulated dtype, and features of some devices of which each makes it native",
    )


class FormatSupport(NativeEmulated):
    """Scale formats that an arch serves."""

    native: list[FormatName] = Field(default_factory=list)
    emulated: list[FormatName] = Field(default_factory=list)


class ArchFacts(_Model):
    """What is known of one arch, and from where."""

    name: str
    products: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list,
        description="the names that products of this arch are sold under, each of which names a target: in any"
        " case, with or without spaces, dashes and the first words",
    )
    warp_size: int | None = None
    shared_memory_kib: int | None = None
    dtypes: DTypeSupport = DTypeSupport.model_construct()
    formats: FormatSupport = FormatSupport.model_construct()
    features: list[str] = Field(default_factory=list)
    source: Annotated[str, Field(min_length=1)]


class BackendManifest(_Model):
    """``backend.yaml``."""

    schema_version: Annotated[int, Field(ge=1)]
    plugin_api: PluginApi = 1
    backend: Name
    vendor: Name
    summary: str = ""
    torch_device: str
    attach: bool = False
    open_ended: bool = False
    lines: list[Annotated[list[str], Field(min_length=1)]] = Field(default_factory=list)
    families: dict[str, list[str]] = Field(default_factory=dict)
    archs: dict[str, ArchFacts] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _archs_are_described(self) -> BackendManifest:
        named = {arch for line in (*self.lines, *self.families.values()) for arch in line}
        if undescribed := sorted(named - self.archs.keys()):
            raise ValueError(f"archs lacks {', '.join(undescribed)}, which lines or families name")
        return self

    @model_validator(mode="after")
    def _products_are_of_one_arch(self) -> BackendManifest:
        sold: dict[str, str] = {spelled(arch): arch for arch in self.archs}
        for arch, facts in self.archs.items():
            for product in facts.products:
                if (other := sold.setdefault(spelled(product), arch)) != arch:
                    raise ValueError(f"archs.{arch}.products: {product!r} is also a name of {other}")
        return self
