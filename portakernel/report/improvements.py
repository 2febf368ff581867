"""What would help a deployment most: each with the command to run, ordered by calls × estimated loss."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from portakernel.report.content import Broken, Improvement, PlanState, Served, Workload
from portakernel.report.losses import Loss, Losses, assumed

# How many examples an improvement names, and how many kinds of records.
_SHOWN, _SHOWN_BASES = 5, 2


def improvements(
    workload: Workload | None,
    plan: PlanState | None,
    broken: Sequence[Broken],
    findings: Iterable[Mapping[str, Any]],
    losses: Losses,
) -> tuple[Improvement, ...]:
    """What would help, most first: what fails, then by weight, then what nothing can be said of by its calls."""
    found = list(_of_plan(plan, workload))
    if workload is None:
        found.append(NO_WORKLOAD)
    else:
        found += _of_calls(workload, losses, plan)
    told = {one.action for one in found}
    found += [
        Improvement("broken", f"{one.package} is broken at {one.stage}: {one.reason}", one.action)
        for one in broken
        if one.action not in told
    ]
    repaired = {one.action for one in broken} | told
    found += [
        Improvement("finding", str(one["what"]), str(one["action"]))
        for one in findings
        if one["action"] and one["action"] not in repaired
    ]
    return tuple(sorted(found, key=_order))


NO_WORKLOAD = Improvement(
    "no_workload",
    "no recording was given: which kernels serve this deployment, and what is unmeasured, is not known",
    "portakernel record -o calls.yaml -- PROGRAM, then portakernel report --calls calls.yaml",
)
_FIRST = ("plan_refused", "no_kernel", "no_workload", "broken")


def _order(one: Improvement) -> tuple[int, float, int]:
    first = _FIRST.index(one.kind) if one.kind in _FIRST else len(_FIRST)
    # what nobody can estimate comes behind what somebody can
    return (first, -(one.weight if one.weight is not None else -1.0), -one.calls)


def _of_plan(plan: PlanState | None, workload: Workload | None) -> Iterator[Improvement]:
    if plan is None:
        return
    check = f"portakernel plan check {shlex.quote(plan.file)}"
    if not plan.is_followed:
        what = f"the plan {plan.file} is refused: a process that PORTAKERNEL_PLAN gives it to ends with an error"
        yield Improvement("plan_refused", what, check, details=plan.problems[:_SHOWN])
    elif plan.refused:
        what = f"{len(plan.refused)} entries of {plan.file} name kernels that cannot serve what they cover"
        yield Improvement("plan_refused", what, check, details=plan.refused[:_SHOWN])
    elif plan.uncovered and workload is not None:
        what = f"no entry of {plan.file} covers {plan.uncovered} calls: they go by measurements or priorities"
        action = f"portakernel plan lock {shlex.quote(plan.file)} --calls {shlex.quote(workload.file)}"
        if plan.lock != "everything":
            yield Improvement("plan_uncovered", what, action, plan.uncovered)


@dataclass(slots=True)
class _Group:
    """Calls that one step helps."""

    what: str
    action: str
    calls: int = 0
    lost: float = 0.0
    bases: dict[str, None] = field(default_factory=dict[str, None])
    details: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, one: Served, loss: Loss | None, detail: str) -> None:
        self.calls += one.calls
        self.details[detail] = None
        if loss is not None:
            self.lost += one.calls * loss.part
            self.bases[loss.basis] = None

    def improvement(self, kind: str) -> Improvement:
        details = tuple(self.details)
        left = len(details) - _SHOWN
        more = (f"and {left} more",) if left > 0 else ()
        made = Improvement(kind, self.what, self.action, self.calls, details=(*details[:_SHOWN], *more))
        return replace(made, loss=self.lost / self.calls, basis=_several(list(self.bases))) if self.bases else made


def _several(bases: Sequence[str]) -> str:
    left = len(bases) - _SHOWN_BASES
    return "; ".join([*bases[:_SHOWN_BASES], *([f"and {left} more"] if left > 0 else [])])


def _of_calls(workload: Workload, losses: Losses, plan: PlanState | None) -> list[Improvement]:
    groups: dict[tuple[str, str], _Group] = {}

    def add(kind: str, what: str, action: str, one: Served, loss: Loss | None, detail: str) -> None:
        groups.setdefault((kind, action), _Group(what, action)).add(one, loss, detail)

    file = shlex.quote(workload.file)
    for one in workload.decisions:
        if one.kernel is None:
            locked = plan is not None and plan.lock == "everything" and not one.planned
            action = (
                f"portakernel plan lock {shlex.quote(plan.file)} --calls {file}" if plan and locked else one.explain
            )
            failed = Loss(1.0, "such calls raise NoKernelError")
            add("no_kernel", "no kernel serves these calls", action, one, failed, f"{one.said}: {one.why}")
            continue
        better = next((other for other in one.passed_over if other.action), None)
        if one.slow_reference:
            what = f"the reference serves {one.op} on {one.target}, which has no faster kernel ready"
            if better is not None:
                what = f"the reference serves in the place of {better.kernel}"
            loss = better and losses.between(one.op, one.kernel, better.kernel, one.target)
            add(
                "reference", what, better.action if better else one.explain, one, loss or assumed("reference"), one.said
            )
        elif better is not None and better.unbuilt:
            what = "kernels that would serve are not built: in a process that has built nothing others stand in"
            action = (
                f"portakernel warmup --calls {file}, and portakernel.warmup with these calls where the service starts"
            )
            loss = losses.between(one.op, one.kernel, better.kernel, one.target) or assumed("refused")
            add("unbuilt", what, action, one, loss, f"{one.said}: {one.kernel} stands in for {better.kernel}")
        elif better is not None:
            what = f"{better.kernel} would go before what serves: {'; '.join(better.reasons)}"
            loss = losses.between(one.op, one.kernel, better.kernel, one.target) or assumed("refused")
            add("passed_over", what, better.action, one, loss, f"{one.said}: {one.kernel} serves")
        if one.measured is None and one.rivals > 1:
            loss = losses.unmeasured(one.op, one.target) or assumed("unmeasured")
            what = "nothing that was measured decides for these calls"
            add("unmeasured", what, f"portakernel tune --calls {file}", one, loss, f"{one.said}: {one.measured_why}")
        elif one.measured is not None and one.measured != one.kernel and one.source in ("policy", "plan", "call"):
            between = losses.between(one.op, one.kernel, one.measured, one.target)
            what = f"{one.source} chooses another kernel than measurements prefer"
            add("overruled", what, one.explain, one, between, f"{one.said}: {one.kernel}, not {one.measured}")
        if one.stale:
            what = "what decides was measured with another driver or torch"
            action = f"portakernel tune --stale --calls {file}"
            add("stale", what, action, one, None, f"{one.said}: {'; '.join(one.stale)}")
    return [group.improvement(kind) for (kind, _), group in groups.items()]
