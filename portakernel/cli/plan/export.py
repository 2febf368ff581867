"""``portakernel plan export``: a plan of what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from portakernel.cli.options import Json
from portakernel.cli.plan.apart import dispatcher_apart
from portakernel.cli.plan.here import places_here

if TYPE_CHECKING:
    from portakernel.deciding.dispatcher import Dispatcher
    from portakernel.plan import Place, Plan
    from portakernel.plan.difference import Changed
    from portakernel.tuning.choices import Choice
    from portakernel.tuning.key import Regime
    from portakernel.warming.outcome import Call

# How many of the calls that have no kernel any more are named.
_SHOWN = 3


def command(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The plan; other targets' parts in it stay.")
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="VENDOR:ARCH[/UNITS]",
            help="For this hardware, without units all of it that was measured; repeatable [default: this machine's].",
        ),
    ] = None,
    op: Annotated[
        list[str] | None, typer.Option("--op", metavar="OP", help="Only decisions about this op; repeatable.")
    ] = None,
    calls: Annotated[
        Path | None,
        typer.Option(
            "--calls", metavar="FILE", help="Only decisions about these calls, as `portakernel tune` reads them."
        ),
    ] = None,
    regime: Annotated[
        str | None,
        typer.Option(
            "--regime",
            metavar="REGIME",
            help="How times were taken: eager|graph, then /cold or /warm; eager on devices without graphs"
            " [default: as PORTAKERNEL_TUNING says, graph/cold].",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write what was measured as a plan: for kinds of calls and intervals of sizes the kernel, its time as a comment.

    Only what measurements decide is written; where they leave a call to priorities, so does the plan, until
    `portakernel plan lock` completes it. Sources of kernels are pinned as they are here. Of an interval whose kernel
    cannot serve all sizes in it, the two ends are written. Of a file that is there this hardware's part is written
    anew, and it is `lock: listed` again: what it loses by that is said.

    Exits with 0 when the plan was written, also where nothing was measured; 2 when it would be larger than is read.

    For example:

        portakernel plan export -o plan.yaml
        portakernel plan export -o plan.yaml --target nvidia:sm_90/132 --op rms_norm --op softmax
    """
    from portakernel.cli.calls_file import load_calls
    from portakernel.cli.output import page, print_json
    from portakernel.cli.plan.eligibility import servable
    from portakernel.cli.plan.regimes import decides_here, regime_of_file
    from portakernel.errors import ArgumentValueError, UnknownNameError
    from portakernel.plan.export import make_plan
    from portakernel.plan.plan import Place, Plan
    from portakernel.plan.reading import read_form
    from portakernel.plan.writing import write_plan
    from portakernel.tuning.key import Regime

    now = dispatcher_apart()
    if regime is not None and regime not in list(Regime):
        raise UnknownNameError("regime", regime, [str(known) for known in Regime])
    for name in op or ():
        if name not in now.registry.ops:
            raise UnknownNameError("op", name, now.registry.ops)
    here = places_here(now)
    asked_for = [_places(now, text, here) for text in target or ()]
    places = list(dict.fromkeys(place for several in asked_for for place in several)) or list(here)
    ops = list(dict.fromkeys(op or now.registry.ops))
    decides = decides_here()
    if regime is None and decides is None:
        text = "and nothing that was measured decides; give --regime to say whose times the plan takes, or unset it"
        raise ArgumentValueError(f"plan export: PORTAKERNEL_TUNING is off, {text}")
    wanted = Regime(regime or decides or Regime.GRAPH_COLD)
    regimes = {place: wanted.on(place.target.partition(":")[0]) for place in places}
    asked = regime_of_file(places, wanted)
    undecided: dict[Place, Counter[str]] = {place: Counter() for place in places}
    choices = {place: list(_measured(now, place, ops, regimes[place], undecided[place])) for place in places}
    if calls is not None:
        listed = load_calls(calls)
        choices = {place: _asked_for(now, place, several, listed) for place, several in choices.items()}
    able = {place: servable(now, several, place) for place, several in choices.items()}
    existed = output.exists()
    beside = read_form(output) if existed else Plan({}, {}, regime=asked)
    made_with = {place: made for place, made in here.items() if place in places}
    plan = make_plan(
        {place: kept for place, (kept, _) in able.items()},
        now.registry,
        regime=asked,
        made_with=made_with,
        beside=beside,
    )
    write_plan(plan, output)
    counts = {str(place): sum(len(entries) for entries in plan.parts[place].values()) for place in places}
    left_out = {str(place): count for place, (_, count) in able.items()}
    lost = {str(place): _lost(beside, plan, place) for place in places}
    if json:
        gone = {text: len({id(one.old) for one in several}) for text, several in lost.items()}
        silent = {str(place): dict(reasons.most_common()) for place, reasons in undecided.items()}
        counted = {"entries": counts, "left_out": left_out, "undecided": silent, "gone": gone}
        locks = {"lock": plan.lock, "lock_before": beside.lock if existed else None}
        how = {"regimes": {str(place): str(one) for place, one in regimes.items()}}
        print_json({"plan": str(output), "digest": plan.digest, **locks, **how, **counted})
        return
    out = page()
    for place, one in regimes.items():
        if told := one.instead_of(regime, str(place)):
            out.line(told, "doubt")
    for text, count in counts.items():
        out.line(
            f"{text}: {count} entries" if count else f"{text}: nothing that was measured decides; `portakernel tune`"
        )
        for told in _silent(now, undecided[Place.parse(text)]):
            out.line(told, "doubt", indent=2)
        if left_out[text]:
            out.line(
                f"{left_out[text]} decisions are left out: their kernels cannot serve such calls now", "doubt", indent=2
            )
        if lost[text]:
            out.line(_told(output, lost[text]), "doubt", indent=2)
    if beside.locked and not plan.locked:
        again = "its calls are decided elsewhere again, until `portakernel plan lock` completes the plan"
        out.line(f"{output} had `lock: everything`, and has `lock: {plan.lock}` now: {again}", "doubt")
    out.line(f"{output}: written; {plan.digest}", "good")


