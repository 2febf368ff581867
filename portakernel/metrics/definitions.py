"""The metrics: their names, what they count by, and where they are read. Shapes are never among it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from portakernel.api import stats
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.routes import PlannedSource
from portakernel.runtime import callers_so_far, made_dispatcher
from portakernel.shadow.counts import COUNTS
from portakernel.tensors.compilation import compilations

# Values by what a metric counts by, in the order of its labels.
Values = Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by its OpenTelemetry name; in Prometheus dots are underscores, and counters end in ``_total``.

    ``read`` gives its values at this moment; those of a counter never fall. ``unit`` is UCUM's.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    description: str
    labels: tuple[str, ...]
    read: Callable[[], Values]


def _calls() -> Values:
    total = Counter[tuple[str, ...]]()
    for row in stats():
        total[row.op, row.kernel, row.phase, row.target] += row.calls
    return total


def _fallbacks() -> Values:
    total = Counter[tuple[str, ...]]()
    for row in stats():
        for name in row.fallback:
            total[row.op, row.kernel, name] += row.calls
    return total


def _unmeasured() -> Values:
    total = Counter[tuple[str, ...]]()
    for asked in callers_so_far():
        for reason, calls in asked.table.unmeasured().items():
            total[asked.contract.op, reason] += calls
    return total


def _decisions() -> Values:
    return {tuple(by): count for now in _dispatchers() for by, count in now.tallies.decisions().items()}


def _decision_seconds() -> Values:
    return {(op,): seconds for now in _dispatchers() for op, seconds in now.tallies.seconds().items()}


def _compilations() -> Values:
    return {by: count for by, (count, _) in compilations().times().items()}


def _compile_seconds() -> Values:
    return {by: seconds for by, (_, seconds) in compilations().times().items()}


def _plan() -> Values:
    plans = [now.routes.plan for now in _dispatchers()]
    return {(_digests.of(plan), "everything" if plan.locked else "listed"): 1 for plan in plans if plan is not None}


class _Digests:
    """The digest of the plan that was asked for last: its entries are hashed once, and not for each scrape."""

    def __init__(self) -> None:
        self._last: tuple[PlannedSource, str] | None = None

    def of(self, plan: PlannedSource) -> str:
        last = self._last
        if last is None or last[0] is not plan:
            last = self._last = plan, plan.digest
        return last[1]


_digests = _Digests()


def _dispatchers() -> Iterable[Dispatcher]:
    """The process's dispatcher, where there is one: a scrape makes none."""
    return filter(None, [made_dispatcher()])


METRICS = (
    Metric(
        "portakernel.calls", "counter", "{call}", "Calls of ops, by the kernel that served them.",
        ("op", "kernel", "phase", "target"), _calls,
    ),
    Metric(
        "portakernel.fallbacks", "counter", "{call}",
        "Calls that a kernel served because a better one, instead_of, could not.",
        ("op", "kernel", "instead_of"), _fallbacks,
    ),
    Metric(
        "portakernel.decisions", "counter", "{decision}",
        "Choices of a kernel for a new kind of call, by what named it: policy, plan, measured, or priority.",
        ("op", "source"), _decisions,
    ),
    Metric(
        "portakernel.decision.duration", "counter", "s", "Time that these choices took, in all.",
        ("op",), _decision_seconds,
    ),
    Metric(
        "portakernel.compilations", "counter", "{compilation}",
        "Kernel functions that calls had compiled, or loaded from a compiler's cache.",
        ("compiler", "function"), _compilations,
    ),
    Metric(
        "portakernel.compile.duration", "counter", "s", "Time that calls waited for that, in all.",
        ("compiler", "function"), _compile_seconds,
    ),
    Metric(
        "portakernel.unmeasured", "counter", "{call}",
        "Calls whose kernel priorities picked because no measurement decides, by the reason.",
        ("op", "reason"), _unmeasured,
    ),
    Metric(
        "portakernel.shadow.checked", "counter", "{call}", "Calls that were held against the reference while serving.",
        ("op", "kernel"), COUNTS.checked,
    ),
    Metric(
        "portakernel.shadow.mismatched", "counter", "{call}", "Those of them whose results were wrong.",
        ("op", "kernel"), COUNTS.mismatched,
    ),
    Metric(
        "portakernel.shadow.skipped", "counter", "{call}", "Calls that were to be looked at and were not.",
        ("op", "kernel", "reason"), COUNTS.skipped,
    ),
    Metric(
        "portakernel.plan.info", "gauge", "1", "1 for the plan that the process follows.", ("digest", "lock"), _plan
    ),
)  # fmt: skip
