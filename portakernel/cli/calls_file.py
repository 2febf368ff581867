"""Calls in words, listed in a file: what ``warmup``, ``bench`` and ``tune`` take as ``--calls``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from portakernel.errors import ArgumentValueError, UnknownNameError, nearest
from portakernel.manifest.loading import load_manifest
from portakernel.runtime import dispatcher
from portakernel.warming.outcome import Call
from portakernel.words.target import Device


def _op(name: str) -> str:
    ops = dispatcher().registry.ops
    if name not in ops:
        raise ValueError(f"unknown op {name!r}; {nearest(name, ops)}")
    return name


class CallEntry(BaseModel):
    """One call; the keys are those of ``portakernel.Call``."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    op: Annotated[str, AfterValidator(_op)]
    dtype: str | dict[str, str]
    shape: dict[str, list[Annotated[int, Field(ge=0)]]]
    format: str | dict[str, str] | None = None
    device: str | None = None
    training: bool = False
    forward_ad: bool = False
    kernel: str | None = None
    parameters: dict[str, Any] = {}
    count: Annotated[int, Field(ge=1)] = 1
    layout: dict[str, bool | int] = {}
    strides: dict[str, list[Annotated[int, Field(ge=0)]]] = {}

    @model_validator(mode="after")
    def _of_one_phase(self) -> CallEntry:
        if self.training and self.forward_ad:
            raise ValueError("training and forward_ad are two kinds of calls: list it twice")
        return self


class CallsFile(BaseModel):
    """A YAML file with the key ``calls``; recordings may have ``traced``, the ops that graphs were made of."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    calls: Annotated[list[CallEntry], Field(min_length=1)]
    traced: list[str] = []


def calls_on(calls: Iterable[Call], where: Device, path: Path) -> list[Call]:
    """The calls of the file at ``path``, which are to be measured on ``where``, or a device like it.

    Raises:
        ArgumentValueError: one is on a device that there is not, or of another kind.
    """
    listed, registry = list(calls), dispatcher().registry
    for name in dict.fromkeys(call.device for call in listed if call.device is not None):
        try:
            alike = registry.device(name).target == where.target
        except UnknownNameError as error:
            if where in registry.devices:
                raise ArgumentValueError(f"{path} lists calls on {name}: {error}") from error
            alike = name.partition(":")[0] == (where.torch_device or "cpu").partition(":")[0]  # of a cluster
        if not alike:
            text = f"{path} lists calls on {name}, and {where.name} ({where.torch_device or 'cpu'}) is measured"
            raise ArgumentValueError(f"{text}; give --device {name}, or leave `device` out of these calls")
    return listed


def load_calls(path: Path) -> list[Call]:
    """The calls that the file lists.

    Raises:
        ManifestError: it cannot be accepted; holds every problem, with its line.
    """
    return load_recording(path)[0]


def load_recording(path: Path) -> tuple[list[Call], tuple[str, ...]]:
    """The calls that the file lists, and the ops that graphs were made of.

    Raises:
        ManifestError: it cannot be accepted; holds every problem, with its line.
    """
    read = load_manifest(CallsFile, path, strict=True).manifest
    calls = [Call(**{name: getattr(entry, name) for name in CallEntry.model_fields}) for entry in read.calls]
    return calls, tuple(read.traced)
