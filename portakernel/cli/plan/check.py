"""``portakernel plan check``: whether a plan would be followed here, or on hardware that is elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portakernel.cli.options import Json
from portakernel.cli.plan.apart import dispatcher_apart
from portakernel.cli.plan.here import places_here

if TYPE_CHECKING:
    from portakernel.cli.output import Page
    from portakernel.cli.plan.eligibility import Refused
    from portakernel.deciding.dispatcher import Dispatcher
    from portakernel.plan import Place, Plan


def command(
    file: Annotated[Path, typer.Argument(metavar="PLAN", readable=False, help="The plan.")],
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="VENDOR:ARCH[/UNITS]",
            help="Judge the parts for this hardware, from manifests where it is not here, or for `all`; repeatable"
            " [default: this machine's devices].",
        ),
    ] = None,
    digest: Annotated[
        str | None, typer.Option("--digest", metavar="sha256:…", help="What the plan's digest has to be.")
    ] = None,
    json: Json = False,
) -> None:
    """Say whether a plan would be followed: its form, names and sources, and whether its kernels can serve its calls.

    Each entry's kernel is asked about calls of the least and the greatest sizes, and of sizes between that break a
    bound of its claims. Hardware that is not here is judged from manifests: what is installed there, and built, is
    taken for granted.

    Exits with 0 when all would be followed, 1 when something would be refused, or the digest is another one.

    For example:

        portakernel plan check plan.yaml
        portakernel plan check plan.yaml --target amd:gfx942 --target nvidia:sm_90/132
        portakernel plan check plan.yaml --digest "$REVIEWED"
    """
    from portakernel.cli.output import page, print_json
    from portakernel.cli.plan.eligibility import refused_entries
    from portakernel.errors import ArgumentValueError, PlanError
    from portakernel.plan.judging import notes_on, targets_here
    from portakernel.plan.reading import problems_of, read_form
    from portakernel.tuning.sources import source_digest

    if not file.exists() and not file.is_symlink():
        raise ArgumentValueError(f"{file} is not there; `portakernel plan export -o {file}` writes one")
    if digest is not None and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ArgumentValueError(f"--digest {digest!r} is no digest; one is written as sha256:, with 64 hex digits")
    now = dispatcher_apart()
    try:
        plan = read_form(file)
    except PlanError as error:
        if json:
            print_json(_answer(file, None, (), error.problems, (), ()))
        else:
            _print_problems(page(), error.problems)
        raise typer.Exit(1) from None
    places = chosen_places(now, plan, target or ())
    # who loads it judges all parts for its hardware, whatever their units: threads of a CPU change
    targets = {place.target for place in places} if target else targets_here(now.registry)
    problems = problems_of(file, [place for place in plan.parts if place.target in targets], now.registry)
    if digest is not None and digest != plan.digest:
        problems.append(f"{file}: digest: is {plan.digest}; {digest} is asked for")
    absent = _absent(now, plan) if not target and not places else ""
    if absent and plan.locked:
        problems.append(f"{file}: {absent}, and with `lock: everything` every call here is an error")
    refused, unbuilt = ([], []) if problems else refused_entries(now, plan, places)
    notes = [*notes_on(plan, places, now.registry, source_digest), *unbuilt]
    notes += [f"{absent}: nothing of it is followed here"] if absent and not plan.locked else []
    if json:
        print_json(_answer(file, plan, places, problems, refused, notes))
    else:
        _print(page(), plan, places, problems, refused, notes)
    raise typer.Exit(1 if problems or refused else 0)


def _answer(
    file: Path,
    plan: Plan | None,
    places: Sequence[Place],
    problems: Sequence[str],
    refused: Sequence[Refused],
    notes: Sequence[str],
) -> dict[str, Any]:
    return {
        "plan": str(file),
        "digest": plan and plan.digest,
        "lock": plan and plan.lock,
        "targets": [str(place) for place in places],
        "problems": list(problems),
        "refused": [one.to_json() for one in refused],
        "notes": list(notes),
    }


def chosen_places(now: Dispatcher, plan: Plan, targets: Sequence[str]) -> list[Place]:
    """The plan's parts for these targets, for all of them, or for this machine's devices.

    Raises:
        ArgumentValueError: the plan has no part for a target that is asked for.
        UnknownNameError: there is no such target.
    """
    from portakernel.cli.target_words import those_meant
    from portakernel.errors import ArgumentValueError

    if "all" in targets:
        return sorted(plan.parts)
    wanted = {text: those_meant(text, plan.parts, now.registry) for text in targets}
    if missing := [text for text, places in wanted.items() if not places]:
        known = ", ".join(map(str, sorted(plan.parts))) or "none"
        raise ArgumentValueError(f"{plan.name} has no part for {missing[0]}; its parts: {known}")
    if wanted:
        return sorted({place for places in wanted.values() for place in places})
    return sorted(set(plan.parts) & set(places_here(now)))


def _absent(now: Dispatcher, plan: Plan) -> str:
    """That the plan has no part for this machine, with what it has."""
    known = ", ".join(map(str, sorted(plan.parts))) or "nothing"
    return f"it has no part for {' or '.join(map(str, places_here(now)))}, this machine, but for {known}"


def _print_problems(out: Page, problems: Sequence[str]) -> None:
    for problem in problems:
        out.line(problem, "bad")
    out.line(f"The plan is refused: {len(problems)} problem{'s' * (len(problems) != 1)}", "bad")


def _print(
    out: Page,
    plan: Plan,
    places: Sequence[Place],
    problems: Sequence[str],
    refused: Sequence[Refused],
    notes: Sequence[str],
) -> None:
    for note in notes:
        out.line(f"note: {note}", "doubt")
    if problems:
        _print_problems(out, problems)
        return
    for one in refused:
        at = f" at {one.sizes}" if one.sizes else ""
        head = f"{plan.name}:{one.entry.line}: {one.op} on {one.place}: {one.entry.kernel} cannot serve it{at}"
        out.line(f"{head}: {'; '.join(one.reasons)}", "bad")
    count = sum(place in places for place, *_ in plan.entries())
    judged = ", ".join(map(str, places)) or "no part (it has none for this machine; --target names others)"
    said = f"{len(refused)} of {count} entries would be refused" if refused else f"{count} entries can be followed"
    out.line(f"{plan.name}: {said} on {judged}", "bad" if refused else "good")
    out.line(f"lock: {plan.lock}; {plan.digest}", "faint")
