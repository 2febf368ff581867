"""What one call asks for, as plain data: an op, a target, dtypes, dimensions, layout, features."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, TypeVar

from portakernel.contract import Contract
from portakernel.contracts import contracts
from portakernel.text.printable import brief
from portakernel.words.symbols import is_symbol, left_to_the_run
from portakernel.words.target import Device, Target

T = TypeVar("T")

# What a question takes the memory of a tensor to be like.
PLAIN_FACTS: Mapping[str, int] = {"contiguous": True, "flat_rows": True, "stride_last": 1, "alignment": 16}


class Phase(StrEnum):
    """The part of an op that is asked for."""

    INFERENCE = "inference"  # the outputs alone
    TRAINING = "training"  # the outputs, and the tensors that the contract saves for backward
    BACKWARD = "backward"  # the gradients
    FORWARD_AD = "forward_ad"  # the outputs of forward-mode dual tensors, tangents included


@dataclass(frozen=True, slots=True)
class Request:
    """An op with what one call, or one question about a call, says of it.

    ``dims`` and ``facts`` hold what is known: a question need not give every shape. ``features`` holds only those that
    differ from their neutral default, ``values`` every keyword argument that is no tensor, ``absent`` the optional
    tensors that are not given. ``below_autograd``: PyTorch is not recording, so that a kernel has to save what backward
    needs. ``unpaired``: backward's kernel is chosen apart, so that it has to be what any backward reads.
    ``compiled``: a compiled graph is to hold it. ``open``: that leaves some sizes open, or even to its run alone.
    ``traced``: it is made of tensors that stand for a graph's, of which neither all sizes nor addresses are known.
    ``attached`` are further devices that share the torch device. ``device`` is set when it is in this machine, so that
    readiness is probed and not assumed. ``units`` are the multiprocessors or compute units of hardware that is not
    here, where they are said.
    """

    op: str
    target: Target
    dtypes: Mapping[str, str] = field(default_factory=dict[str, str])
    dims: Mapping[str, int] = field(default_factory=dict[str, int])
    facts: Mapping[str, int] = field(default_factory=dict[str, int])
    features: Mapping[str, object] = field(default_factory=dict[str, object])
    formats: Mapping[str, str] = field(default_factory=dict[str, str])
    values: Mapping[str, object] = field(default_factory=dict[str, object])
    absent: frozenset[str] = frozenset()
    requires: frozenset[str] = frozenset()
    phase: Phase = Phase.INFERENCE
    saved: tuple[str, ...] = ()
    saved_by: str | None = None
    below_autograd: bool = False
    unpaired: bool = False
    compiled: bool = False
    open: Literal["", "sizes", "run"] = ""
    traced: bool = False
    attached: tuple[Device, ...] = ()
    device: Device | None = None
    units: int | None = None

    def value(self, parameter: str) -> Any:
        """The value of a dimension (``N``), layout fact (``x.alignment``) or keyword argument; None if not known."""
        found = self.facts if "." in parameter else self.dims if parameter in self.dims else self.values
        return found.get(parameter)

    def without_symbols(self) -> Request:
        """The request without the sizes that a traced graph leaves open; itself where there are none."""
        dims, facts, values = (_without_symbols(self.dims), _without_symbols(self.facts), _without_symbols(self.values))
        if (len(dims), len(facts), len(values)) == (len(self.dims), len(self.facts), len(self.values)):
            return self
        left = self.compiled and any(map(left_to_the_run, self.dims.values()))
        return replace(self, dims=dims, facts=facts, values=values, open="run" if left else "sizes")

    def __repr__(self) -> str:
        return brief(f"<Request: {self}>")

    def __str__(self) -> str:
        parts = [f"{name} {dtype}" for name, dtype in self.dtypes.items()]
        parts += [f"{name}={value}" for name, value in self.dims.items()]
        described = contracts().get(self.op)
        told = changed_values(described, self.values) if described is not None else {}
        parts += [f"{name}={value!r}" for name, value in {**told, **self.features}.items()]
        parts += [f"{name} scales {value}" for name, value in self.formats.items()]
        parts += sorted(self.requires)
        kind = [*([] if self.phase is Phase.INFERENCE else [str(self.phase)]), *(["compiled"] if self.compiled else [])]
        call = f"{self.op} ({', '.join(kind)})" if kind else self.op
        return f"{call} on {self.target}" + (f" with {', '.join(parts)}" if parts else "")

    def to_json(self) -> dict[str, Any]:
        """The request as JSON-ready data; stable."""
        return {
            "phase": str(self.phase),
            "compiled": self.compiled,
            "dtypes": dict(self.dtypes),
            "dims": {name: int(value) for name, value in self.dims.items()},
            "facts": {name: value if isinstance(value, bool) else int(value) for name, value in self.facts.items()},
            "features": dict(self.features),
            "formats": dict(self.formats),
            "requires": sorted(self.requires),
            "attached": [str(device.target) for device in self.attached],
            "device": self.device.torch_device if self.device else None,
        }


def _without_symbols(sizes: Mapping[str, T]) -> dict[str, T]:
    return {name: value for name, value in sizes.items() if not is_symbol(value)}


def typed_values(contract: Contract, values: Mapping[str, Any]) -> dict[str, str]:
    """The dtypes that parameters hold, by name."""
    return {p.name: values[p.name] for p in contract.parameters if p.kind == "dtype"}


def format_values(contract: Contract, values: Mapping[str, Any]) -> dict[str, str]:
    """The scale formats that parameters hold, under the names of the tensors that have them."""
    return {p.of or p.name: values[p.name] for p in contract.parameters if p.kind == "format"}


def changed_values(contract: Contract, values: Mapping[str, object]) -> dict[str, object]:
    """The keyword arguments that are not at their defaults, but for dtypes and scale formats, told with tensors'."""
    return {
        p.name: values[p.name]
        for p in contract.parameters
        if p.kind not in ("dtype", "format") and values.get(p.name, p.default) != p.default
    }


def asked_features(contract: Contract, values: Mapping[str, Any], given: Container[str]) -> dict[str, object]:
    """The features that are not neutral: parameters off their default, and tensors that are given."""
    asked: dict[str, object] = {
        p.name: values[p.name] for p in contract.parameters if p.feature and values[p.name] != p.default
    }
    return asked | {tensor.name: True for tensor in contract.tensors if tensor.feature and tensor.name in given}
