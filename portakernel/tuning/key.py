"""What a measurement is one of: a kind of call, its sizes, a kind of device, and how time was taken.

A key is derived from a request: from its op's contract, and from what kernels' claims read of calls. A key that left
out what a kernel looks at would carry one call's winner to another.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from portakernel.claims.capability import Limit
from portakernel.claims.request import PLAIN_FACTS, Request
from portakernel.contract import Parameter
from portakernel.contracts import contracts
from portakernel.registry.kernel import Kernel

# Parameters of these kinds take few values; each may be another kernel's best case.
_FEW = ("bool", "text", "mask")
# Whose calls can be captured in graphs.
_GRAPHS = ("nvidia", "amd")
# They have places of their own in a key.
_PLACED = ("dtype", "format")


class Regime(StrEnum):
    """How times were taken: with the host's own part or without, inputs in the L2 cache or not."""

    EAGER_COLD = "eager/cold"
    EAGER_WARM = "eager/warm"
    GRAPH_COLD = "graph/cold"
    GRAPH_WARM = "graph/warm"

    def on(self, vendor: str) -> Regime:
        """The regime that answers for it on a vendor's devices: eager calls where calls are captured in no graph."""
        return self if vendor in _GRAPHS else Regime(self.replace("graph/", "eager/"))

    def instead_of(self, asked: str | None, device: str) -> str:
        """That this regime answers for the one that was ``asked`` for; empty where it is that one, or none was."""
        if asked in (None, self):
            return ""
        return f"{device} has no graphs, which {asked} would time: {self} is what counts there"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of call: all that one asks for but its sizes.

    ``features`` are parameters that are off their default and that a kernel may look at, by name. ``layout`` are the
    bounds on memory layout that a claim sets and that a plain tensor keeps, but this call's do not.
    """

    op: str
    phase: str
    dtypes: Mapping[str, str] = field(default_factory=dict[str, str])
    formats: Mapping[str, str] = field(default_factory=dict[str, str])
    features: Mapping[str, Any] = field(default_factory=dict[str, Any])
    layout: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The kind as JSON, the same for equal kinds."""
        return canonical(self.parts())

    def parts(self) -> dict[str, Any]:
        """The kind as JSON-ready data, by name."""
        return {
            "op": self.op,
            "phase": self.phase,
            "dtypes": dict(self.dtypes),
            "formats": dict(self.formats),
            "features": dict(self.features),
            "layout": list(self.layout),
        }

    @classmethod
    def of(cls, request: Request, kernels: Iterable[Kernel]) -> Kind:
        """The kind of call that ``request`` is, to an op with these kernels."""
        kernels = tuple(kernels)
        read = read_by(kernels)
        features = {
            parameter.name: request.values[parameter.name]
            for parameter in contracts()[request.op].parameters
            if parameter.name in request.values
            and request.values[parameter.name] != parameter.default
            and tells_apart(parameter, read)
        }
        limits = frozenset[Limit]().union(*(kernel.limits() for kernel in kernels))
        return cls(
            request.op,
            str(request.phase),
            dict(request.dtypes),
            dict(request.formats),
            json.loads(canonical(features)),
            _layout(request, limits),
        )


@dataclass(frozen=True, slots=True)
class Key:
    """A kind of call of given sizes on a kind of device; ``units`` are its multiprocessors or compute units."""

    kind: Kind
    target: str
    units: int
    regime: Regime
    dims: Mapping[str, int]

    @property
    def text(self) -> str:
        """The key as JSON, the same for equal keys."""
        parts = {"target": self.target, "units": self.units, "regime": str(self.regime), "dims": dict(self.dims)}
        return canonical({**self.kind.parts(), **parts})


def read_by(kernels: Iterable[Kernel]) -> frozenset[str]:
    """The names of all that these kernels' claims read of calls."""
    return frozenset[str]().union(*(kernel.reads() for kernel in kernels))


def tells_apart(parameter: Parameter, read: Collection[str]) -> bool:
    """Whether kinds of calls differ by a parameter's value; ``read`` is what kernels read of calls."""
    looked_at = parameter.feature or parameter.kind in _FEW or parameter.name in read
    return looked_at and parameter.kind not in _PLACED


def _layout(request: Request, limits: Iterable[Limit]) -> tuple[str, ...]:
    """The bounds on layout facts that plain memory keeps and the request's does not, in words."""
    broken = list[str]()
    for limit in limits:
        plain = PLAIN_FACTS.get(limit.parameter.partition(".")[2])
        found = request.facts.get(limit.parameter)
        if plain is not None and found is not None and limit.admits(plain) and not limit.admits(found):
            broken.append(str(limit))
    return tuple(sorted(broken))


def canonical(value: Any) -> str:
    """Data as JSON: keys in order, no space, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
