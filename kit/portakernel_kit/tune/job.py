"""What a worker is asked to measure, and what it says of itself: plain data, which travels as JSON; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from portakernel.claims.call_layout import CallLayout
from portakernel.claims.request import Phase, Request
from portakernel.contract import GridRow
from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.registry.registry import Registry
from portakernel.tuning.key import Key, Kind, Regime
from portakernel.words.target import Target
from portakernel_kit.bench.question import Question


@dataclass(frozen=True, slots=True)
class Job:
    """One call to measure, on whatever device a worker has.

    ``given`` are the elements of integer tensors that are not drawn. ``known`` are kernels that are not to be asked:
    they ended their process before; each has its entry as JSON. ``layout`` and ``strides`` are a ``CallLayout``'s.
    """

    op: str
    phase: str
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    regime: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    given: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, "tuple[int, ...]"])
    count: int = 1
    seed: int = 0
    known: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, "Mapping[str, Any]"])
    layout: Mapping[str, int] = field(default_factory=dict[str, int])
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, "tuple[int, ...]"])

    @property
    def memory(self) -> CallLayout:
        """How the call's tensors lie."""
        return CallLayout(self.layout, self.strides)

    @property
    def name(self) -> str:
        """The call for people."""
        shapes = ", ".join(f"{name} {'×'.join(map(str, shape)) or 'scalar'}" for name, shape in self.shapes.items())
        lie = f" ({memory})" if (memory := str(self.memory)) else ""
        return f"{self.op} {shapes}{lie} {' '.join(dict.fromkeys(self.dtypes.values()))} {self.phase}"

    def to_json(self) -> dict[str, Any]:
        """The job as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        """The job that JSON-ready data came of."""
        listed = ("shapes", "given", "strides")
        tuples = {name: {n: tuple(each) for n, each in data[name].items()} for name in listed}
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in data["values"].items()}
        return cls(**{**data, **tuples, "values": values})

    @classmethod
    def of(cls, question: Question, phase: Phase, regime: Regime, **more: Any) -> Job:
        """The job that measures a phase of what the bench would."""
        row = question.row
        typed = {name: dtype for name, dtype in question.dtypes.items() if name in contract(question.op).names}
        given = {name: tuple(elements) for name, elements in row.given.items()}
        return cls(question.op, str(phase), row.shapes, typed, str(regime), dict(row.values), given, **more)

    def request(self, target: Target) -> Request:
        """The request that the call is; backward reads outputs in place of some tensors, and those lie plainly.

        Raises:
            UnknownNameError, ArgumentTypeError, ArgumentValueError: it does not fit its op.
        """
        op, phase = contract(self.op), Phase(self.phase)
        stood_for = op.stands_for if phase is Phase.BACKWARD else ()
        facts = {name: value for name, value in self.layout.items() if name.partition(".")[0] not in stood_for}
        request = ask(op, target, dtypes=self.dtypes, shapes=self.shapes, values=self.values, facts=facts)
        return replace(request, phase=phase)

    def question(self, target: Target) -> Question:
        """The same as the bench asks it; raises what ``request`` does."""
        row = GridRow(self.name, self.shapes, self.values, given=self.given)
        request = replace(self.request(target), phase=Phase.INFERENCE)
        return Question(self.op, row, dict(self.dtypes), request, self.memory)

    def key(self, target: Target, units: int, registry: Registry) -> Key:
        """Under what it is kept once it was measured on such a device; raises what ``request`` does."""
        request = self.request(target)
        kind = Kind.of(request, registry.for_op(self.op))
        return Key(kind, str(target), units, Regime(self.regime), dict(request.dims))


@dataclass(frozen=True, slots=True)
class Facts:
    """What a worker says of its device and software: ``device`` is a digest of the card's identity.

    ``sources`` are the digests of all kernels, by which a worker with other sources is told.
    """

    target: str
    units: int
    device: str = ""
    driver: str = ""
    torch: str = ""
    sources: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        """The facts that JSON-ready data came of."""
        return cls(**data)
