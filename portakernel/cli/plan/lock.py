"""``portakernel plan lock``: a plan completed for a workload, so that nothing else is decided for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portakernel.cli.options import Json
from portakernel.cli.plan.apart import dispatcher_apart

if TYPE_CHECKING:
    from portakernel.cli.output import Page
    from portakernel.deciding.decision import Decision
    from portakernel.deciding.dispatcher import Dispatcher
    from portakernel.plan import Place, Plan
    from portakernel.tuning.choices import Choice
    from portakernel.warming.outcome import Call
    from portakernel.words.target import Device


def command(
    file: Annotated[
        Path, typer.Argument(metavar="PLAN", readable=False, help="The plan; one that is not there begins empty.")
    ],
    calls: Annotated[
        Path, typer.Option("--calls", metavar="FILE", help="The workload: calls as `portakernel warmup` reads them.")
    ],
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="VENDOR:ARCH[/UNITS]",
            help="The part to complete, from manifests where the hardware is not here; units where the plan has not one"
            " part for it [default: the calls' devices].",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there [default: in its place].")
    ] = None,
    json: Json = False,
) -> None:
    """Complete a plan for a workload: every call that no entry covers gets the kernel that would serve it now.

    The plan then has `lock: everything`: a call that it does not cover is an error, and no measurement, priority or
    upgrade moves what the workload runs on. Its digest is set. Calls that name a kernel themselves need no entry.

    Exits with 0 when every call is covered, 1 when no kernel serves one, or `plan check` would refuse an entry: nothing
    is written then.

    For example:

        portakernel plan lock plan.yaml --calls service.yaml
        portakernel plan lock plan.yaml --calls service.yaml --target amd:gfx942/304 -o locked.yaml
    """
    from portakernel.cli.calls_file import load_calls
    from portakernel.cli.output import page, print_json
    from portakernel.cli.plan.here import places_here
    from portakernel.cli.plan.regimes import decides_here, regime_of_file
    from portakernel.cli.target_words import place_meant
    from portakernel.plan.export import make_plan
    from portakernel.plan.plan import Plan
    from portakernel.plan.reading import read_form, read_plan
    from portakernel.plan.writing import write_plan

    now = dispatcher_apart()
    plan, place = read_form(file) if file.exists() else Plan({}, {}), None
    if target is not None:
        known = [*plan.parts, *(at for at in places_here(now) if at not in plan.parts)]
        place = place_meant(target, known, now.registry, known_from=f"{file}, or this machine,")
    if file.exists():
        plan = read_plan(file, now.registry, here=None if place is None else [place.target])
    before, listed = plan, load_calls(calls)
    added, unserved, denied = _uncovered(now, plan, listed, place)
    where, kept, refused = output or file, sum(1 for _ in plan.entries()), list[str]()
    if not unserved:
        whole = {at: [*_choices(plan, at), *choices] for at, choices in added.items() if choices}
        made_with = {at: made for at, made in places_here(now).items() if at in whole} | dict(plan.made_with)
        regime = plan.regime
        if not file.exists():
            regime = regime_of_file(whole, decides_here() or regime)
        plan = make_plan(whole, now.registry, regime=regime, lock="everything", made_with=made_with, beside=plan)
        refused = list(_refused(now, plan, added))
    if not unserved and not refused:
        write_plan(plan, where)
        plan = read_form(where)
    else:
        plan = before
    answer: dict[str, Any] = {
        "plan": str(where),
        "digest": plan.digest,
        "lock": plan.lock,
        "kept": kept,
        "added": [
            {
                "target": str(at),
                "op": choice.kind.op,
                "phase": choice.kind.phase,
                "dtypes": dict(choice.kind.dtypes),
                "formats": dict(choice.kind.formats),
                "features": dict(choice.kind.features),
                "layout": list(choice.kind.layout),
                "kernel": choice.kernel,
                "dims": {name: size for name, (size, _) in choice.bounds.items()},
            }
            for at, choices in added.items()
            for choice in choices
        ],
        "denied": denied,
        "unserved": unserved,
        "refused": refused,
    }
    if json:
        print_json(answer)
    else:
        _print(page(), answer)
    raise typer.Exit(1 if unserved or refused else 0)


def _refused(now: Dispatcher, plan: Plan, places: Collection[Place]) -> Iterator[str]:
    """The entries of these places that `plan check` would refuse, and why."""
    from portakernel.cli.plan.eligibility import refused_entries
    from portakernel.plan.judging import judged
    from portakernel.plan.plan import Place
    from portakernel.plan.writing import call_text
    from portakernel.tuning.sources import source_digest

    problems = list(judged(plan, places, now.registry, source_digest, granted=True))
    for path, text in problems:
        match path:
            case ("targets", str(at), str(op), int(i), *_):
                yield f"{op} on {at}: {{{call_text(plan.parts[Place.parse(at)][op][i])}}}: {text}"
            case _:
                yield f"{'.'.join(map(str, path))}: {text}"
    for one in refused_entries(now, plan, places)[0] if not problems else ():
        sizes = f" at {one.sizes}" if one.sizes else ""
        serves = f"{one.entry.kernel} cannot serve it{sizes}: {'; '.join(one.reasons)}"
        yield f"{one.op} on {one.place}: {{{call_text(one.entry)}}}: {serves}"


def _choices(plan: Plan, place: Place) -> list[Choice]:
    return [choice for op in plan.parts.get(place, {}) for choice in plan.choices(op, place).all]


def _uncovered(
    now: Dispatcher, plan: Plan, calls: Sequence[Call], place: Place | None
) -> tuple[dict[Place, list[Choice]], list[str], list[str]]:
    """For each place of calls a choice for each that nothing covers; the calls that no kernel serves; who is denied."""
    from portakernel.cli.plan.call_requests import requests_of
    from portakernel.deciding.explaining import decide_as_called
    from portakernel.tuning.choices import Choice
    from portakernel.tuning.key import Kind
    from portakernel.words.target import Target

    added: dict[Place, list[Choice]] = {}
    unserved, denied = list[str](), dict[str, None]()
    for call in calls:
        if call.kernel is not None:
            continue
        at, device = (place, None) if place is not None else _place(now, call)
        for request in requests_of(call, Target.parse(at.target), device):
            new = added.setdefault(at, [])
            kind = Kind.of(request, now.registry.for_op(call.op))
            known = [*plan.choices(call.op, at).all, *new]
            if any(choice.kind == kind and choice.covers(request.dims) for choice in known):
                continue
            decision = decide_as_called(now, request, now.policy())
            if decision.chosen is None:
                unserved.append(f"{request}: {decision.why}")
                continue
            denied |= dict.fromkeys(filter(None, [_denied(decision, decision.chosen.name)]))
            bounds = {name: (int(size), int(size)) for name, size in request.dims.items()}
            new.append(Choice(decision.chosen.name, kind, bounds, "", f"locked: {decision.why}"))
    return added, unserved, list(denied)


def _denied(decision: Decision, chosen: str) -> str:
    """Who would serve in place of the chosen kernel, but for wishes that hold in this process; empty for nobody."""
    from portakernel.claims.capability import ReasonCode

    for name in decision.passed_over:
        rejections = decision.candidate(name).rejections
        if {rejection.code for rejection in rejections} == {ReasonCode.DENIED_BY_POLICY}:
            return f"{decision.request.op}: {chosen} is locked; {name} would go first, but for: {rejections[0].text}"
    return ""


def _place(now: Dispatcher, call: Call) -> tuple[Place, Device]:
    """The kind of device that a call is on, which is here.

    Raises:
        UnknownNameError, ArgumentValueError: there is none, or torch does not say its units.
    """
    from portakernel.deciding.explaining import first_device
    from portakernel.errors import ArgumentValueError
    from portakernel.plan.plan import Place
    from portakernel.tensors.units import units_of

    device = now.registry.device(call.device) if call.device else first_device(now.registry)
    units = units_of(device)
    if not units:
        text = f"nobody says how many multiprocessors {device.name} has; give --target VENDOR:ARCH/UNITS"
        raise ArgumentValueError(f"plan: {text}")
    return Place(str(device.target), units), device


def _print(out: Page, answer: dict[str, Any]) -> None:
    for text in (*answer["unserved"], *answer["refused"]):
        out.line(text, "bad")
    if answer["unserved"]:
        out.line(f"{len(answer['unserved'])} calls have no kernel; nothing is written", "bad")
        return
    if answer["refused"]:
        out.line(f"`plan check` would refuse {len(answer['refused'])} of its entries; nothing is written", "bad")
        return
    rows = [
        (one["target"], one["op"], one["phase"], _dtypes(one["dtypes"]), _values(one), one["kernel"])
        for one in answer["added"]
    ]
    for text in answer["denied"]:
        out.line(text, "doubt")
    if rows:
        out.table(rows, ("target", "op", "phase", "dtype", "sizes", "kernel"), indent=2)
    out.line(f"{answer['plan']}: {answer['kept']} entries kept, {len(rows)} added; lock: everything", "good")
    out.line(answer["digest"], "faint")


def _dtypes(by_tensor: Mapping[str, str]) -> str:
    """One where all tensors have it, else each tensor's."""
    one = set(by_tensor.values())
    return one.pop() if len(one) == 1 else ", ".join(f"{name} {dtype}" for name, dtype in by_tensor.items())


def _values(one: Mapping[str, Any]) -> str:
    """Sizes, and what a call says beside them: scale formats, and parameters that are off their default."""
    said = {**one["dims"], **one["formats"], **one["features"]}
    return ", ".join(f"{name}={value}" for name, value in said.items())
