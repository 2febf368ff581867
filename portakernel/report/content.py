"""A report as data: frozen parts, each with the JSON form that ``portakernel report --json`` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

# Who has chosen a kernel: what the call itself names, a policy, a plan, a measurement, the kernels' priorities; nobody.
Source = Literal["call", "policy", "plan", "measured", "priority", "none"]

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device, or hardware that is asked about; ``units`` are its multiprocessors, None where nobody says them."""

    target: str
    name: str
    units: int | None = None
    torch_device: str | None = None
    driver: str | None = None
    memory_bytes: int | None = None
    here: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A kernel that would have gone before the one that serves, why it does not, and what takes that away, if any.

    ``unbuilt``: nothing is against it but that it has to be built ahead of calls.
    """

    kernel: str
    reasons: tuple[str, ...]
    action: str = ""
    unbuilt: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """A kind of call of the workload and what serves it.

    ``by_priority`` is what priorities alone would pick, ``measured`` what measurements prefer (None: nothing decides,
    and ``measured_why`` says why); ``rivals`` is how many kernels beside the reference could serve; ``planned`` whether
    the plan covers it, None where there is none. ``share`` is of all calls, where a call for training counts for its
    forward and, where a kernel computes it, for its backward. ``request`` is as ``explain --json`` has it.
    """

    op: str
    phase: str
    target: str
    said: str
    request: Mapping[str, Any]
    calls: int
    share: float
    kernel: str | None
    why: str
    source: Source
    by_priority: str | None
    measured: str | None
    measured_why: str
    stale: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()
    rivals: int = 0
    planned: bool | None = None
    slow_reference: bool = False
    explain: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """A recording: how many ``calls`` of how many ``kinds`` it lists, and the decisions that they come to."""

    file: str
    calls: int
    kinds: int
    traced: tuple[str, ...]
    decisions: tuple[Served, ...]

    def by_source(self) -> dict[str, int]:
        """The number of calls by who has chosen, 0 for who has none."""
        counts = dict.fromkeys(get_args(Source), 0)
        for one in self.decisions:
            counts[one.source] += one.calls
        return counts

    def by_kernel(self) -> dict[str, int]:
        """The number of calls by the kernel that serves, the most first; "" where none does."""
        counts = Counter[str]()
        for one in self.decisions:
            counts[one.kernel or ""] += one.calls
        return dict(counts.most_common())


@dataclass(frozen=True, slots=True)
class PlanState:
    """A plan: ``problems`` for which it is refused whole, ``refused`` entries whose kernels cannot serve, notes.

    ``digest`` and ``lock`` are None where it has not the form of a plan; ``uncovered`` counts calls of the workload.
    """

    file: str
    digest: str | None
    lock: str | None
    targets: tuple[str, ...] = ()
    entries: int = 0
    problems: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    uncovered: int | None = None

    @property
    def is_followed(self) -> bool:
        """Whether a process that it is given to works."""
        return self.digest is not None and not self.problems


@dataclass(frozen=True, slots=True)
class StoreState:
    """A store of measurements: how many records, how many decide here, how many are void or busy here, and why."""

    folder: str
    ships: bool
    records: int
    decide: int
    undecided: int
    elsewhere: int
    reasons: tuple[str, ...] = ()
    passed_over: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Broken:
    """A package that failed, at which stage, and what to do."""

    package: str
    stage: str
    reason: str
    action: str


@dataclass(frozen=True, slots=True)
class Improvement:
    """Something that would help: ``calls`` that it is about, and the part of their time that they lose, estimated.

    ``loss`` is None where nothing can be said of it, 1 where calls fail; ``basis`` says what the estimate goes by.
    ``weight`` is calls × loss, by which improvements are ordered.
    """

    kind: str
    what: str
    action: str
    calls: int = 0
    loss: float | None = None
    basis: str = ""
    details: tuple[str, ...] = ()

    @property
    def weight(self) -> float | None:
        """Calls × loss; None where the loss is not known."""
        return None if self.loss is None else self.calls * self.loss


@dataclass(frozen=True, slots=True)
class Report:
    """The whole report; without a recording ``workload`` is None, and nothing is said of what serves calls."""

    portakernel: str
    made_at: str
    host: Mapping[str, str]
    versions: Mapping[str, str | None]
    judged_for: str | None
    devices: tuple[DeviceFacts, ...]
    workload: Workload | None
    plan: PlanState | None
    stores: tuple[StoreState, ...]
    broken: tuple[Broken, ...]
    help: tuple[Improvement, ...]
    findings: tuple[Mapping[str, Any], ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-ready data; stable."""
        data = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        data["help"] = [{**asdict(one), "weight": one.weight} for one in self.help]
        return data
