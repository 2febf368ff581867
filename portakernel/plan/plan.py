"""A plan as data: pinned kernels, and for each kind of device and op the kernels of kinds of calls, by their sizes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from portakernel.claims.request import format_values
from portakernel.contracts import contracts
from portakernel.errors import ArgumentValueError, PortakernelError
from portakernel.plan.boxes import Box, plain
from portakernel.plan.dtypes import gathered, spread, values_of
from portakernel.tuning.choices import Choice, Choices
from portakernel.tuning.key import Kind, Regime, canonical
from portakernel.words.target import Target

# listed: strict for the calls that it lists; everything: a call that it does not list is an error.
Lock = Literal["listed", "everything"]
# Keys of an entry that are no dimensions.
WORDS = ("dtype", "dtypes", "phase", "formats", "features", "layout", "use")
_PLACE = re.compile(r"(.+)/([1-9][0-9]{0,5})")


class Place(NamedTuple):
    """A kind of device, written ``nvidia:sm_90/132``: its target and its multiprocessors or compute units."""

    target: str
    units: int

    def __str__(self) -> str:
        return f"{self.target}/{self.units}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """The place that ``text`` means.

        Raises:
            ArgumentValueError: the text is not of that form.
        """
        found = _PLACE.fullmatch(text)
        if found is None or str(Target.parse(found[1])) != found[1]:
            form = "VENDOR:ARCH/UNITS, with the multiprocessors or compute units, such as nvidia:sm_90/132"
            raise ArgumentValueError(f"{text!r} is not of the form {form}")
        return cls(found[1], int(found[2]))


@dataclass(frozen=True, slots=True)
class Pin:
    """The source of a kernel, as a digest, and the versions of what its manifest requires, by module."""

    source: str
    requires: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class MadeWith:
    """The driver and the torch of a machine; empty where they are not known."""

    driver: str = ""
    torch: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """The kernel for calls of one kind whose dimensions lie within bounds, as it is written.

    ``dtypes`` is one for all tensors that can have it, or has each by its name. ``comment`` is what stands behind the
    entry, ``line`` where it stands; neither is part of what the plan decides.
    """

    kernel: str
    dtypes: str | Mapping[str, str]
    phase: str = "inference"
    formats: Mapping[str, str] = field(default_factory=dict[str, str])
    features: Mapping[str, Any] = field(default_factory=dict[str, Any])
    layout: tuple[str, ...] = ()
    bounds: Box = field(default_factory=dict[str, tuple[int, int]])
    comment: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    @classmethod
    def of(cls, choice: Choice) -> Entry:
        """The entry for a choice: with one dtype for all, where that says the same."""
        kind = choice.kind
        described = contracts().get(kind.op)
        one = None
        if described is not None:
            one = gathered(described, kind.dtypes, values_of(described, kind.features, kind.formats))
        return cls(
            choice.kernel,
            one or dict(kind.dtypes),
            kind.phase,
            dict(kind.formats),
            dict(kind.features),
            tuple(kind.layout),
            plain(choice.bounds),
            choice.why,
        )

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Entry:
        """The entry that ``to_data`` has made data of."""
        bounds = {name: (value[0], value[1]) for name, value in data.items() if name not in WORDS}
        return cls(
            data["use"],
            data["dtype"] if "dtype" in data else data["dtypes"],
            data.get("phase", "inference"),
            data.get("formats", {}),
            data.get("features", {}),
            tuple(data.get("layout", ())),
            bounds,
        )

    def kind(self, op: str) -> Kind:
        """The kind of call that it is for. Of an op that nobody here has, one dtype stands under an empty name.

        Raises:
            UnknownNameError, ArgumentTypeError, ArgumentValueError: the op has no such parameter, format or value.
        """
        described = contracts().get(op)
        dtypes = {"": self.dtypes} if isinstance(self.dtypes, str) else dict(self.dtypes)
        features, formats = dict(self.features), dict(self.formats)
        if described is not None:
            values = values_of(described, features, formats)
            if isinstance(self.dtypes, str):
                dtypes = spread(described, self.dtypes, values)
            by_default = {p.name: p.default for p in described.parameters}
            # as a call's kind has them: in the form that JSON has, and none at its default
            features = {name: values[name] for name in features if values[name] != by_default[name]}
            features = json.loads(canonical(features))
            formats = format_values(described, {**by_default, **values})
        return Kind(op, self.phase, dtypes, formats, features, tuple(sorted(self.layout)))

    def kind_text(self, op: str) -> str:
        """What entries of one kind have in common; as it is written, where the op is not known, or has no such call."""
        try:
            return self.kind(op).text
        except PortakernelError:  # its own problem, where a machine follows the part
            return canonical([self.phase, self.dtypes, dict(self.formats), dict(self.features), sorted(self.layout)])

    def to_data(self) -> dict[str, Any]:
        """The entry as the plan has it, sizes as two integers."""
        data: dict[str, Any] = {"dtype" if isinstance(self.dtypes, str) else "dtypes": self.dtypes}
        if self.phase != "inference":
            data["phase"] = self.phase
        data |= {name: value for name in ("formats", "features") if (value := dict(getattr(self, name)))}
        if self.layout:
            data["layout"] = sorted(self.layout)
        return data | {name: list(bounds) for name, bounds in plain(self.bounds).items()} | {"use": self.kernel}


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a plan says, whichever machine reads it. Compared by identity; ``digest`` says whether two decide the same.

    ``name`` is how reasons name it, ``notes`` what is otherwise than where it was made and no reason to refuse it.
    ``lines`` are those in which its parts begin.
    """

    parts: Mapping[Place, Mapping[str, tuple[Entry, ...]]]
    pins: Mapping[str, Pin]
    lock: Lock = "listed"
    regime: Regime = Regime.GRAPH_COLD
    made_with: Mapping[Place, MadeWith] = field(default_factory=dict[Place, MadeWith])
    name: str = "plan.yaml"
    notes: tuple[str, ...] = ()
    lines: Mapping[Place, int] = field(default_factory=dict[Place, int])

    @property
    def locked(self) -> bool:
        """Whether a call that it does not cover is an error."""
        return self.lock == "everything"

    @property
    def digest(self) -> str:
        """The SHA-256 of what it decides: entries and sources. Times, comments and their order are no part of it."""
        decisions: dict[str, dict[str, list[Any]]] = {}
        for place, op, entry in self.entries():
            decisions.setdefault(str(place), {}).setdefault(op, []).append(entry.to_data())
        for ops in decisions.values():
            for entries in ops.values():
                entries.sort(key=canonical)
        sources = {name: pin.source for name, pin in self.pins.items()}
        whole = canonical({"lock": self.lock, "decisions": decisions, "sources": sources})
        return f"sha256:{hashlib.sha256(whole.encode()).hexdigest()}"

    def entries(self) -> Iterator[tuple[Place, str, Entry]]:
        """Every entry with its kind of device and its op."""
        for place, ops in self.parts.items():
            for op, entries in ops.items():
                for entry in entries:
                    yield place, op, entry

    def places(self) -> tuple[Place, ...]:
        """The kinds of devices that it has a part for."""
        return tuple(self.parts)

    def choices(self, op: str, place: tuple[str, int]) -> Choices:
        """The choices for ``op`` on one kind of device, a target with its units; none where it has no such part."""
        entries = self.parts.get(Place(*place), {}).get(op, ())
        return Choices(
            Choice(entry.kernel, entry.kind(op), entry.bounds, f"{self.name}:{entry.line}", entry.comment)
            for entry in entries
        )