def _places(now: Dispatcher, text: str, here: Iterable[Place]) -> list[Place]:
    """The kinds of devices that ``--target`` means: as it says, or without units those here or in the stores.

    Raises:
        UnknownNameError: there is no such target.
        ArgumentValueError: it is of neither form, or nothing says its units.
    """
    from portakernel.cli.target_words import target_and_units, those_meant
    from portakernel.errors import ArgumentValueError
    from portakernel.plan.plan import Place
    from portakernel.tuning.measured import places

    target, units = target_and_units(text, now.registry)
    if units is not None:
        return [Place(target, units)]
    known = [*here, *(Place(*found) for found in places(_roots()))]
    if not (meant := those_meant(text, known, now.registry)):
        text = f"--target {text!r}: nothing was measured on {target}, and none is here"
        raise ArgumentValueError(f"{text}; write {target}/UNITS, or have `portakernel tune` measure there")
    return meant


def _roots() -> list[Path]:
    from portakernel.config import Config
    from portakernel.tuning.place import defaults_root, own_root

    return [own_root(Config.from_environment().tuning_dir), defaults_root()]


def _lost(before: Plan, plan: Plan, place: Place) -> list[Changed]:
    """The calls of one part that ``before`` has a kernel for, and ``plan`` none."""
    from portakernel.plan.difference import differences

    return [one for one in differences(before, plan) if one.place == place and one.new is None]


def _told(output: Path, lost: Sequence[Changed]) -> str:
    """What is gone of a part, by example."""
    count = len({id(one.old) for one in lost})
    shown = "; ".join(f"{one.op} {{{one.call()}}}" for one in lost[:_SHOWN])
    more = "; …" if len(lost) > _SHOWN else ""
    return f"of {count} entries that {output} had calls have no kernel now: {shown}{more}"


def _silent(now: Dispatcher, undecided: Counter[str]) -> Iterator[str]:
    """Why calls that were measured are not in the plan, the reason of the most first."""
    from portakernel.tuning.undecided import by_reason

    if count := undecided.total():
        told = "calls that were measured decide" if count != 1 else "call that was measured decides"
        yield f"{count} {told} nothing here:"
    yield from (f"  {count}: {reason}" for count, reason in by_reason(undecided, now.registry.kernels))


def _measured(
    now: Dispatcher, place: Place, ops: Sequence[str], regime: Regime, undecided: Counter[str]
) -> Iterator[Choice]:
    """What was measured of these ops decides; ``undecided`` counts the calls of which nothing does, by reason."""
    from portakernel.tuning.measured import Measured

    registry, roots = now.registry, _roots()
    for op in ops:
        kernels = registry.for_op(op)
        found = Measured(roots, op, place.target, place.units, regime, kernels, registry.spaces)
        undecided += found.undecided
        for choice in found.choices.all:
            if not registry.kernels[choice.kernel].needs_build:
                yield choice
            elif choice.ready:  # a plan is strict, and a process that has built nothing follows it too
                why = f"the fastest but for {choice.kernel}, which would have to be built"
                yield replace(choice, kernel=choice.ready, ready="", why=why)


def _asked_for(now: Dispatcher, place: Place, choices: Sequence[Choice], calls: Sequence[Call]) -> list[Choice]:
    """The choices that cover one of the calls."""
    from portakernel.cli.plan.call_requests import requests_of
    from portakernel.tuning.key import Kind
    from portakernel.words.target import Target

    asked = [
        (Kind.of(request, now.registry.for_op(call.op)), request.dims)
        for call in calls
        if call.kernel is None  # nothing is decided for one that names its own
        for request in requests_of(call, Target.parse(place.target))
    ]
    return [choice for choice in choices if any(choice.kind == kind and choice.covers(dims) for kind, dims in asked)]
