"""The form of a plan: the keys that it may have, and what each accepts. ``docs/plans.md`` shows a whole file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from portakernel.claims.request import Phase
from portakernel.errors import close_to, nearest
from portakernel.manifest.loading import shown
from portakernel.plan.boxes import LARGEST
from portakernel.plan.plan import WORDS
from portakernel.tuning.key import Regime
from portakernel.words.dtypes import DTYPES

_RANGE = re.compile(r"(0|[1-9][0-9]{0,18})\.\.(0|[1-9][0-9]{0,18})")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SOURCE = re.compile(r"[0-9a-f]{8,64}")


def _is_sizes(value: Any) -> bool:
    return type(value) is int or (isinstance(value, str) and _RANGE.fullmatch(value) is not None)


def _sizes(value: Any) -> tuple[int, int]:
    """``4096`` or ``1..512`` as the least and the greatest size."""
    if type(value) is int:
        low = high = value
    elif isinstance(value, str) and (found := _RANGE.fullmatch(value)):
        low, high = int(found[1]), int(found[2])
    else:
        raise ValueError(f"found {shown(value)}; write a size, such as 4096, or two, such as 1..512")
    if not 0 <= low <= high <= LARGEST:
        raise ValueError(f"found {shown(value)}; sizes go from 0 to 2**63 - 1, the least one first")
    return low, high


def _one_of(words: tuple[str, ...]) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value not in words:
            raise ValueError(f"found {shown(value)}; {nearest(str(value), words)}")
        return value

    return BeforeValidator(check)


def _written(form: re.Pattern[str], example: str) -> AfterValidator:
    def check(value: str) -> str:
        if not form.fullmatch(value):
            raise ValueError(f"found {shown(value)}; it is written as {example}")
        return value

    return AfterValidator(check)


def _dtype(name: str) -> str:
    if name not in DTYPES:
        raise ValueError(f"unknown dtype {shown(name)}; {nearest(name, DTYPES)}")
    return name


def _finite(values: Mapping[str, Any]) -> Mapping[str, Any]:
    waiting = list(values.values())
    while waiting:
        value = waiting.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"found {value}; numbers are finite")
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
    return values


Sizes = Annotated[tuple[int, int], BeforeValidator(_sizes)]
DType = Annotated[str, AfterValidator(_dtype)]
LockWord = Annotated[Literal["listed", "everything"], _one_of(("listed", "everything"))]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class PinPart(_Part):
    """A kernel's source, and the versions of the modules that it was with."""

    source: Annotated[str, _written(_SOURCE, "8 to 64 hex digits in quotes, such as 'c71877364d68'")]
    requires: dict[str, str] = Field(default_factory=dict)


class EntryPart(BaseModel):
    """One line of a plan: a kind of call, the sizes of its dimensions, and the kernel."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, defer_build=True)
    __pydantic_extra__: dict[str, Sizes]  # pyright: ignore[reportIncompatibleVariableOverride]

    dtype: DType | None = None
    dtypes: dict[str, DType] | None = None
    phase: Annotated[str, _one_of(tuple(map(str, Phase)))] = str(Phase.INFERENCE)
    formats: dict[str, str] = Field(default_factory=dict)
    features: Annotated[dict[str, Any], AfterValidator(_finite)] = Field(default_factory=dict)
    layout: list[str] = Field(default_factory=list)
    use: str

    @model_validator(mode="before")
    @classmethod
    def _has_words(cls, data: Any) -> Any:
        """Whatever is no word is a dimension; where it has no size either, a word may be meant."""
        for name, value in data.items() if isinstance(data, dict) else ():
            if name in WORDS or _is_sizes(value) or not (meant := close_to(str(name), WORDS)):
                continue
            words = ", ".join(WORDS)
            offer = f"did you mean {' or '.join(map(repr, meant))}?"
            raise ValueError(f"unknown word {shown(name)}; {offer} An entry has {words}, and sizes by dimension")
        return data

    @model_validator(mode="after")
    def _has_dtypes_once(self) -> EntryPart:
        if (self.dtype is None) is (self.dtypes is None):
            raise ValueError("give `dtype`, of all tensors that can have it, or `dtypes` by tensor; one of the two")
        return self


class MadeWith(_Part):
    """What was there where a part was measured; another driver or torch is no reason to refuse it."""

    driver: str = ""
    torch: str = ""


class PlanDocument(_Part):
    """``plan.yaml``."""

    schema_version: Annotated[int, Field(ge=1)]
    lock: LockWord = "listed"
    regime: Annotated[str, _one_of(tuple(map(str, Regime)))] = str(Regime.GRAPH_COLD)
    kernels: dict[str, PinPart] = Field(default_factory=dict)
    made_with: dict[str, MadeWith] = Field(default_factory=dict)
    targets: dict[str, dict[str, list[EntryPart]]]
    digest: Annotated[str, _written(_DIGEST, "sha256:, with 64 hex digits")] | None = None
