"""A plan as a report has it: its digest, whether it would be followed, and what of it would not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from portakernel.cli.plan.eligibility import refused_entries
from portakernel.cli.plan.here import places_here
from portakernel.cli.target_words import those_meant
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import ArgumentValueError, PlanError
from portakernel.plan.judging import notes_on, targets_here
from portakernel.plan.plan import Plan
from portakernel.plan.reading import problems_of, read_form
from portakernel.report.content import PlanState
from portakernel.tuning.sources import source_digest


def plan_state(now: Dispatcher, file: Path, target: str | None) -> tuple[PlanState, Plan | None]:
    """The plan at ``file`` for this machine, or for the hardware ``target``; the plan itself where it is followed.

    Raises:
        ArgumentValueError: there is no such file.
        UnknownNameError: there is no such target.
    """
    if not file.exists() and not file.is_symlink():
        raise ArgumentValueError(f"{file} is not there; `portakernel plan export -o {file}` writes a plan")
    try:
        plan = read_form(file)
    except PlanError as error:
        return PlanState(str(file), None, None, problems=tuple(error.problems)), None
    here = sorted(places_here(now))
    places = (
        those_meant(target, plan.parts, now.registry) if target is not None else [p for p in here if p in plan.parts]
    )
    targets = {place.target for place in places} if target is not None else targets_here(now.registry)
    problems = problems_of(file, [place for place in plan.parts if place.target in targets], now.registry)
    absent = "" if places else _absent(plan, target or " or ".join(map(str, here)))
    if absent and plan.locked:
        problems.append(f"{file}: {absent}, and with `lock: everything` every call there is an error")
    refused, unbuilt = ([], []) if problems else refused_entries(now, plan, places)
    state = PlanState(
        str(file),
        plan.digest,
        plan.lock,
        tuple(map(str, places)),
        sum(place in places for place, *_ in plan.entries()),
        tuple(problems),
        tuple(_told(plan, one.entry.line, one.op, one.entry.kernel, one.sizes, one.reasons) for one in refused),
        (*([absent] if absent else []), *notes_on(plan, places, now.registry, source_digest), *unbuilt),
    )
    return state, plan if state.is_followed else None


def _absent(plan: Plan, wanted: str) -> str:
    known = ", ".join(map(str, sorted(plan.parts))) or "nothing"
    return f"it has no part for {wanted}, but for {known}"


def _told(plan: Plan, line: int, op: str, kernel: str, sizes: str, reasons: Sequence[str]) -> str:
    at = f" at {sizes}" if sizes else ""
    return f"{plan.name}:{line}: {op}: {kernel} cannot serve it{at}: {'; '.join(reasons)}"
